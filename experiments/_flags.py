"""The library's messages in the words of the command line."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest

_ARGUMENT = re.compile(r"`(\w+)=?`")


def in_flags(message: object, flags: Mapping[str, str]) -> str:
    """A message whose arguments in backticks are flags, where there is one that sets them.

    >>> in_flags("`learning_rate` must be positive; `held_out` is else.", {"learning_rate": "--lr"})
    '--lr must be positive; `held_out` is else.'
    """
    return _ARGUMENT.sub(lambda found: flags.get(found[1], found[0]), str(message))


def given(arguments: list[str]) -> tuple[set[str], set[str]]:
    """What the arguments fix, and what they sweep, by the names of the fields.

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
    """Says ``words`` for arguments in the ``ValueError`` of the body: those that no flag sets.

    An argument may have a flag's name and be something else: ``test`` is a share on the command
    line, and to an evaluation it is the test part.
    """
    try:
        yield
    except ValueError as error:
        said = _ARGUMENT.sub(lambda found: words.get(found[1], found[0]), str(error))
        raise ValueError(said) from error
