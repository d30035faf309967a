"""Cycles of a TPU program by the schedules of its instructions.

The estimates in a module exclude sorts, custom kernels and some indexed accesses. The compiler
schedules each instruction as bundles, of which a core issues one per cycle, and writes them as
text. Their number, times the iterations of their loops, has no waiting for memory, and regions that
a condition may skip count as taken.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
_BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:\s*([> ]*)\{")
_EXIT = re.compile(r"scmp\.\w+\.s32\.totalorder %\S+, (\d+) /\* loop exit test")
# A loop over blocks of arrays has two more iterations, which only copy the first and last block.
_PIPELINED = "iteration index, stage ="


@dataclass
class _Loop:
    bundles: int = 0
    trips: int = 1
    extra: int = 0


def flags(folder: Path) -> str:
    """Returns the flags that make the TPU's compiler write its schedules to a folder.

    They belong into the environment variable ``LIBTPU_INIT_ARGS``, before the compiler is loaded.
    """
    return (
        f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
        "--xla_jf_dump_llo_pass_label_regex=final_bundles"
    )


def pop_cycles(folder: Path) -> dict[str, int]:
    """Returns the cycles of each instruction of a module, and deletes the files that state them."""
    cycles_by_name: dict[str, int] = {}
    for path in folder.iterdir():
        if name := _FILE.fullmatch(path.name):
            with path.open() as lines:
                cycles_by_name[name[1]] = cycles(lines)
        path.unlink()
    return cycles_by_name


def cycles(lines: Iterable[str]) -> int:
    """Returns the number of bundles, each times the iterations of the loops that it is in.

    A loop without a constant bound counts once.
    """
    loops = [_Loop()]  # the whole text, and the loops around a line

    def close_loops(depth: int) -> None:
        while len(loops) > depth:
            inner = loops.pop()
            loops[-1].bundles += inner.bundles * inner.trips

    for line in lines:
        if not (bundle := _BUNDLE.match(line)):
            continue
        is_empty = line.startswith("}", bundle.end())  # without the mark of its depth
        depth = len(loops) if is_empty else 1 + bundle[1].count(">")
        begins = "LB:" in line[: bundle.end()]
        if begins:
            depth = max(depth, 2)  # the first bundle of an outermost loop may be without its mark
        close_loops(depth)
        if begins:
            close_loops(depth - 1)
            loops.append(_Loop(extra=2 if _PIPELINED in line else 0))
        while len(loops) < depth:
            loops.append(_Loop())
        loops[-1].bundles += 1
        if end := _EXIT.search(line):
            loops[-1].trips = max(1, int(end[1]) - loops[-1].extra)
    close_loops(1)
    return loops[0].bundles
