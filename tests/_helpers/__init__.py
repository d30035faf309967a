"""Shared test helpers: small models and data, references, and tools to run and kill commands."""

from . import signatures as signatures  # the type checker named in pyproject.toml
