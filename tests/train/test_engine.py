"""The training engine with a custom task and loss."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.platforms import forms_for
from _helpers.refusals import raises
from jax.sharding import AxisType, Mesh

from crl_jax import train
from crl_jax._mesh import batch_mesh
from crl_jax.train import (
    ArrayBatches,
    HostBatches,
    Optimizer,
    RowOptimizer,
    TrainConfig,
    _scan,
    fit,
)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Line(train.Task):
    """Least squares of a straight line, which counts its updates and the examples it has seen."""

    slope: Any = 0.0
    noise: Any = 0.0

    def init(self, key):
        params = {"slope": jnp.asarray(self.slope, jnp.float32), "offset": jnp.float32(0)}
        return params, {
            "updates": jnp.int32(0),
            "seen": jnp.float32(0),
            "key": train.stream(key, "model_state"),
        }

    def batch(self, key, examples):
        x, y = examples.data
        return x, y + self.noise * jax.random.normal(key, y.shape)

    def loss(self, params, model_state, batch, ctx):
        x, y = batch
        x = x.astype(params["slope"].dtype)
        error = (params["slope"] * x + params["offset"]).astype(jnp.float32) - y
        square = jnp.sum(jnp.where(ctx.where, error**2, 0)) / ctx.n
        key = jax.random.split(model_state["key"], 1)[0]
        model_state = {**model_state, "seen": model_state["seen"] + ctx.n, "key": key}
        worst = jnp.max(jnp.where(ctx.where, jnp.abs(error), 0))
        return square, (model_state, {"worst": worst})

    def after_update(self, params, model_state):
        return {**model_state, "updates": model_state["updates"] + 1}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class VectorLine(Line):
    """Variant of `Line` with parameters of shape (1,)."""

    def init(self, key):
        params, model_state = super().init(key)
        return {name: value[None] for name, value in params.items()}, model_state


@dataclasses.dataclass(frozen=True)
class Unregistered(train.Hook):
    """A hook that is not a pytree."""


N = 50
X = np.linspace(-1, 1, N).astype(np.float32)
DATA = (jnp.asarray(X), jnp.asarray(3 * X + 1))
SGD = Optimizer(0.1, rule=train.sgd_l2)


def line(**changes):
    settings = {
        "task": Line(), "optimizer": SGD, "batches": ArrayBatches(DATA), "config": TrainConfig(8),
        "epochs": 5, **changes,
    }  # fmt: skip
    return fit(**settings)


def keys_as_bits(model_state):
    return {**model_state, "key": jax.random.key_data(model_state["key"])}


def reference_steps(batches, learning_rate):
    """Gradient descent on given batches of examples, in float64."""
    slope = offset = 0.0
    for rows in batches:
        error = slope * X[rows] + offset - (3 * X[rows] + 1)
        slope, offset = (
            slope - learning_rate * np.mean(2 * error * X[rows]),
            offset - learning_rate * np.mean(2 * error),
        )
    return slope, offset


def test_trains_custom_task():
    fitted = line(epochs=60)
    np.testing.assert_allclose(fitted.get_params()["slope"], 3, atol=1e-3)
    np.testing.assert_allclose(fitted.get_params()["offset"], 1, atol=1e-3)
    assert fitted.history[-1]["loss"][0] < 1e-5 < fitted.history[0]["loss"][0]
    assert fitted.history[0]["worst"][0] > fitted.history[-1]["worst"][0]
    assert fitted.state.model_state["updates"][0] == 60 * 7  # 50 examples in batches of 8
    assert fitted.state.model_state["seen"][0] == 60 * 50


def test_host_batches_match_reference_steps():
    """The last batch is partial; the order is that of the iterator."""
    cuts = [np.arange(i, min(i + 8, N)) for i in range(0, N, 8)]
    batches = HostBatches(lambda epoch: ((X[rows], (3 * X + 1)[rows]) for rows in cuts), chunk=3)
    fitted = line(batches=batches, epochs=2)
    slope, offset = reference_steps(cuts * 2, 0.1)
    np.testing.assert_allclose(fitted.get_params()["slope"], slope, rtol=1e-5)
    np.testing.assert_allclose(fitted.get_params()["offset"], offset, rtol=1e-5)
    assert fitted.state.model_state["seen"][0] == 2 * N


def test_host_arrays_are_visited_once_per_epoch():
    data = {"x": X, "y": (3 * X + 1,)}
    batches = HostBatches.from_arrays(data, 8, seed=1)
    assert batches.n == N
    orders = []
    for epoch in (0, 1, 0):
        parts = list(batches.epoch_of(epoch))
        assert [len(part["x"]) for part in parts] == [8] * (N // 8) + [N % 8] * (N % 8 > 0)
        x, y = (np.concatenate(leaves) for leaves in zip(*((p["x"], p["y"][0]) for p in parts)))
        np.testing.assert_array_equal(y, 3 * x + 1)
        np.testing.assert_array_equal(np.sort(x), np.sort(X))
        orders.append(x)
    assert np.array_equal(orders[0], orders[2])
    assert not np.array_equal(orders[0], orders[1])
    with raises(ValueError, match="`batch_size` must be a multiple of 1, .* got 0"):
        HostBatches.from_arrays(data, 0)
    with raises(ValueError, match="`seed` must be at least 0, got -1"):
        HostBatches.from_arrays(data, 8, seed=-1)
    with raises(ValueError, match=r"`patience` must lie in \[1, inf\], got 0"):
        train.EarlyStopping("x", 0)


@pytest.mark.parametrize("sizes", [(9,), (8, 0), ()])
def test_rejects_invalid_host_batches(sizes):
    batches = HostBatches(lambda epoch: ((X[:size], X[:size]) for size in sizes))
    with raises(ValueError, match="must hold"):
        line(batches=batches, epochs=1)


def test_accumulated_gradients_match_large_batch():
    """Three gradients of 8, 8 and 8 equal one of 24; the last update has only 2 examples."""
    parts, whole = line(config=TrainConfig(8, accumulate=3)), line(config=TrainConfig(24))
    for name, value in whole.get_params().items():
        np.testing.assert_allclose(parts.get_params()[name], value, rtol=1e-5)
    np.testing.assert_allclose(
        parts.history[-1]["loss"][0], whole.history[-1]["loss"][0], rtol=1e-5
    )
    assert parts.state.model_state["updates"][0] == whole.state.model_state["updates"][0] == 15


def test_bfloat16_loss_updates_float32_parameters():
    config = TrainConfig(8, compute_dtype="bfloat16")
    half, full = line(task=VectorLine(), config=config), line()
    assert half.get_params()["slope"].dtype == jnp.float32
    assert half.get_params()["slope"] != full.get_params()["slope"]
    np.testing.assert_allclose(half.get_params()["slope"], [full.get_params()["slope"]], rtol=0.02)
    # Scalars are not cast.
    assert line(config=config).get_params()["slope"] == full.get_params()["slope"]


@pytest.mark.parametrize("dtype", ["int8", "half-precision"])
def test_rejects_non_floating_compute_dtype(dtype):
    with raises(ValueError, match=f"`compute_dtype` must be a floating dtype, .* got '{dtype}'"):
        TrainConfig(8, compute_dtype=dtype)


def test_multiple_devices_match_single_device():
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    one, many = line(), line(config=TrainConfig(8, mesh=mesh))
    for name, value in one.get_params().items():
        np.testing.assert_allclose(many.get_params()[name], value, rtol=1e-6)
    with raises(ValueError, match="`batch_size` must be a multiple of the 8 devices"):
        line(config=TrainConfig(9, mesh=mesh))
    for axes in (("x",), ("data", "x")):
        devices = np.array(jax.devices()[:8]).reshape(8, *[1] * (len(axes) - 1))
        with raises(ValueError, match=r"`mesh` must have an axis data.*table"):
            line(config=TrainConfig(8, mesh=Mesh(devices, axes)))
    explicit_mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with raises(ValueError, match=r"`mesh` must have axes of type Auto.*got axes Explicit"):
        line(config=TrainConfig(8, mesh=explicit_mesh))


def test_loss_is_traced_with_mesh_in_context():
    """Gradients of convolutions depend on it."""
    seen = []

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class MeshRecorder(Line):
        def loss(self, *args):
            seen.append(batch_mesh(8))
            return super().loss(*args)

    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    for plan, known in ((TrainConfig(8, mesh=mesh), mesh.abstract_mesh), (TrainConfig(8), None)):
        seen.clear()
        line(task=MeshRecorder(), config=plan)
        assert set(seen) == {known}


@pytest.mark.parametrize("batched", [True, False])
def test_sweeps_leaves_of_task_and_optimizer(batched, monkeypatch):
    monkeypatch.setattr(train._fit, "fits_batched", lambda *_: batched)
    rates, slopes = [0.1, 0.05], [0.0, 2.0]
    sweep = {"optimizer.learning_rate": rates, "task.slope": slopes}
    together = line(sweep=sweep, seeds=[0, 7])
    for run, (rate, slope, seed) in enumerate(zip(rates, slopes, [0, 7], strict=True)):
        alone = line(
            task=Line(slope), optimizer=dataclasses.replace(SGD, learning_rate=rate), seeds=seed
        )
        for name, value in alone.get_params().items():
            np.testing.assert_allclose(together.get_params(run)[name], value, rtol=1e-5)
    with raises(ValueError, match=r"`sweep` must name leaves.*got 'scale'"):
        line(sweep={"task.scale": [1.0, 2.0]})
    with raises(ValueError, match="`learning_rate` must lie in"):
        line(sweep={"optimizer.learning_rate": [1.0, -2.0]})


def test_large_runs_are_not_batched():
    wide = Line(slope=jnp.zeros(2**17 - 1))
    runs = {"seed": jnp.arange(3, dtype=jnp.uint32)}
    for task, want in ((Line(), True), (wide, True), (Line(slope=jnp.zeros(2**18)), False)):
        state = jax.vmap(lambda seed, task=task: train.initial_state(task, SGD, seed))(runs["seed"])
        states = train._epoch.RunStates(state, (), jnp.zeros(3, bool))
        assert train._epoch.fits_batched(states) == want
        single = jax.tree.map(lambda leaf: leaf[:1], states)
        assert train._epoch.fits_batched(single)  # a single run is not batched in any case


def test_runs_with_row_updates_are_batched_only_if_copies_are_large(
    monkeypatch,
):
    """A program of several runs would map them sequentially."""
    state = jax.vmap(lambda seed: train.initial_state(Line(), SGD, seed))(
        jnp.arange(3, dtype=jnp.uint32)
    )
    states = train._epoch.RunStates(state, (), jnp.zeros(3, bool))
    assert not train._epoch.fits_batched(states, is_row=True)
    monkeypatch.setattr(train._epoch, "_COPIED", 5)  # three runs of two parameters
    assert train._epoch.fits_batched(states, is_row=True)


def test_threaded_runs_share_program_of_single_run(monkeypatch):
    def programs():
        return sum(each._cache_size() for each in train._epoch.run_epochs._programs.values())

    monkeypatch.setattr(train._fit, "fits_batched", lambda state, _: len(state.stopped) == 1)
    before = programs()
    line(sweep={"optimizer.learning_rate": [0.1, 0.05, 0.02]}, epochs=4)
    line(sweep={"optimizer.learning_rate": [0.05]}, epochs=8)
    assert programs() == before + 1


def test_threaded_runs_use_jax_settings_of_caller(monkeypatch):
    """Threads execute them, and type promotion is a setting of each thread."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Promoting(Line):
        def loss(self, *args):
            value, *rest = super().loss(*args)
            return value * jnp.int32(1), *rest

    monkeypatch.setattr(train._fit, "fits_batched", lambda *_: False)
    sweep = {"optimizer.learning_rate": [0.1, 0.05, 0.02]}
    with jax.numpy_dtype_promotion("standard"):
        found = line(task=Promoting(), sweep=sweep)
    np.testing.assert_array_equal(found.params["slope"], line(sweep=sweep).params["slope"])


def test_equal_call_does_not_recompile(compiled):
    line(epochs=3)
    compiled.clear()
    line(epochs=4, task=Line(0.5), seeds=3)
    line(optimizer=Optimizer(0.2, rule=train.sgd_l2), batches=ArrayBatches(DATA[::-1]))
    assert compiled == []
    line(config=TrainConfig(7))
    assert compiled  # the listener works


class Weak(Line):
    """A task with weakly typed initial values, as many initialisers return them."""

    def init(self, key):
        return {"slope": jnp.asarray(0.0), "offset": jnp.full((), 0.0)}, super().init(key)[1]


def test_second_epoch_does_not_recompile(compiled):
    after_first = []

    def see(entry):
        if entry["epoch"] == 1:
            compiled.clear()
        after_first.append(len(compiled))

    jax.tree_util.register_dataclass(Weak)
    line(task=Weak(), optimizer=Optimizer(0.1), epochs=4, hooks=[train.Progress(see)])
    assert after_first == [0] * 4


@pytest.mark.usefixtures("all_optimisations")
def test_compiler_options_do_not_change_small_training():
    """Larger trainings may differ: longer vectors are summed in another order."""
    plan, batches = TrainConfig(8), ArrayBatches(DATA)

    def epoch(state, number):
        steps = batches.epoch(jax.random.fold_in(state.key, number), plan)
        return train.run_steps(Line(), SGD, state, steps, config=plan, data=batches.data)[0]

    def run_training(step):
        state = jax.tree.map(jnp.copy, train.initial_state(Line(), SGD, 0))
        for number in range(5):
            given, state = state, step(state, number)
        return given, state

    given, ours = run_training(train.jit(epoch, donate_argnums=0))
    _, plain = run_training(jax.jit(epoch))
    jax.tree.map(np.testing.assert_array_equal, ours.params, plain.params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given.params))  # jit's own options


@pytest.mark.parametrize("kind", ["adam, warmed up", "optax's own schedule"])
def test_learning_rate_follows_schedule_at_each_step(kind):
    """A loss whose gradient is 1: the parameter accumulates the learning rates."""

    class Slope(Line):
        def loss(self, params, model_state, batch, ctx):
            return params["slope"], (model_state, {})

    jax.tree_util.register_dataclass(Slope)
    steps = np.arange(14)
    if kind == "adam, warmed up":
        optimizer = Optimizer(0.1, decay=0.2, warm_up=0.5, rule=train.sgd_l2, schedule=train.cosine)
        rate = 0.1 * (0.2 + 0.8 * np.cos(np.pi * steps / 14 / 2) ** 2) * np.minimum(steps / 7, 1)
    else:
        schedule = optax.warmup_cosine_decay_schedule(0.0, 0.1, 4, 14)
        optimizer, rate = optax.sgd(schedule), np.array([schedule(i) for i in steps])
    fitted = line(task=Slope(), optimizer=optimizer, epochs=2)
    np.testing.assert_allclose(fitted.get_params()["slope"], -rate.sum(), rtol=1e-5)


@pytest.mark.parametrize("host", [False, True])
def test_resumes_parameters_and_states_after_kill(tmp_path, host):
    batches = ArrayBatches(DATA)
    if host:
        batches = HostBatches(lambda epoch: [(X[epoch::9], X[epoch::9])])
    settings = {"task": Line(noise=0.3), "batches": batches, "seeds": [1, 2], "epochs": 6}
    whole = line(**settings)
    save = train.Checkpoint(tmp_path / "state.npz", 0.0)
    with raises(Killed):
        line(**settings, hooks=[save, train.Progress(kill_at(3))])
    resumed = line(**settings, hooks=[train.Checkpoint(tmp_path / "state.npz")])
    jax.tree.map(
        np.testing.assert_array_equal,
        *(
            (fitted.params, fitted.state.opt_state, keys_as_bits(fitted.state.model_state))
            for fitted in (whole, resumed)
        ),
    )
    assert [e["epoch"] for e in resumed.history] == [1, 2, 3, 4, 5, 6]
    for change in ({"task": Line(noise=0.4)}, {"seeds": [1, 3]}, {"optimizer": Optimizer(0.2)}):
        with raises(ValueError, match=r"another training|expected the arrays"):
            line(**{**settings, **change}, hooks=[train.Checkpoint(tmp_path / "state.npz")])


def test_checkpoint_distinguishes_functions_by_computation(tmp_path):
    """Functions are static fields, leaves, and fields of the optimizer."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Scaled(Line):
        factor: Any = dataclasses.field(default=None, metadata={"static": True})
        noise_of: Any = None

        def batch(self, key, examples):
            x, y = super().batch(key, examples)
            return x, y + self.noise_of(y)

        def loss(self, *args):
            loss, rest = super().loss(*args)
            return self.factor(loss), rest

    def run(factor=1.0, offset=1.0, slope=1.0):
        task = Scaled(
            factor=lambda x: factor * x,
            noise_of=jax.tree_util.Partial(lambda y: jnp.full(y.shape, offset)),
        )  # fmt: skip
        optimizer = Optimizer(0.1, rule=train.sgd_l2, schedule=lambda p, d: 1 - slope * p)
        hooks = [train.Checkpoint(tmp_path / "state.npz")]
        return line(task=task, optimizer=optimizer, epochs=1, hooks=hooks)

    run()
    run()
    for change in ({"factor": 2.0}, {"offset": 2.0}, {"slope": 0.5}):
        with raises(ValueError, match="functions with another computation"):
            run(**change)


@pytest.mark.parametrize("name", ["worst", "loss", "epoch", "seconds"])
def test_rejects_duplicate_metric_names(name):
    hook = train.ValidationMetrics(lambda task, params, model_state: {name: params["slope"]})
    with raises(ValueError, match=f"`hooks` must return unique metric names, got '{name}'"):
        line(hooks=[hook])


def test_hooks_read_metrics_of_previous_hooks():
    def distance(task, params, model_state):
        return {"score": -jnp.abs(params["slope"] - 2.0)}

    fitted = line(
        epochs=40,
        hooks=[train.ValidationMetrics(distance), train.EarlyStopping("score", patience=3)],
    )
    # On its way from 0 to 3 the slope passes 2, and the run ends three epochs later.
    scores = [entry["score"][0] for entry in fitted.history]
    assert fitted.best_epoch[0] == 1 + np.argmax(scores) == len(scores) - 3
    np.testing.assert_allclose(fitted.best_score[0], max(scores))
    np.testing.assert_allclose(-abs(fitted.get_params()["slope"] - 2.0), max(scores), rtol=1e-6)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"config": TrainConfig(0)}, "`batch_size` must be at least 1"),
        ({"config": TrainConfig(4, draw_batches=2, accumulate=2)}, "`draw_batches` must be 1"),
        ({"optimizer": RowOptimizer()}, "`task` must be a train.RowTask.*got Line"),
        ({"eval_every": 0}, "`eval_every` must be at least 1"),
        ({"stop_at": 0}, "`stop_at` must be at least 1"),
        ({"epochs": [2, 3], "seeds": [0, 1, 2]}, "must all have one length"),
        ({"batches": X}, "`batches` must be train.ArrayBatches or train.HostBatches, got ndarray"),
        ({"hooks": [print]}, "`hooks` must be instances of Hook or Callback, got <built-in"),
        ({"hooks": [train.EarlyStopping]}, "`hooks` must be .*got the class EarlyStopping"),
        ({"hooks": train.EarlyStopping()}, "`hooks` must be a sequence, got EarlyStopping"),
        ({"hooks": [train.EarlyStopping()] * 2}, "`hooks` must have at most one .*got 2"),
        ({"hooks": [Unregistered()]}, "`hooks` must be a pytree.*got Unregistered"),
        ({"hooks": [train.EarlyStopping("score")]}, "`metric` must be in the report.*got 'score'"),
        (
            {"batches": HostBatches(lambda epoch: []), "config": TrainConfig(4, accumulate=2)},
            "`accumulate` and `draw_batches` must be 1",
        ),
    ],
)
def test_rejects_invalid_arguments(bad, message):
    with raises(ValueError, match=message):
        line(**bad)


@pytest.mark.parametrize("data", [(X, X[:20]), (X[:20], X), (), X[:0], (X, 1.0)])
def test_rejects_leaves_of_different_lengths(data):
    for make in (ArrayBatches, lambda data: HostBatches.from_arrays(data, 8)):
        with raises(ValueError, match="`data` must hold the same number of examples"):
            make(data)
    with raises(ValueError, match="`batch 0` must hold the same number of examples"):
        line(batches=HostBatches(lambda epoch: [data]), epochs=1)


def test_rejects_host_batches_smaller_than_batch_size():
    with raises(ValueError, match="`batch_size` must be the number of examples of all .*got 8"):
        line(batches=HostBatches.from_arrays((X, X), 4), config=TrainConfig(8), epochs=1)


def test_get_params_rejects_index_out_of_range():
    fitted = line(epochs=1, seeds=[0, 1])
    assert fitted.get_params(-1)["slope"] == fitted.get_params(1)["slope"]
    for index in (2, -3):
        with raises(IndexError, match=f"`index` must be less than the 2 runs, got {index}"):
            fitted.get_params(index)


def test_drawing_batches_in_parts_does_not_change_training(monkeypatch):
    x = jnp.linspace(-1, 1, 50)
    task, optimizer, config = Line(noise=jnp.float32(0.1)), Optimizer(0.1), TrainConfig(4)
    state = train.initial_state(task, optimizer, jnp.uint32(0))
    batches = ArrayBatches((x, 2 * x))

    def run():
        steps = batches.epoch(jax.random.key(1), config)
        return train.run_steps(task, optimizer, state, steps, config=config, data=batches.data)

    at_once, _ = jax.jit(lambda: run())()
    monkeypatch.setattr(_scan, "_MAX_DRAWN_AT_ONCE", 5 * 8)  # 13 steps in parts of five
    with forms_for("tpu"):
        in_parts, _ = jax.jit(lambda: run())()  # another function, so that it is traced again
    assert in_parts.step == 13
    np.testing.assert_allclose(in_parts.params["slope"], at_once.params["slope"], rtol=1e-6)
