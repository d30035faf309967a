"""Suggestions for misspelled names."""

import difflib
import re

_UNKNOWN = re.compile(r"one of (?P<names>[^;]+?), got ['\"](?P<given>[^'\"]+)['\"]")


def suggest(message: str) -> str:
    """Appends the closest of the names that a message lists to the one it received, if any.

    >>> suggest("--recipe takes one of bpr, dpl, got 'bprr'.")
    "--recipe takes one of bpr, dpl, got 'bprr'. Did you mean bpr?"
    """
    found = _UNKNOWN.search(message)
    if found is None:
        return message
    near = difflib.get_close_matches(found["given"].lower(), found["names"].split(", "), n=1)
    return f"{message} Did you mean {near[0]}?" if near else message
