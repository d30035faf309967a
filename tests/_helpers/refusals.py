"""Errors that tests expect, raised by the function and not by the run-time checker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jaxtyping
import pytest
from jaxtyping import TypeCheckError


@contextmanager
def unchecked() -> Iterator[None]:
    """Disables the checker of signatures."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)


@contextmanager
def raises(*args: Any, **kwargs: Any) -> Iterator[Any]:
    """``pytest.raises`` of an error of the function itself."""
    with unchecked(), pytest.raises(*args, **kwargs) as caught:  # noqa: PT010
        yield caught


def refused(name, message=""):
    """``raises`` of an error that names the argument, and says ``message`` if it is ours."""
    of_checker = f"whilst typechecking parameter '{name}'"
    return raises((ValueError, TypeCheckError), match=f"`{name}`{message}|{of_checker}")
