"""Tests of benchmarks.targets: HLO parser, limits, and the command without compilers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from benchmarks._report import read_csv, write_csv
from benchmarks.targets import __main__ as command
from benchmarks.targets import (
    _compile,
    _devices,
    _hlo,
    _limits,
    _programs,
    _registry,
    _schedule,
)

LOOP = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%gathering (p0: f32[16384,64], p1: s32[32,1]) -> f32[32,64] {
  %p0 = f32[16384,64]{1,0} parameter(0)
  %p1 = s32[32,1]{1,0} parameter(1)
  ROOT %gather.1 = f32[32,64]{1,0} gather(%p0, %p1), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,64}
}

%body (state: (s32[], f32[16384,64], s32[32,1], f32[32,64])) -> (s32[], f32[16384,64], s32[32,1], f32[32,64]) {
  %state = (s32[], f32[16384,64]{1,0}, /*index=2*/s32[32,1]{1,0}, f32[32,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %table = f32[16384,64]{1,0} get-tuple-element(%state), index=1
  %ids = s32[32,1]{1,0} get-tuple-element(%state), index=2
  %rows = f32[32,64]{1,0} fusion(%table, %ids), kind=kLoop, calls=%gathering, backend_config={"estimated_cycles":"250"}
  %scatter.1 = f32[16384,64]{1,0} scatter(%table, %ids, %rows), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=%add
  ROOT %next = (s32[], f32[16384,64]{1,0}, s32[32,1]{1,0}, f32[32,64]{1,0}) tuple(%i, %scatter.1, %ids, %rows)
}

%condition (state: (s32[], f32[16384,64], s32[32,1], f32[32,64])) -> pred[] {
  %limit = s32[] constant(7)
  %state = (s32[], f32[16384,64]{1,0}, s32[32,1]{1,0}, f32[32,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

ENTRY %main (start: (s32[], f32[16384,64], s32[32,1], f32[32,64])) -> f32[16384,64] {
  %start = (s32[], f32[16384,64]{1,0}, s32[32,1]{1,0}, f32[32,64]{1,0}) parameter(0)
  %loop = (s32[], f32[16384,64]{1,0}, s32[32,1]{1,0}, f32[32,64]{1,0}) while(%start), condition=%condition, body=%bodyCONFIG
  ROOT %result = f32[16384,64]{1,0} get-tuple-element(%loop), index=1
}
"""  # noqa: E501
ROWS = 32 * 64 * 4


def counts(*lines, before=""):
    """Returns counts of a module with these lines in its entry, which has parameters x and ids."""
    body = "\n".join(f"  {line}" for line in lines)
    return _hlo.Module(
        f"HloModule m\n\n{before}\nENTRY %main (x: f32[1048576,4], ids: s32[8,1]) -> f32[] {{\n"
        "  %x = f32[1048576,4]{1,0} parameter(0)\n  %ids = s32[8,1]{1,0} parameter(1)\n"
        f"{body}\n}}\n"
    ).counts()


@pytest.mark.parametrize("config", ["", ', backend_config={"known_trip_count":{"n":"7"}}'])
def test_loop_operations_are_counted_per_iteration(config):
    found = _hlo.Module(LOOP.replace("CONFIG", config)).counts()
    assert found["kernels"] == 7 * 3  # a fusion, a scatter and the comparison
    assert found["cycles"] == 7 * 250
    assert found["gathered"] == found["scattered"] == 7 * 32
    assert found["table_gathers"] == found["open_loops"] == 0


def test_gather_and_scatter_traffic_counts_only_slices():
    found = _hlo.Module(LOOP.replace("CONFIG", "")).counts()
    ids, comparison = 32 * 4, 4 + 4 + 1
    gather = ROWS + ids + ROWS
    scatter = ids + ROWS + 2 * ROWS  # reads indices and updates; reads and writes the rows
    assert found["traffic"] == 7 * (gather + scatter + comparison)


def test_bounded_traffic_has_minimum_per_kernel():
    text, floor = LOOP.replace("CONFIG", ""), 3 * ROWS
    found = _hlo.Module(text, floor).counts()
    assert found["bounded"] == 7 * (floor + floor + 32 * 4 + 3 * ROWS)
    assert _hlo.Module(text).counts()["bounded"] == found["traffic"]


def test_data_dependent_loop_is_counted_once():
    text = LOOP.replace("CONFIG", "").replace("constant(7)", "parameter(1)")
    found = _hlo.Module(text).counts()
    assert (found["open_loops"], found["scattered"]) == (1, 32)


def test_loop_bound_is_found_in_fusion():
    inner = (
        "%compared (j: s32[]) -> pred[] {\n  %j = s32[] parameter(0)\n"
        "  %limit = s32[] constant(5)\n"
        "  ROOT %less = pred[] compare(%j, %limit), direction=LT\n}\n\n"
    )
    text = LOOP.replace("CONFIG", "").replace("  %limit = s32[] constant(7)\n", "")
    text = text.replace("compare(%i, %limit), direction=LT", "fusion(%i), calls=%compared")
    head, body = text.split("\n\n", 1)
    assert _hlo.Module(f"{head}\n\n{inner}{body}").counts()["scattered"] == 5 * 32


@pytest.mark.parametrize(("n", "whole"), [(8, 0), (2**20, 1)])
def test_whole_table_gathers_are_counted(n, whole):
    found = counts(
        f"ROOT %g = f32[{n},4]{{1,0}} gather(%x, %ids), offset_dims={{1}}, slice_sizes={{1,4}}"
    )
    assert (found["gathered"], found["table_gathers"]) == (n, whole)


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("ROOT %r = f32[64]{0} all-reduce(%ids), to_apply=%add", "all-reduce", 256),
        (
            "%r = (f32[8]{0}, f32[64]{0}) all-gather-start(%ids), dimensions={0}\n"
            "  ROOT %d = f32[64]{0} all-gather-done(%r)",
            "all-gather",
            256,
        ),
        ("ROOT %r = bf16[64]{0} reduce-scatter(%ids), dimensions={0}", "reduce-scatter", 128),
        (
            "ROOT %r = (f32[8]{0}, f32[8]{0}, u32[]) collective-permute-start(%ids)",
            "collective-permute",
            32,
        ),
    ],
)
def test_collectives_are_counted_with_result_bytes(line, kind, size):
    found = counts(line)
    assert (found["collectives"], found["collective_bytes"]) == (1, size)
    assert found[f"{kind}_bytes"] == size
    assert found["traffic"] == 0
    row = _compile.per_step(found, 1)
    assert (row["collective_kinds"], row["collective_mib"]) == (kind, size / 2**20)


def test_counts_sorts_float64_and_host_transfers():
    found = counts(
        "%s = (f32[1048576,4]{1,0}, s32[8,1]{1,0}) sort(%x, %ids), dimensions={1}, to_apply=%less",
        '%t = f32[4]{0} custom-call(%x), custom_call_target="__cub$DeviceRadixSort"',
        "%d = f64[8]{0} convert(%ids)",
        "%o = token[] outfeed(%d, %ids)",
        'ROOT %c = f32[] custom-call(%d), custom_call_target="xla_ffi_python_gpu_callback"',
    )
    assert (found["sorted"], found["float64"], found["host"]) == (2 * 2**22, 1, 2)


def test_conditional_counts_larger_branch():
    branches = (
        "%few (a: f32[8]) -> f32[8] {\n  %a = f32[8]{0} parameter(0)\n"
        "  ROOT %n = f32[8]{0} negate(%a)\n}\n\n"
        "%many (b: f32[8]) -> f32[8] {\n  %b = f32[8]{0} parameter(0)\n"
        "  %m = f32[8]{0} negate(%b)\n  ROOT %k = f32[8]{0} copy(%m)\n}\n"
    )
    for line in (
        "ROOT %c = f32[8]{0} conditional(%ids, %x, %x), branch_computations={%few, %many}",
        "ROOT %c = f32[8]{0} conditional(%ids, %x, %x), true_computation=%many, "
        "false_computation=%few",
    ):
        assert counts(line, before=branches)["kernels"] == 2


def test_vector_memory_arrays_cause_no_traffic():
    found = counts(
        "%near = f32[1024]{0:T(1024)S(1)} broadcast(%ids)",
        "ROOT %far = f32[1024]{0:T(1024)} copy(%near)",
    )
    assert (found["traffic"], found["copied"]) == (8 * 4 + 4096, 4096)


SCHEDULE = """\
LB: loop body
= control target key end

     0   :  { %s1 = smov 0 }
   0x1 LB: > { %s2 = sadd.s32 1, %s3 /* iteration index, stage = 0 */ }
   0x2   : > { %4 = sbr.rel (%p5) target = $region8 }
   0x3   :  {} /* End region 7 */
   0x4 LB: >> { %v6 = vld [vmem:[%s7] sm:$0xff] }
   0x5   : >> { %p8 = scmp.ge.s32.totalorder %s9, 8 /* loop exit test */ }
   0x6 LB: >> { %v10 = vld [vmem:[%s11] sm:$0xff] }
   0x7   : >> { %p12 = scmp.ge.s32.totalorder %s13, %s14 /* loop exit test */ }
   0x8   : > { %p15 = scmp.ge.s32.totalorder %s16, 34 /* loop exit test */ }
   0x9   :  { %17 = sbr.rel (!%p15) target = $region2 }
"""


def test_schedule_bundles_are_counted_per_iteration():
    # 32 blocks of 4 bundles, of an inner loop of 2 bundles with 8 iterations, and of one with a
    # data-dependent end.
    assert _schedule.cycles(SCHEDULE.splitlines()) == 2 + 32 * (4 + 8 * 2 + 2)


def test_outermost_loop_may_lack_depth_mark():
    text = SCHEDULE.replace("0x1 LB: > {", "0x1 LB:  {")
    assert _schedule.cycles(text.splitlines()) == _schedule.cycles(SCHEDULE.splitlines())


def test_schedules_are_matched_to_module_instructions(tmp_path):
    (tmp_path / "17-fusion.3-01-final_bundles.txt").write_text(SCHEDULE)
    (tmp_path / "17-fusion.3-00-schedule-analysis_final_bundles.txt").write_text("other")
    schedule = _schedule.pop_cycles(tmp_path)
    assert schedule == {"fusion.3": 706}
    assert not list(tmp_path.iterdir())
    text = LOOP.replace("CONFIG", "")
    assert _hlo.Module(text).counts()["scheduled"] == 0
    assert _hlo.Module(text, schedule={"rows": 100}).counts()["scheduled"] == 700


def test_rejects_text_without_entry():
    with raises(ValueError, match="`text` must be an HLO module with an entry"):
        _hlo.Module("HloModule nothing\n")


@pytest.mark.parametrize(
    ("text", "size"),
    [("f32[2,3]{1,0}", 24), ("pred[5]", 5), ("s4[8]", 4), ("f8e4m3fn[8]", 8), ("token[]", 0),
     ("(bf16[4]{0:T(128)(2,1)}, u32[])", 12), ("c64[2]", 16)],
)  # fmt: skip
def test_shape_sizes_in_bytes(text, size):
    assert sum(shape.bytes for shape in _hlo.parse_shapes(text)) == size


def test_counts_operations_of_compiled_program():
    def function(table, ids):
        def step(total, i):
            return total + table[ids[i]].sum(0), jnp.sort(total)

        return jax.lax.scan(step, jnp.zeros(8), jnp.arange(50))

    table, ids = jnp.ones((1000, 8)), jnp.zeros((50, 16), jnp.int32)
    found = _hlo.Module(jax.jit(function).lower(table, ids).compile().as_text()).counts()
    assert (found["gathered"], found["sorted"]) == (50 * 16, 50 * 8)
    assert found["kernels"] >= 50
    assert found["open_loops"] == found["float64"] == found["collectives"] == 0


ROW = {
    "program": "p", "target": "t4", "batch": 1024, "error": "", "fits": "yes", "need_mib": 100.0,
    "kernels": 50, "mcycles": "", "scheduled_mcycles": "", "collective_mib": 1.0,
    "table_gathers": 1, "float64": 0, "host": 0, "jax": "0.1", "compiler": "c 1",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"error": "ValueError: no"}, "p on t4: does not compile: ValueError: no"),
        ({"fits": "no"}, "no longer fits, needs 100 MiB"),
        ({"need_mib": 110.1}, "memory (MiB): 110.1, limit 110 (was 100)"),
        ({"kernels": 56}, "kernels per step: 56, limit 55 (was 50)"),
        ({"mcycles": 1.2}, "Mcycles per step: 1.2, limit 0 (was 0)"),
        ({"collective_mib": 1.2}, "collectives (MiB per step): 1.2, limit 1.1 (was 1)"),
        ({"table_gathers": 2}, "gathers of whole tables: 2, limit 1 (was 1)"),
        ({"float64": 1}, "operations in float64: 1, limit 0 (was 0)"),
        ({"host": 1}, "transfers to the host: 1, limit 0 (was 0)"),
        ({"program": "new"}, "new on t4: has no committed limit"),
    ],
)
def test_failures_report_exceeded_limits(change, message):
    (found,) = _limits.failures([ROW | change], [ROW])
    assert message in found


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"need_mib": 109.9, "kernels": 55},
        {"need_mib": 1.0, "table_gathers": 0},
        {"scheduled_mcycles": 1.0},  # unknown before
    ],
)
def test_failures_accept_changes_within_limits(change):
    assert _limits.failures([ROW | change], [ROW]) == []


def test_known_error_is_not_a_failure():
    known = ROW | {"error": "XlaRuntimeError: no"}
    assert _limits.failures([known], [known]) == _limits.failures([ROW], [known]) == []


@pytest.mark.parametrize(("growth", "batch"), [(1, 512), (2, 16)])
def test_largest_batch_extrapolates_from_two_sizes(growth, batch):
    rows = [{"batch": n, "need_mib": 100 + 3.0 * n**growth} for n in (4, 8)]
    assert _limits.largest_batch(rows, growth, 100 + 3.0 * batch**growth) == batch
    assert _limits.largest_batch(rows, growth, 99 + 3.0 * batch**growth) == batch // 2
    assert _limits.largest_batch(rows[:1], growth, 1e9) is None
    assert _limits.largest_batch(rows, growth, 50) is None


def test_gpu_description_has_device_properties():
    target = _devices.TARGETS["t4"]
    text = _devices.gpu_description(target.gpu, target.memory_gib)
    for line in (
        "cuda_compute_capability { major: 7 minor: 5 }", "core_count: 40",
        "memory_bandwidth: 320000000000", 'platform_name: "CUDA"', "shared_memory_per_core: 65536",
    ):  # fmt: skip
        assert line in text


@pytest.mark.parametrize(
    ("n", "axes", "sizes"),
    [
        (8, ("data",), {"data": 8, "table": 1}), (8, ("table",), {"data": 1, "table": 8}),
        (8, ("data", "table"), {"data": 4, "table": 2}),
        (64, ("data", "table"), {"data": 8, "table": 8}),
    ],
)  # fmt: skip
def test_axis_sizes_share_devices(n, axes, sizes):
    assert _compile.axis_sizes(n, axes) == sizes


def test_targets_have_minimum_number_of_programs():
    for name, target in _devices.TARGETS.items():
        single = target.n_devices == 1
        assert len(command.choose("", name, False)) >= (40 if single else 4)
        assert set(command.choose("", name, True)) < set(command.choose("", name, False))
    with pytest.raises(ValueError, match="`name` must be new"):
        _registry.program(next(iter(_registry.PROGRAMS)), _registry.Case)


@pytest.fixture
def doubled(monkeypatch):
    """A tiny program in place of all others; its state is donated."""

    def make(mesh):
        del mesh
        function = jax.jit(lambda state, x: (state + x.sum(), x), donate_argnums=0)
        state = _registry.Deferred(lambda: jnp.zeros(4))
        x = _registry.shape(3, 4)
        return _registry.Case(function, (state, x), n_steps=2, carries=True)

    programs = {"double": _registry.Program("double", make, quick=True, batch=3)}
    monkeypatch.setattr(_programs, "PROGRAMS", programs)
    return programs


def test_compiles_and_measures_program_on_local_device(doubled):
    about, compile_one = _compile.start("here")
    row = compile_one("double")
    assert row["target"] == about["target"] == f"here: {jax.devices()[0].device_kind}"
    assert row["measured_ms"] > 0
    assert row["need_mib"] > 0
    assert row["steps"] == 2
    assert "measured" in row["source"]


def test_failed_program_gives_row_with_error(doubled):
    _, compile_one = _compile.start("here")
    doubled["double"] = _registry.Program("double", lambda mesh: 1 / 0)
    row = compile_one("double")
    assert row["error"].startswith("ZeroDivisionError")
    assert row["source"]


def test_drawn_arguments_have_the_described_shapes():
    tree = {
        "x": _registry.shape(2, 3), "image": _registry.shape(4, dtype=jnp.uint8),
        "ids": np.arange(3), "later": _registry.Deferred(lambda: jnp.ones(2)), "rate": 0.5,
    }  # fmt: skip
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes, arrays = _registry.abstractify(tree, device), _registry.draw_arrays(tree)
    for name in tree.keys() - {"rate"}:
        assert (shapes[name].shape, shapes[name].dtype) == (arrays[name].shape, arrays[name].dtype)
        assert shapes[name].sharding == device
    assert shapes["rate"] == arrays["rate"] == 0.5


class FakeWorker:
    """Compiler of rows without compiling, in place of ``Worker``; every fifth call dies."""

    calls = itertools.count(1)

    def __init__(self, start, target, env):
        del start, env
        self.first = ROW | {"target": target}

    def __call__(self, name):
        if next(FakeWorker.calls) % 5 == 0:
            raise SystemExit("a process ended with status -9.")
        row = {"program": name, "compile_seconds": 1.0, "kernels": FakeWorker.kernels}
        return self.first | row | {"batch": _registry.PROGRAMS[name].batch}

    def end(self):
        pass


@pytest.fixture
def fake(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "Worker", FakeWorker)
    monkeypatch.setattr(command, "FOLDER", tmp_path)
    monkeypatch.setattr(FakeWorker, "calls", itertools.count(1))
    monkeypatch.setattr(FakeWorker, "kernels", 50, raising=False)
    return tmp_path


def test_command_writes_and_checks_limits(fake, capsys, monkeypatch):
    flags = ["--targets", "t4", "--only", "^loss/(infonce|dcl|hcl)"]
    with pytest.raises(SystemExit, match=r"stated\.csv has no limits"):
        command.main([*flags, "--check"])
    assert command.main([*flags, "--update"]) == 0
    rows = read_csv(fake / "stated.csv")
    assert [row["program"] for row in rows] == [
        "loss/infonce/1024", "loss/infonce/4096", "loss/dcl/1024", "loss/hcl/1024"
    ]  # fmt: skip
    assert list(rows[0]) == list(command.COLUMNS)
    monkeypatch.setattr(FakeWorker, "calls", itertools.count(1))
    assert command.main([*flags, "--check"]) == 0
    assert _compile.STATED in capsys.readouterr().out
    monkeypatch.setattr(FakeWorker, "calls", itertools.count(1))
    monkeypatch.setattr(FakeWorker, "kernels", 60)
    assert command.main([*flags, "--check"]) == 1
    assert "kernels per step: 60, limit 55 (was 50)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--only", "("], "--only must be a regular expression, got '('"),
        (["--only", "nosuch", "--quick", "--check"], "no program for --only 'nosuch'"),
        (["--measure", "--targets", "t4"], "omit --targets"),
        (["--update", "--out", "rows.csv"], "omit --out"),
    ],
)
def test_rejects_invalid_flags(flags, message, fake, capsys):
    write_csv(fake / "stated.csv", [ROW | {"program": "loss/dcl/1024"}])
    with pytest.raises(SystemExit) as exit_info:
        command.main(flags)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err


def test_rejects_limits_of_another_compiler(fake, capsys):
    write_csv(fake / "stated.csv", [ROW | {"program": "loss/dcl/1024", "jax": "0.2"}])
    assert command.main(["--targets", "t4", "--only", "loss/dcl", "--check"]) == 1
    assert "limits are those of [('0.2', 'c 1')]" in capsys.readouterr().out


def test_crashed_worker_loses_one_row(fake):
    path = fake / "rows.csv"
    command.main(["--targets", "t4", "--only", "^sampler", "--out", str(path)])
    rows = {row["program"]: row["error"] for row in read_csv(path)}
    assert len(rows) == 8
    # The fifth call: quick programs come first.
    assert {name for name, error in rows.items() if error} == {"sampler/ml-100k/srns"}
    assert rows["sampler/ml-100k/srns"] == "SystemExit: a process ended with status -9."


def test_update_replaces_only_compiled_programs(fake):
    write_csv(
        fake / "stated.csv",
        [ROW | {"program": f"loss/{name}/1024"} for name in ("gone", "hcl", "dcl")],
    )
    assert command.main(["--targets", "t4", "--only", "loss/dcl", "--update"]) == 0
    rows = {row["program"]: row for row in read_csv(fake / "stated.csv")}
    assert rows.keys() == {"loss/hcl/1024", "loss/dcl/1024"}
    assert rows["loss/hcl/1024"]["need_mib"] == "100"
    assert rows["loss/dcl/1024"]["compile_seconds"] == "1"


def test_no_program_starts_after_the_deadline(fake, capsys):
    command.main(["--targets", "t4", "--minutes", "0", "--only", "loss/dcl"])
    assert "t4: no time for loss/dcl/1024" in capsys.readouterr().out


def test_environment_sets_flags_per_target(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=x")
    env = _compile.process_environment("t4")
    assert env["XLA_FLAGS"].startswith("--xla_dump_to=x --xla_gpu_autotune_level=0")
    assert env["JAX_PLATFORMS"] == "cpu"
    assert "JAX_PLATFORMS" not in _compile.process_environment("here")
    assert _compile.process_environment("v5e-1")["XLA_FLAGS"] == "--xla_dump_to=x"
