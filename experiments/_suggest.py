"""The nearest of the names that there are, where another one came."""

import difflib
import re

_UNKNOWN = re.compile(r"one of (?P<names>[^;]+?), got ['\"](?P<given>[^'\"]+)['\"]")


def suggest(message: str) -> str:
    """A message, and if it lists names and tells which other one came, the nearest of them.

    >>> suggest("--recipe takes one of bpr, dpl, got 'bprr'.")
    "--recipe takes one of bpr, dpl, got 'bprr'. Did you mean bpr?"
    """
    found = _UNKNOWN.search(message)
    if found is None:
        return message
    near = difflib.get_close_matches(found["given"].lower(), found["names"].split(", "), n=1)
    return f"{message} Did you mean {near[0]}?" if near else message
