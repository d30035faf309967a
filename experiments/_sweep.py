"""Sweeps: which numbers are tried, and with how many seeds."""

from ._config import SWEEPABLE, Config, check_number
from ._options import ProtocolOptions


def count_search_seeds(protocol: ProtocolOptions) -> int:
    """Seeds that the search trains every point with: of a sweep --search-seeds, else all.

    Raises:
      ValueError: If --search-seeds is given without a sweep.
    """
    wanted = protocol.search_seeds
    if wanted > 1 and not protocol.sweep:
        raise ValueError(f"--search-seeds {wanted} averages over seeds what --sweep tries: add it.")
    return wanted if protocol.sweep else protocol.seeds


def parse_sweep(config: Config) -> dict[str, list[float]]:
    """Turns ``--sweep lr=1e-3,3e-3 …`` into values by name.

    Raises:
      ValueError: If a specification is not of that form, or names what cannot be swept, or a
        value is out of range.
    """
    axes: dict[str, list[float]] = {}
    for spec in config.protocol.sweep:
        name, _, values = spec.partition("=")
        name = name.replace("-", "_")
        if name not in SWEEPABLE:
            raise ValueError(f"--sweep takes one of {', '.join(SWEEPABLE)}, got {name!r}.")
        if name in axes:
            raise ValueError(f"--sweep {name} is given twice.")
        try:
            axes[name] = [float(value) for value in values.split(",")]
        except ValueError:
            raise ValueError(f"--sweep must be NAME=NUMBER,NUMBER,…, got {spec!r}.") from None
        for value in axes[name]:
            try:
                check_number(name, value, config)
            except ValueError as wanted:
                raise ValueError(
                    f"--sweep {name} must be {wanted}, got {value:g} in {spec!r}."
                ) from None
    return axes
