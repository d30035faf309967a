"""What a bad argument raises: its own message, or that of a type checker that saw it first."""

import pytest
from jaxtyping import TypeCheckError


def refused(name, message=""):
    """``pytest.raises`` of an error that names the argument, and says ``message`` if it is ours."""
    of_checker = f"whilst typechecking parameter '{name}'"
    return pytest.raises((ValueError, TypeCheckError), match=f"`{name}`{message}|{of_checker}")
