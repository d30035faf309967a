"""Registry of tables and figures by command-line name."""

from collections.abc import Mapping

from . import chapter_3, chapter_4, chapter_5, images
from .targets import Target

TARGETS: Mapping[str, Target] = {
    **chapter_3.TARGETS,
    **chapter_4.TARGETS,
    **chapter_5.TARGETS,
    **images.TARGETS,
}
"""Tables and figures; a new one requires a :class:`Target` in a file of this folder, and an entry
here."""
