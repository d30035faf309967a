"""Imports of optional packages."""

import importlib
from typing import Any


def import_optional(module: str, need: str, extra: str) -> Any:
    """Imports a module, or raises ``ImportError`` with the need and the extra that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{need}: pip install 'crl_jax[{extra}]'") from error
