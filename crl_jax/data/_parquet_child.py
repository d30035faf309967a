"""Decodes a Parquet file in a process of its own, see :mod:`crl_jax.data._parquet`.

``python _parquet_child.py FILE`` writes the names of the columns as a line of JSON, and reads the
names that are wanted as JSON; nothing wanted is the end. It writes these columns as Arrow streams
of ``ROWS`` rows each, with its length before each, and a length of 0 at the end. It exits with
``REFUSED`` where polars raises an error, which it writes to the standard error.
"""

import io
import json
import struct
import sys

REFUSED = 3
LENGTH = struct.Struct("<q")
# Enough for the work on each to outweigh its start, and 100 MB at most.
ROWS = 1 << 21


def main(path: str) -> int:
    """Writes what is asked for to the standard output, and returns the exit status."""
    import polars as pl

    try:
        # "*", "?" and "[" in the path are no pattern.
        table = pl.scan_parquet(path, glob=False)
        sys.stdout.write(json.dumps(table.collect_schema().names()) + "\n")
        sys.stdout.flush()
        if wanted := sys.stdin.read():
            table = table.select(json.loads(wanted))
            n_rows = table.select(pl.len()).collect().item()
            for start in range(0, n_rows, ROWS):
                _write(table.slice(start, ROWS).collect())
            sys.stdout.buffer.write(LENGTH.pack(0))
    except (pl.exceptions.PolarsError, OSError) as error:
        sys.stderr.write(str(error))
        return REFUSED
    return 0


def _write(frame) -> None:
    stream = io.BytesIO()
    frame.write_ipc_stream(stream)
    sys.stdout.buffer.write(LENGTH.pack(stream.tell()))
    sys.stdout.buffer.write(stream.getbuffer())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
