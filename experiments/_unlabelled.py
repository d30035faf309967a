"""Rejection of flags that need labels, for unlabelled examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._program import flag

LEFT_OUT = "leave it out"
OF_VOTES = ("neighbours", "knn_temperature")
"""Options of the k-nearest-neighbour classifier."""


def asked_of_all(config: Any) -> dict[str, tuple[bool, str]]:
    """Returns the flags of all studies that need labels, as arguments of :func:`refuse`."""
    source = config.objective.alpha_from
    return {
        "--alpha-from labels": (source == "labels", "--alpha-from views needs none"),
        "--sweep": (bool(config.protocol.sweep), f"{LEFT_OUT}: nothing decides it"),
    }


def asked_beside(options: Any, names: Sequence[str]) -> dict[str, tuple[bool, str]]:
    """Returns whether these options differ from their defaults, as arguments of :func:`refuse`."""
    own = type(options)()
    return {flag(name): (getattr(options, name) != getattr(own, name), LEFT_OUT) for name in names}


def refuse(asked: Mapping[str, tuple[bool, str]], what: str) -> None:
    """Rejects flags that need labels.

    Args:
      asked: By flag, whether it was given, and the advice of the error message.
      what: Description of the unlabelled data, such as ``"the texts of FILE"``.

    Raises:
      ValueError: If a flag was given.
    """
    for name, (is_asked, advice) in asked.items():
        if is_asked:
            raise ValueError(f"{name} needs labels, and {what} have none; {advice}.")
