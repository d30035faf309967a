"""Registry of tables and figures by command-line name.

A new table or figure requires a :class:`Target` in a file of this folder and an entry in
:data:`TARGETS`.
"""

from collections.abc import Mapping

from . import confidence_figures, dpl_figures, image_targets, sampling_figures, table_targets
from .targets import OWN_FLAGS as OWN_FLAGS
from .targets import Job as Job
from .targets import Options as Options
from .targets import Reproduction as Reproduction
from .targets import Target as Target

TARGETS: Mapping[str, Reproduction] = {
    "table-3.2": table_targets.TABLE_3_2,
    "table-3.3": table_targets.TABLE_3_3,
    "table-4.2": table_targets.TABLE_4_2,
    "table-4.3": table_targets.TABLE_4_3,
    "table-4.4": table_targets.TABLE_4_4,
    "table-4.5": table_targets.TABLE_4_5,
    "table-5.2": table_targets.TABLE_5_2,
    "table-5.3": table_targets.TABLE_5_3,
    "table-6.3": table_targets.TABLE_6_3,
    "table-6.4": image_targets.TABLE_6_4,
    "table-6.5": image_targets.TABLE_6_5,
    "table-6.6": image_targets.TABLE_6_6,
    "table-6.7": image_targets.TABLE_6_7,
    "table-6.8": image_targets.TABLE_6_8,
    "figure-3.2": confidence_figures.FIGURE_3_2,
    "figure-3.3": confidence_figures.FIGURE_3_3,
    "figure-3.4": confidence_figures.FIGURE_3_4,
    "figure-3.5": confidence_figures.FIGURE_3_5,
    "figure-3.6": confidence_figures.FIGURE_3_6,
    "figure-4.2": sampling_figures.FIGURE_4_2,
    "figure-4.4": sampling_figures.FIGURE_4_4,
    "figure-4.5": sampling_figures.FIGURE_4_5,
    "figure-5.3": dpl_figures.FIGURE_5_3,
    "figure-5.4": dpl_figures.FIGURE_5_4,
}
