"""Decodes a Parquet file in a process of its own, see :mod:`crl_jax.data._parquet`.

``python _parquet_child.py FILE`` writes the names of the columns as JSON, and
``python _parquet_child.py FILE NAMES`` the columns of these names, as JSON, as an Arrow stream.
It exits with ``REFUSED`` where polars raises an error, which it writes to the standard error.
"""

import json
import sys

REFUSED = 3


def main(path: str, names: str | None = None) -> int:
    """Writes what is asked for to the standard output, and returns the exit status."""
    import polars as pl

    try:
        # From an open file, for polars takes "*", "?" and "[" in a path for a pattern.
        with open(path, "rb") as file:
            if names is None:
                sys.stdout.write(json.dumps(list(pl.read_parquet_schema(file))))
            else:
                frame = pl.read_parquet(file, columns=json.loads(names))
                frame.write_ipc_stream(sys.stdout.buffer)
    except (pl.exceptions.PolarsError, OSError) as error:
        sys.stderr.write(str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
