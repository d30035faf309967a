"""The two outcomes of a problem in the data: an error that stops, a warning that counts.

In their messages, as in all of :mod:`crl_jax.data`, backticks stand around the name of an
argument and around nothing else, so that a program with flags can say its own names instead.
"""

import warnings
from typing import NamedTuple


class DataError(ValueError):
    """Data that cannot be used; the message says where, what was expected and what came."""


class DataWarning(UserWarning):
    """Data that were used after a change or with a doubt; the message counts the cases."""


def warn_if(count: int, message: str, *, of: str | None = None) -> None:
    """Warns with ``message``, where ``{n}`` stands for ``count``, if anything was counted.

    Args:
      count: Number of cases; 0 is silence.
      message: What happened to them.
      of: The file or the data they belong to, put in front.
    """
    if count:
        text = message.format(n=count)
        warnings.warn(f"{of}: {text}" if of else text, DataWarning, stacklevel=3)


class Note(NamedTuple):
    """Something to warn of; ``{n}`` in the text stands for the count."""

    n_cases: int
    text: str
