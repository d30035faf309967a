"""Decodes a Parquet file in a process of its own, see :mod:`crl_jax.data._parquet`.

``python _parquet_child.py FILE`` writes the names of the columns as a line of JSON, reads the names
that are wanted as JSON, and writes these columns as an Arrow stream; nothing wanted is the end.
It exits with ``REFUSED`` where polars raises an error, which it writes to the standard error.
"""

import json
import sys

REFUSED = 3


def main(path: str) -> int:
    """Writes what is asked for to the standard output, and returns the exit status."""
    import polars as pl

    try:
        # From an open file, for polars takes "*", "?" and "[" in a path for a pattern.
        with open(path, "rb") as file:
            names = list(pl.read_parquet_schema(file))
            sys.stdout.write(json.dumps(names) + "\n")
            sys.stdout.flush()
            if wanted := sys.stdin.read():
                file.seek(0)
                frame = pl.read_parquet(file, columns=json.loads(wanted))
                frame.write_ipc_stream(sys.stdout.buffer)
    except (pl.exceptions.PolarsError, OSError) as error:
        sys.stderr.write(str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
