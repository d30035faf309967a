"""Sweeps: which numbers are tried, and with how many seeds."""

from ._config import SCHEMA, Config
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
    """The values of a configuration's sweep by name, see :meth:`Schema.sweep`."""
    return SCHEMA.sweep(config.protocol.sweep, config)
