"""What tests share: small models and data, references, and ways to run and to kill commands."""

from . import signatures as signatures  # the checker that pyproject.toml names
