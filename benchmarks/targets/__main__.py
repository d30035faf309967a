"""Programs of the library, compiled for described GPUs and TPUs without having one.

The compilers of TPUs (package libtpu) and of NVIDIA GPUs (jax-cuda12-plugin) compile for a
described device on any machine. They state the memory of a program, its kernels, loops and
collectives, and for TPUs an estimate of cycles; nothing is measured on a device. A program that
does not compile becomes a row with its error.

    pip install -e '.[targets]'
    python -m benchmarks.targets --quick --check
    python -m benchmarks.targets --update --minutes 40
    python -m benchmarks.targets --only simclr --targets h100 v5e-1
    python -m benchmarks.targets --measure --minutes 5 --out measured.csv

``--check`` compares with the committed rows of the same compiler versions, ``--update`` replaces
those that it compiles. ``--measure`` needs no description: it compiles for the default device of
this machine, reads the same figures and runs each program with random arguments.

Columns: memory in MiB, of which ``need_mib`` counts donated arguments once; per step ``kernels``,
``mcycles``, ``gathered`` and ``scattered`` slices, ``sorted`` elements, and ``traffic_mib`` of the
kernels to main memory. For TPUs, ``mcycles`` are the compiler's estimates, which exclude sorts
and custom kernels, and ``scheduled_mcycles`` the instructions that it schedules, which never wait
for memory. ``stated_ms`` is the time of this traffic at the bandwidth of the data
sheet, on GPUs at least 2 µs per kernel: an estimate for steps that are limited by memory or by
launches, too low for those limited by arithmetic, and too high for arrays that stay in a cache.
``largest_batch`` is estimated from the memory at two batch sizes. ``compile_seconds`` are those of
the processor, over all of its cores.
"""

import re
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .._processes import Worker
from .._report import RESULTS, Row, count, one_line_errors, parser, read_csv, write_csv
from ._compile import MEASURED, STATED, process_environment, shorten, start
from ._devices import LOCAL_TARGET, TARGETS
from ._limits import failures, get_key, largest_batch

COLUMNS = (
    "program", "target", "batch", "steps", "error", "arguments_mib", "temporaries_mib", "need_mib",
    "fits", "largest_batch", "kernels", "mcycles", "scheduled_mcycles", "gathered", "scattered",
    "sorted", "table_gathers", "copied_mib", "traffic_mib", "stated_ms", "measured_ms",
    "collectives", "collective_mib", "collective_kinds", "open_loops", "float64", "host",
    "compile_seconds", "jax", "compiler", "source",
)  # fmt: skip
QUICK_TARGETS = ("h100", "v5e-1", "v5e-8")
FOLDER = RESULTS / "targets"


class Table:
    """Rows that are printed and written as they come, in the order of programs and targets.

    Args:
      path: CSV file, or None.
      rows: Rows of an earlier run, which new ones replace.
    """

    def __init__(self, path: Path | None, rows: Sequence[Row] = ()):
        self.path, self.rows = path, {get_key(row): row for row in rows}
        self.new: list[Row] = []
        self._lock = threading.Lock()

    def add(self, row: Row) -> None:
        """Adds a row."""
        row = {name: row.get(name, "") for name in COLUMNS}
        with self._lock:
            self.new.append(row)
            self.rows[get_key(row)] = row
            print(format_row(row), flush=True)
            self.write()

    def write(self) -> None:
        """Writes the file, without programs that no longer exist."""
        from ._programs import PROGRAMS

        programs, targets = ({x: i for i, x in enumerate(xs)} for xs in (PROGRAMS, TARGETS))

        def position(row: Row) -> tuple[int, int]:
            return programs[row["program"]], targets.get(row["target"], -1)

        rows = [row for row in self.rows.values() if row["program"] in programs]
        if self.path:
            write_csv(self.path, sorted(rows, key=position))


def format_row(row: Row) -> str:
    """Returns a row as a line of progress."""
    start = f"{row['target'][:20]:8} {row['program']:34}"
    if row["error"]:
        return f"{start} FAILED {row['error'][:120]}"
    cost = f"{row['mcycles']:.2f} Mcycles" if row["mcycles"] else f"{row['kernels']:.1f} kernels"
    text = f"{start} {row['need_mib']:10,.1f} MiB  {cost} a step  {row['compile_seconds']:.0f} s"
    if row["measured_ms"]:
        text += f"  stated {row['stated_ms'] or 0:.4g} ms, measured {row['measured_ms']:.4g} ms"
    return text


def choose(only: str, target: str, is_quick: bool) -> list[str]:
    """Returns the programs for a target, the quick ones first."""
    from ._programs import PROGRAMS

    single = target == LOCAL_TARGET or TARGETS[target].n_devices == 1
    programs = [
        program
        for program in PROGRAMS.values()
        if re.search(only, program.name)
        and (program.quick or not is_quick)
        and (not program.axes) == single
        and (target == LOCAL_TARGET or not program.targets or target in program.targets)
    ]
    return [program.name for program in sorted(programs, key=lambda program: not program.quick)]


_start_lock = threading.Lock()  # the environment of a new process is that of this one


def run(target: str, names: Sequence[str], table: Table, deadline: float) -> None:
    """Compiles programs for a target in a separate process, which is replaced if it dies."""
    worker: Any = None
    for name in names:
        if time.monotonic() > deadline:
            print(f"{target}: no time for {name} and what follows", flush=True)
            break
        try:
            if worker is None:
                with _start_lock:
                    worker = Worker(start, target, env=process_environment(target))
            table.add(worker(name))
        except (Exception, SystemExit) as error:
            source = MEASURED if target == LOCAL_TARGET else STATED
            about = worker.first if worker else {"target": target, "source": source}
            table.add({**about, "program": name, "error": shorten(error)})
            worker = None
    if worker is not None:
        worker.end()


def estimate_batches(rows: Sequence[Row]) -> None:
    """Sets the column ``largest_batch`` of families with two batch sizes."""
    from ._programs import PROGRAMS

    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        family = PROGRAMS[row["program"]].family if row["program"] in PROGRAMS else ""
        if family and not row["error"] and row["target"] in TARGETS:
            groups.setdefault((family, row["target"]), []).append(row)
    for (_, target), group in groups.items():
        growth = PROGRAMS[group[0]["program"]].growth
        batch = largest_batch(group, growth, TARGETS[target].memory_gib * 1024)
        for row in group:
            row["largest_batch"] = batch or ""


def check(table: Table, limits: Sequence[Row]) -> int:
    """Prints violated limits; returns the exit status."""
    known = {(row["jax"], row["compiler"]) for row in limits}
    used = {(row["jax"], row["compiler"]) for row in table.new if row["jax"]}
    violations = failures(table.new, limits)
    if unknown := used - known:
        violations.append(f"limits are those of {sorted(known)}, compiled with {sorted(unknown)}")
    print(f"\n{len(table.new)} programs, {len(violations)} beyond their limits ({STATED})")
    print("\n".join(violations))
    return int(bool(violations))


@one_line_errors
def main(arguments: list[str] | None = None) -> int:
    """Compiles the chosen programs."""
    flags = parser(__doc__)
    targets_help = f"targets, by default all of {', '.join(TARGETS)}; fewer with --quick"
    flags.add_argument("--targets", nargs="+", choices=TARGETS, metavar="TARGET", help=targets_help)
    flags.add_argument("--only", default="", help="regular expression of program names")
    flags.add_argument("--quick", action="store_true", help="only the quick part")
    flags.add_argument("--check", action="store_true", help="exit with 1 if a limit is exceeded")
    flags.add_argument("--update", action="store_true", help="replace the committed rows")
    flags.add_argument("--measure", action="store_true", help="run on the device of this machine")
    flags.add_argument("--minutes", type=float, default=float("inf"),
                       help="start no program after this time")  # fmt: skip
    flags.add_argument("--jobs", type=count, default=2, help="targets compiled at a time")
    flags.add_argument("--list", action="store_true", help="print the programs and exit")
    args = flags.parse_args(arguments)
    if args.measure and args.targets:
        flags.error("--measure runs on the device of this machine; omit --targets")
    if args.update and args.out:
        flags.error("--update writes the committed file; omit --out")
    try:
        re.compile(args.only)
    except re.error as error:
        flags.error(f"--only must be a regular expression, got {args.only!r}: {error}")
    chosen = args.targets or list(QUICK_TARGETS if args.quick else TARGETS)
    chosen = [LOCAL_TARGET] if args.measure else chosen
    names = {target: choose(args.only, target, args.quick) for target in chosen}
    if not any(names.values()):
        flags.error(f"no program for --only {args.only!r} and {', '.join(chosen)}")
    if args.list:
        for target, programs in names.items():
            print(target, *programs, sep="\n  ")
        return 0
    committed = FOLDER / ("measured.csv" if args.measure else "stated.csv")
    limits = read_csv(committed)
    if args.check and not limits:
        raise SystemExit(f"{committed} has no limits; run with --update")
    table = Table(committed if args.update else args.out, limits if args.update else ())
    print(MEASURED if args.measure else STATED, flush=True)
    deadline = time.monotonic() + 60 * args.minutes
    # Compilers of TPUs take longest; with them first, the jobs end together.
    order = sorted(names, key=lambda name: name != LOCAL_TARGET and TARGETS[name].platform != "tpu")
    with ThreadPoolExecutor(args.jobs) as pool:
        for future in [pool.submit(run, each, names[each], table, deadline) for each in order]:
            future.result()
    estimate_batches(list(table.rows.values()))
    table.write()
    print(MEASURED if args.measure else STATED)
    return check(table, limits) if args.check else 0


if __name__ == "__main__":
    sys.exit(main())
