"""What cannot be done with examples that have no labels."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._program import flag

LEFT_OUT = "leave it out"
OF_VOTES = ("neighbours", "knn_temperature")
"""Numbers of a vote of neighbours."""


def asked_of_all(config: Any) -> dict[str, tuple[bool, str]]:
    """What any study may be asked for that needs labels, see :func:`refuse`."""
    source = config.objective.alpha_from
    return {
        "--alpha-from labels": (source == "labels", "--alpha-from views needs none"),
        "--sweep": (bool(config.protocol.sweep), f"{LEFT_OUT}: nothing decides it"),
    }


def asked_beside(options: Any, names: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Which of these options were given another value than their own, see :func:`refuse`."""
    own = type(options)()
    return {flag(name): (getattr(options, name) != getattr(own, name), LEFT_OUT) for name in names}


def refuse(asked: Mapping[str, tuple[bool, str]], what: str) -> None:
    """Refuses what needs labels.

    Args:
      asked: By flag, whether it was given, and what to do instead.
      what: What has no labels, such as ``"the texts of FILE"``.

    Raises:
      ValueError: If a flag was given.
    """
    for name, (is_asked, advice) in asked.items():
        if is_asked:
            raise ValueError(f"{name} needs labels, and {what} have none; {advice}.")
