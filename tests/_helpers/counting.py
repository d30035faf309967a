"""Contestant for tests of benchmark processes; imports only the standard library, to load fast."""

import itertools
import os
from collections.abc import Callable


def counter(start: int, variable: str) -> tuple[str, Callable[[int], int]]:
    """Returns an environment variable, and a function that counts and multiplies."""
    numbers = itertools.count(start)
    return os.environ[variable], lambda factor: factor * next(numbers)
