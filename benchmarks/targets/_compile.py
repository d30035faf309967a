"""Compiles programs in a process of one target, and reads or runs what was compiled."""

import atexit
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._report import Row
from . import _schedule
from ._devices import LOCAL_TARGET, TARGETS, Target

MIB = 2**20
STATED = "what the compiler states; not measured on a device"
MEASURED = "stated: by the compiler; measured: median of runs on this device"
BANDWIDTHS = {
    "T4": 320, "L4": 300, "A100": 1555, "H100": 3352, "H200": 4800, "TPU v5 lite": 819,
    "TPU v6 lite": 1640,
}  # fmt: skip
"""Memory bandwidth in GB/s by a part of the name of a device, according to data sheets."""
LAUNCH_SECONDS = 2e-6
"""Least time of a kernel on a GPU: in loops of small kernels, an H100 took 1.7 to 2.4 µs each."""


def start(name: str) -> tuple[Row, Callable[[str], Row]]:
    """Returns the columns of a target, and a function that compiles a program for it by name.

    Must be called in a process with the environment of the target. On the target ``here``,
    programs are also run.
    """
    import jax

    schedules = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, schedules, ignore_errors=True)
    init_args = os.environ.get("LIBTPU_INIT_ARGS", "")
    os.environ["LIBTPU_INIT_ARGS"] = f"{init_args} {_schedule.flags(schedules)}".strip()
    target, devices = (None, jax.devices()) if name == LOCAL_TARGET else _load_target(name)
    kind = devices[0].device_kind
    about: Row = {"target": name if target else f"{LOCAL_TARGET}: {kind}"}
    about |= target.compilers if target else _local_compiler(devices[0])
    speeds = [speed for part, speed in BANDWIDTHS.items() if part in kind]
    bandwidth = target.gb_per_second if target else (speeds or [0])[0]
    about["source"] = STATED if target else MEASURED

    def compile_one(program: str) -> Row:
        from ._programs import PROGRAMS

        chosen = PROGRAMS[program]
        row: Row = {"program": program, "target": about["target"], "batch": chosen.batch or ""}
        try:
            row |= _compile_row(chosen, target, devices, bandwidth, schedules)
        except Exception as error:
            row["error"] = shorten(error)
            _schedule.pop_cycles(schedules)  # those of the program that failed
        jax.clear_caches()
        return row | about

    return about, compile_one


def shorten(error: BaseException) -> str:
    """Returns the start of an error message in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def _load_target(name: str) -> tuple[Target, list[Any]]:
    target = TARGETS[name]
    return target, target.devices()


def _local_compiler(device: Any) -> dict[str, str]:
    import jax

    return {"jax": jax.__version__, "compiler": " ".join(device.client.platform_version.split())}


def _compile_row(
    program: Any, target: Target | None, devices: list[Any], bandwidth: float, schedules: Path
) -> Row:
    """Compiles a program and returns its row; runs it if there is no described target."""
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

    from ._hlo import Module
    from ._registry import abstractify, draw_arrays

    mesh, sharding = None, SingleDeviceSharding(devices[0])
    if program.axes:
        sizes = axis_sizes(len(devices), program.axes)
        mesh = Mesh(np.array(devices).reshape(*sizes.values()), tuple(sizes))
        sharding = NamedSharding(mesh, PartitionSpec())
    case = program.make(mesh)
    if target is None:
        args, kwargs = draw_arrays((case.args, case.kwargs))
    else:
        args, kwargs = abstractify((case.args, case.kwargs), sharding)
    start_time = time.process_time()
    compiled = case.function.lower(*args, **kwargs, **case.static).compile()
    seconds = time.process_time() - start_time
    row = {"steps": case.n_steps, **memory_columns(compiled.memory_analysis(), target)}
    is_gpu = devices[0].platform in ("gpu", "cuda")
    floor = int(LAUNCH_SECONDS * bandwidth * 1e9) if is_gpu else 0
    counts = Module(compiled.as_text(), floor, _schedule.pop_cycles(schedules)).counts()
    row |= per_step(counts, case.n_steps)
    row["compile_seconds"] = round(seconds, 1)
    if bandwidth:
        row["stated_ms"] = counts["bounded"] / bandwidth / 1e6 / case.n_steps
    if target is None:
        row["measured_ms"] = 1e3 * _time_calls(compiled, args, kwargs, case.carries) / case.n_steps
    return row


def axis_sizes(n: int, axes: tuple[str, ...]) -> dict[str, int]:
    """Returns the sizes of ``data`` and ``table`` on a power of two of devices.

    Two axes share the devices evenly, ``data`` with the larger part; an absent one has size 1.
    """
    if len(axes) == 1:
        return {name: n if name in axes else 1 for name in ("data", "table")}
    table = 2 ** ((n.bit_length() - 1) // 2)
    return {"data": n // table, "table": table}


def memory_columns(memory: Any, target: Target | None) -> Row:
    """Returns the columns of memory, in MiB: ``need`` counts a donated argument once."""
    arguments, temporaries = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    need = arguments + temporaries + memory.output_size_in_bytes - memory.alias_size_in_bytes
    row: Row = {
        "arguments_mib": arguments / MIB, "temporaries_mib": temporaries / MIB,
        "need_mib": need / MIB,
    }  # fmt: skip
    if target is not None:
        row["fits"] = "yes" if need <= target.memory_gib * 2**30 else "no"
    return row


def per_step(counts: Any, n_steps: int) -> Row:
    """Returns the columns of :meth:`Module.counts`, divided by the number of steps."""
    row: Row = {name: counts[name] / n_steps for name in ("kernels", "gathered", "scattered")}
    row |= {"sorted": counts["sorted"] / n_steps, "table_gathers": counts["table_gathers"]}
    for column, name in (("mcycles", "cycles"), ("scheduled_mcycles", "scheduled")):
        row[column] = counts[name] / 1e6 / n_steps if counts[name] else ""
    for name in ("traffic", "copied"):
        row[f"{name}_mib"] = counts[name] / MIB / n_steps
    row["collectives"] = counts["collectives"] / n_steps
    row["collective_mib"] = counts["collective_bytes"] / MIB / n_steps
    byte_columns = (
        name for name in counts if name.endswith("_bytes") and name != "collective_bytes"
    )
    row["collective_kinds"] = " ".join(sorted(name.removesuffix("_bytes") for name in byte_columns))
    return row | {name: counts[name] for name in ("open_loops", "float64", "host")}


def _time_calls(
    compiled: Any, args: Any, kwargs: Any, carries: bool, max_seconds: float = 2.0
) -> float:
    """Returns the median seconds of a call, over at least 3 and at most 20 groups of calls.

    Short calls are started in groups of about 20 ms, so that waiting for the device, which takes a
    tenth of a millisecond, is not measured.
    """
    import jax

    def group(n: int) -> float:
        nonlocal args
        start_time = time.perf_counter()
        result = None
        for _ in range(n):
            result = compiled(*args, **kwargs)
            args = (result[0], *args[1:]) if carries else args
        jax.block_until_ready(result)
        return (time.perf_counter() - start_time) / n

    group(1)
    n = min(100, max(1, int(0.02 / group(1))))
    times, end = [group(n)], time.perf_counter() + max_seconds
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() < end):
        times.append(group(n))
    return statistics.median(times)


def process_environment(name: str) -> dict[str, str]:
    """Returns additional environment variables of the process of a target."""
    if name == LOCAL_TARGET:
        return {"TF_CPP_MIN_LOG_LEVEL": "3"}
    env = TARGETS[name].env
    return env | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {env['XLA_FLAGS']}".strip()}
