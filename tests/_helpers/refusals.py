"""Expected errors of the functions themselves, not of the run-time type checker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
from jaxtyping import TypeCheckError


@contextmanager
def unchecked() -> Iterator[None]:
    """Disables the run-time type checker."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextmanager
def raises(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """Calls ``pytest.raises`` with the run-time type checker disabled."""
    with unchecked(), pytest.raises(*args, **kwargs) as caught:  # noqa: PT010
        yield caught


def refused(name, message=""):
    """Expects an error that names the argument, followed by ``message`` if it is our own error."""
    of_checker = f"whilst typechecking parameter '{name}'"
    return raises((ValueError, TypeCheckError), match=f"`{name}`{message}|{of_checker}")
