"""Entry point of the script ``crl-jax``, which works in an editable install and from a wheel."""

try:
    from crl_jax_experiments.__main__ import main  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError:
    from experiments.__main__ import main

__all__ = ["main"]
