"""Translation of library messages to command-line flags."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest

_ARGUMENT = re.compile(r"`(\w+)=?`")


def in_flags(message: object, flags: Mapping[str, str]) -> str:
    """Replaces arguments in backticks by the flags that set them, if there are any.

    >>> in_flags("`learning_rate` must be positive; `held_out` is else.", {"learning_rate": "--lr"})
    '--lr must be positive; `held_out` is else.'
    """
    return _ARGUMENT.sub(lambda found: flags.get(found[1], found[0]), str(message))


def given(arguments: list[str]) -> tuple[set[str], set[str]]:
    """Returns the names of the fields that the arguments fix, and of those that they sweep.

    >>> given(["--weight-decay=0", "--sweep", "tau-plus=0,0.1"])
    ({'weight_decay'}, {'tau_plus'})
    """
    fixed, swept = set(), set()
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, separator, value = argument.partition("=")
        if name == "--sweep":
            swept.add((value if separator else following).partition("=")[0].replace("-", "_"))
        elif name.startswith("--"):
            fixed.add(name[2:].replace("-", "_"))
    return fixed, swept


@contextmanager
def spoken(**words: str) -> Iterator[None]:
    """Replaces arguments in a ``ValueError`` of the body by ``words``, for those without a flag.

    An argument may have the name of an unrelated flag: ``test`` is a fraction on the command line,
    but the test set in an evaluation.
    """
    try:
        yield
    except ValueError as error:
        said = _ARGUMENT.sub(lambda found: words.get(found[1], found[0]), str(error))
        raise ValueError(said) from error
