"""Names of the commands, which depend on the installation, and of their flags, also in messages."""

import difflib
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path

SCRIPT = "crl-jax"
NAMES = (
    "recommend", "images", "graphs", "pairs", "text", "sequences", "numerical", "calibration",
    "reproduce",
)  # fmt: skip


def program(name: str) -> str:
    """Returns the shell command: ``python -m experiments.NAME``, or ``crl-jax NAME``."""
    if Path(sys.argv[0]).stem == SCRIPT:
        return f"{SCRIPT} {name}"
    return f"python -m {__package__}.{name}"


def flag(name: str) -> str:
    """Returns the flag of a field, such as ``--weight-decay`` for ``weight_decay``."""
    return f"--{name.replace('_', '-')}"


_ARGUMENT = re.compile(r"`(\w+)=?`")


def in_flags(message: object, flags: Mapping[str, str]) -> str:
    """Replaces arguments in backticks by the flags that set them, if there are any.

    >>> in_flags("`learning_rate` must be positive; `held_out` is else.", {"learning_rate": "--lr"})
    '--lr must be positive; `held_out` is else.'
    """
    return _ARGUMENT.sub(lambda match: flags.get(match[1], match[0]), str(message))


def named_values(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Yields the field of each flag and its value, or the argument after a flag without ``=``.

    >>> list(named_values(["--weight-decay=0", "--k", "5"]))
    [('weight_decay', '0'), ('k', '5')]
    """
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        name, separator, value = argument.partition("=")
        if name.startswith("--"):
            yield name[2:].replace("-", "_"), value if separator else following


def fixed_and_swept(arguments: list[str]) -> tuple[set[str], set[str]]:
    """Returns the names of the fields that the arguments fix, and of those that they sweep.

    >>> fixed_and_swept(["--weight-decay=0", "--sweep", "tau-plus=0,0.1"])
    ({'weight_decay'}, {'tau_plus'})
    """
    fixed, swept = set(), set()
    for name, value in named_values(arguments):
        if name == "sweep":
            swept.add(value.partition("=")[0].replace("-", "_"))
        else:
            fixed.add(name)
    return fixed, swept


@contextmanager
def rename_arguments(**words: str) -> Iterator[None]:
    """Replaces arguments in a ``ValueError`` of the body by ``words``, for those without a flag.

    An argument may have the name of an unrelated flag: ``test`` is a fraction on the command line,
    but the test set in an evaluation.
    """
    try:
        yield
    except ValueError as error:
        message = _ARGUMENT.sub(lambda match: words.get(match[1], match[0]), str(error))
        raise ValueError(message) from error


_UNKNOWN = re.compile(r"one of (?P<names>[^;]+?), got ['\"](?P<given>[^'\"]+)['\"]")


def suggest(message: str) -> str:
    """Appends the closest of the names that a message lists to the one it received, if any.

    >>> suggest("--recipe takes one of bpr, dpl, got 'bprr'.")
    "--recipe takes one of bpr, dpl, got 'bprr'. Did you mean bpr?"
    """
    match = _UNKNOWN.search(message)
    if match is None:
        return message
    closest = difflib.get_close_matches(match["given"].lower(), match["names"].split(", "), n=1)
    return f"{message} Did you mean {closest[0]}?" if closest else message
