"""The script ``crl-jax``: beside the packages, as an editable install names them otherwise."""

try:
    from crl_jax_experiments.__main__ import main  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    from experiments.__main__ import main

__all__ = ["main"]
