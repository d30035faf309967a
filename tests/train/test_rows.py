"""Row optimisers: equal to the dense ones, while each step reads and changes few rows."""

import re
from functools import partial

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.ranking import epoch_of, fit, split
from _helpers.refusals import raises

from crl_jax import losses, models, samplers, tasks, train
from crl_jax.train import rows
from crl_jax.train.rows import _packed, _sharded

pytestmark = pytest.mark.usefixtures("quick_compiles")

N, DIM, BATCH, STEPS = 40, 3, 12, 120
TABLE = jax.random.normal(jax.random.key(0), (N, DIM))


def warm_cosine(step):
    """A learning rate that rises and falls."""
    done = jnp.asarray(step, jnp.float32) / STEPS
    return 0.05 * jnp.minimum(done / 0.1, 1) * (0.55 + 0.45 * jnp.cos(jnp.pi * done))


def draw(step, size=1.0):
    """Row indices, some frequent and repeated within a batch, and their targets."""
    key = jax.random.fold_in(jax.random.key(1), step)
    often = jnp.concatenate([jnp.arange(6), jnp.arange(N)])
    ids = jax.random.choice(key, often, (BATCH,))
    return ids, size * jax.random.normal(jax.random.fold_in(key, 1), (BATCH, DIM))


def pull(values, pulls):
    return jnp.sum(jnp.sin(values) * pulls)


@partial(jax.jit, static_argnames=("rule", "steps"))
def by_rows(rule, steps=STEPS, size=1.0):
    """Returns the table after some row-wise steps."""

    def step(carry, number):
        table, state = carry
        ids, pulls = draw(number, size)
        gathered, state = rows.gather(rule, table, state, ids, number)
        grads = jax.grad(lambda values: pull(values[gathered.inverse], pulls))(gathered.rows)
        return rows.scatter(rule, table, state, gathered, grads, number), None

    (table, state), _ = jax.lax.scan(step, (TABLE, rows.init(rule, TABLE)), jnp.arange(steps))
    return rows.flush_lazy_updates(rule, table, state, jnp.int32(steps))[0]


@partial(jax.jit, static_argnames=("optimizer", "steps"))
def by_tables(optimizer, steps=STEPS, size=1.0):
    """Returns the table after the same steps with dense gradients."""

    def step(carry, number):
        table, state = carry
        ids, pulls = draw(number, size)
        grads = jax.grad(lambda table: pull(table[ids], pulls))(table)
        updates, state = optimizer.update(grads, state, table)
        return (optax.apply_updates(table, updates), state), None

    (table, _), _ = jax.lax.scan(step, (TABLE, optimizer.init(TABLE)), jnp.arange(steps))
    return table


class RowwiseAdagrad:
    """Reference in NumPy: one value per row."""

    def init(self, table):
        return jnp.int32(0), jnp.full(len(table), 0.1)

    def update(self, grads, state, table):
        step, squares = state
        squares = squares + jnp.sum(grads**2, axis=1) / DIM
        updates = -warm_cosine(step) * grads / jnp.sqrt(squares + 1e-7)[:, None]
        return updates, (step + 1, squares)


PAIRS = {
    "sgd": (rows.sgd(warm_cosine), optax.sgd(warm_cosine)),
    "adagrad": (rows.adagrad(warm_cosine), optax.adagrad(warm_cosine)),
    "rowwise adagrad": (rows.rowwise_adagrad(warm_cosine), RowwiseAdagrad()),
    "adam": (rows.adam(warm_cosine), optax.adam(warm_cosine)),
    "adam, other numbers": (
        rows.adam(warm_cosine, 0.7, 0.9, 1e-6), optax.adam(warm_cosine, 0.7, 0.9, 1e-6),
    ),
    "adam without momentum": (rows.adam(0.03, 0.0), optax.adam(0.03, 0.0)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", PAIRS)
def test_row_updates_match_dense_optimizer(name, standard_promotion):
    rule, optimizer = PAIRS[name]
    want = by_tables(optimizer)
    assert np.abs(want - TABLE).min(axis=1).max() > 0.01
    np.testing.assert_allclose(by_rows(rule), want, atol=2e-5)


@pytest.mark.parametrize("name", ["adagrad", "rowwise adagrad", "adam"])
def test_dense_wrapper_matches_dense_optimizer(name, standard_promotion):
    rule, optimizer = PAIRS[name]
    whole = rows.dense(rule)
    np.testing.assert_allclose(by_tables(whole), by_tables(optimizer), atol=2e-5)


def test_updates_change_only_rows_of_batches():
    """After two steps, only rows of their batches have changed."""
    changed = np.any(by_rows(PAIRS["adam"][0], steps=2) != TABLE, axis=1)
    assert set(np.flatnonzero(changed)) <= {*np.asarray(draw(0)[0]), *np.asarray(draw(1)[0])}


def reference_lazy_steps(mean, square, t, k, b1=0.9, b2=0.999, eps=1e-8):
    """Returns a value's change in k steps with zero gradients, in float64, and its error bound.

    The learning rate is 1.
    """
    j = np.arange(1, k + 1, dtype=np.float64)
    weights = (b1 / np.sqrt(b2)) ** j * np.sqrt(1 - b2 ** (t + j)) / (1 - b1 ** (t + j))
    small = eps * np.sqrt((1 - b2 ** (t + j)) / b2**j)
    way = mean * np.sum(weights / (np.sqrt(square) + small))
    middle = np.sum(weights * small) / np.sum(weights)
    variance = np.sum(weights * (small - middle) ** 2) / np.sum(weights)
    return way, variance / ((np.sqrt(square) + small[0]) * (np.sqrt(square) + middle))


@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(
    t=st.integers(1, 5000), k=st.integers(1, 3000), root=st.floats(-11, 1), steep=st.floats(-1, 1)
)
def test_lazy_adam_error_is_within_bound(t, k, root, steep):
    square, mean = 10.0 ** (2 * root), steep * 10.0**root
    want, bound = reference_lazy_steps(mean, square, t, k)
    with jax.enable_x64(True):
        rule = rows.adam(1.0)
        state = rule.init(jnp.zeros((1, 1)))
        # The state of a row after t steps, with moments set explicitly.
        _, state = rule.flush(jnp.zeros((1, 1)), state, jnp.int32(t))
        state = state._replace(mu=jnp.full((1, 1), mean), nu=jnp.full((1, 1), square))
        moved, after = rule.flush(jnp.zeros((1, 1)), state, jnp.int32(t + k))
    # Steps are computed in float32: the change is a difference of two values.
    rounding = 2e-5
    assert abs(-float(moved[0, 0]) - want) <= (bound + rounding) * abs(want) + 1e-300
    if t >= 1000:
        assert bound < 1e-4
    if root > -6:
        assert bound < 1e-6
    np.testing.assert_allclose(after.mu, mean * 0.9**k, rtol=1e-4, atol=1e-30)
    np.testing.assert_allclose(after.nu, square * 0.999**k, rtol=1e-4)


def test_lazy_adam_is_accurate_for_tiny_gradients(standard_promotion):
    """Gradients of the size of epsilon, where it dominates the denominator.

    In the first steps it varies the most, and the change is off by up to a hundredth.
    """
    rule, optimizer = PAIRS["adam"]
    for size in (1e-4, 1e-7, 1e-9):
        want = by_tables(optimizer, size=size) - TABLE
        got = by_rows(rule, size=size) - TABLE
        assert np.abs(got - want).max() < 1e-2 * np.abs(want).max() + 1e-6


@pytest.mark.parametrize("platform", ["default", "cuda", "tpu"])
@pytest.mark.parametrize("n", [40, 41])
def test_flush_in_blocks_matches_flush_at_once(n, platform, monkeypatch):
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **branches: branches[platform](*args)
    )
    monkeypatch.setattr("crl_jax.train.rows._tables._BLOCK", 40)
    monkeypatch.setattr("crl_jax.train.rows._tables._GPU_BLOCK", 40)
    rule, table = rows.adam(warm_cosine), jnp.resize(TABLE, (n, DIM))
    state = rows.init(rule, table)
    grads = jax.random.normal(jax.random.key(3), table.shape)
    updates, updated_state = rule.update(grads, state.rule_state, table, jnp.int32(0))
    want, flushed_state = rule.flush(table + updates, updated_state, jnp.int32(9))
    got, after = rows.flush_lazy_updates(
        rule, table + updates, state._replace(rule_state=updated_state), jnp.int32(9)
    )
    np.testing.assert_allclose(got, want, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5), after.rule_state, flushed_state)
    assert np.abs(got - table).min() > 0


def packed_steps(rule, table, mesh=None, packed=True):
    """Rows after a few steps on a packed table or the table itself, with their updates flushed."""
    n, dim = table.shape

    def step(carry, number):
        table, state = carry
        key = jax.random.fold_in(jax.random.key(1), number)
        ids, pulls = jax.random.randint(key, (20,), 0, n), jax.random.normal(key, (20, dim))
        gathered, state = rows.gather_sharded(mesh, rule, table, state, ids, number)
        grads = jax.grad(lambda values: pull(values[gathered.inverse], pulls))(gathered.rows)
        return rows.scatter_sharded(mesh, rule, table, state, gathered, grads, number), None

    @jax.jit
    def run(table, state):
        carry = table, state
        if packed:
            carry = _sharded.pack_sharded(mesh, *carry)
            assert carry[0].shape[1] % 128 == 0
            assert carry[1].packing.in_place == (n % 1024 == 0)
        carry, _ = jax.lax.scan(step, carry, jnp.arange(4))
        if packed:
            carry = _sharded.unpack_sharded(mesh, *carry, (table, state))
        return rows.flush_lazy_updates_sharded(mesh, rule, *carry, jnp.int32(4))

    table, state = run(table, rows.init(rule, table))
    return table, state.rule_state


@pytest.mark.parametrize("devices", [None, (2, 4), (2, 1)])
@pytest.mark.parametrize(
    ("name", "n", "dim"),
    [("adam", 101, 64), ("adam", 50, 27), ("rowwise adagrad", 7, 32), ("sgd", 41, 64),
     ("adagrad", 1, 8), ("adam", 40, 200), ("adam", 1024, 64), ("sgd", 1024, 16)],
)  # fmt: skip
def test_packed_tables_match_plain_tables(name, n, dim, devices, monkeypatch):
    """Covers several blocks of whole slots, followed by an incomplete slot.

    Tables of whole tiles on each device are packed in place, in blocks of three tiles.
    """
    is_tiled = n % 1024 == 0
    monkeypatch.setattr("crl_jax.train.rows._packed._BLOCK", 384 if is_tiled else 16)
    monkeypatch.setattr("crl_jax.train.rows._packed.IN_PLACE", 0)
    mesh, (rule, _) = None, PAIRS[name]
    if devices is not None:
        mesh_devices = np.array(jax.devices()[: np.prod(devices)]).reshape(devices)
        mesh = jax.sharding.Mesh(mesh_devices, ("data", "table"))
    table = jax.random.normal(jax.random.key(0), (n, dim))
    want, got = packed_steps(rule, table, packed=False), packed_steps(rule, table, mesh)
    assert np.abs(got[0] - table).max() > 1e-3
    # A row that shares its slot with one that is read takes steps with zero gradients.
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=3e-6), got, want)


def test_packing_in_place_permutes_rows(monkeypatch):
    """The rows of 128 ids stay in the tiles of memory that their columns occupied."""
    monkeypatch.setattr("crl_jax.train.rows._packed.IN_PLACE", 0)
    table, rule = jnp.arange(512 * 32.0).reshape(512, 32), PAIRS["sgd"][0]
    packed, state = _packed.pack(table, rows.init(rule, table))
    for i in (0, 5, 131, 511):
        tile, place = i // 128, i % 128 // 4
        slot = place // 8 * (4 * 8) + tile * 8 + place % 8
        assert int(state.packing.address(jnp.array([i // 4]), 128)[0]) == slot
        lane = i % 4 * 32
        np.testing.assert_array_equal(packed[slot, lane : lane + 32], table[i])
    assert int(state.packing.address(jnp.array([128]), 128)[0]) == 128
    np.testing.assert_array_equal(_packed.unpacked_table(packed, state), table)


def test_tpu_program_packs_tables():
    """A step on a TPU gathers from tables of whole vectors, on a CPU from those of the task."""
    log = split().train
    task = tasks.Ranking.from_interactions(
        log, encoder=models.MatrixFactorization(log.n_users, log.n_items, 64), loss=losses.bpr
    )
    optimizer, config = train.RowOptimizer(1e-2), train.TrainConfig(batch_size=100)
    batches = train.ArrayBatches(task.seen)

    def epoch(state):
        steps = batches.epoch(state.key, config)
        return train.run_steps(task, optimizer, state, steps, config=config, data=batches.data)[0]

    traced = jax.jit(epoch).trace(train.initial_state(task, optimizer, 0))
    found = {}
    for platform in ("cpu", "tpu"):
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        found[platform] = set(re.findall(r"gather.*: \(tensor<(\d+x\d+)xf32>", text))
    plain, packed = f"{log.n_items}x64", f"{-(-log.n_items // 2)}x384"
    assert plain in found["cpu"]
    assert packed not in found["cpu"]
    assert packed in found["tpu"]
    assert plain not in found["tpu"]


def test_flush_is_composable_and_idempotent():
    rule = rows.adam(warm_cosine)
    state = rule.init(TABLE)
    grads = jax.random.normal(jax.random.key(3), TABLE.shape)
    updates, state = rule.update(grads, state, TABLE, jnp.int32(0))
    table = TABLE + updates
    once, state_once = rule.flush(table, state, jnp.int32(9))
    twice, state_twice = rule.flush(*rule.flush(table, state, jnp.int32(4)), jnp.int32(9))
    np.testing.assert_allclose(twice, once, atol=1e-6)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4), state_twice, state_once)
    again, _ = rule.flush(once, state_once, jnp.int32(9))
    np.testing.assert_array_equal(again, once)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"b1": 1.0}, "`b1`"), ({"b1": -0.1}, "`b1`"), ({"b2": 0.9}, "`b2`"),
        ({"b2": 1.0}, "`b2`"), ({"eps": 0.0}, "`eps`"),
    ],
)  # fmt: skip
def test_adam_rejects_hyperparameters_out_of_range(numbers, message):
    with raises(ValueError, match=message):
        rows.adam(1e-3, **numbers)


@pytest.mark.parametrize("rule", [rows.adagrad, rows.rowwise_adagrad])
@pytest.mark.parametrize("name", ["initial", "eps"])
def test_adagrad_rejects_hyperparameters_out_of_range(rule, name):
    with raises(ValueError, match=f"`{name}`"):
        rule(1e-3, **{name: -1.0})


def test_bfloat16_tables_stay_bfloat16():
    table = TABLE.astype(jnp.bfloat16)
    for name in ("rowwise adagrad", "adam"):
        rule, _ = PAIRS[name]
        state, ids = rows.init(rule, table), jnp.array([3, 3, 5])
        gathered, state = rows.gather(rule, table, state, ids, jnp.int32(0))
        after, state = rows.scatter(rule, table, state, gathered, gathered.rows, jnp.int32(0))
        after, state = rows.flush_lazy_updates(rule, after, state, jnp.int32(7))
        assert after.dtype == jnp.bfloat16
        assert np.all(np.isfinite(np.asarray(after, np.float32)))


def compiled_epoch(n, rule):
    """Steps of a donated table of ``n`` rows, followed by a flush of all lazy updates."""

    @partial(jax.jit, donate_argnums=(0, 1))
    def steps(table, state, ids):
        def step(carry, ids):
            table, state, number = carry
            gathered, state = rows.gather(rule, table, state, ids, number)
            table, state = rows.scatter(rule, table, state, gathered, gathered.rows, number)
            return (table, state, number + 1), None

        table, state, number = jax.lax.scan(step, (table, state, jnp.int32(0)), ids)[0]
        return rows.flush_lazy_updates(rule, table, state, number)

    shapes = jax.eval_shape(lambda: (jnp.zeros((n, 8)), rows.init(rule, jnp.zeros((n, 8)))))
    return steps.lower(*shapes, jax.ShapeDtypeStruct((5, 32), jnp.int32)).compile()


@pytest.mark.parametrize("name", ["sgd", "rowwise adagrad", "adam"])
def test_temporary_memory_does_not_grow_with_table(name):
    """Tables are not copied: temporaries are equally large for five times the rows."""
    rule, _ = PAIRS[name]
    small, large = (compiled_epoch(n, rule).memory_analysis() for n in (40_000, 200_000))
    assert large.temp_size_in_bytes == small.temp_size_in_bytes
    assert large.alias_size_in_bytes > large.output_size_in_bytes - 1000


# Training of ranking models.
SETTINGS = {
    "pairs": {"n_neg": 2},
    "extra positives": {
        "loss": losses.debiased_pairwise, "hyperparams": {"tau_plus": 0.1}, "n_pos": 2, "n_neg": 3,
    },
    "in the batch": {
        "loss": losses.info_nce, "sampler": lambda log: samplers.InBatch.from_interactions(log),
        "encoder": models.MatrixFactorization(60, 80, 8, similarity="cosine"),
    },
    "shared pools": {
        "loss": losses.info_nce, "sampler": lambda log: samplers.SharedRNS(anchors=16),
        "n_neg": 9,
    },
    "apart from each other": {
        "loss": tasks.align_positives, "auxiliary_loss": tasks.Uniformity(),
        "encoder": models.MatrixFactorization(60, 80, 8, similarity="cosine"),
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SETTINGS)
def test_ranking_row_updates_match_dense_updates(name, standard_promotion):
    """An epoch of gradient descent with an L2 term of the rows."""
    log, settings = split().train, dict(SETTINGS[name])
    if "sampler" in settings:
        settings["sampler"] = settings["sampler"](log)
    settings |= {"learning_rate": 2.0, "batch_size": 100, "dim": 8}
    l2 = {"l2": jnp.float32(0.1), "l2_target": "rows"}
    before, whole, want = epoch_of(log, **l2, **settings)
    _, few, got = epoch_of(log, by_rows=True, weight_decay=0.1, **settings)
    for name, table in whole.params.items():
        assert np.abs(table - before.params[name]).max() > 1e-3
        np.testing.assert_allclose(few.params[name], table, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got["loss"], want["loss"], rtol=1e-5)


@pytest.mark.slow
def test_ranking_with_row_adam_matches_dense_adam(standard_promotion):
    """Adam with a schedule; rows that no batch reads are flushed before each validation."""
    run = partial(
        fit, split().train, split().valid, schedule=train.cosine, epochs=3, batch_size=100,
        learning_rate=0.02, l2_target="rows", weight_decay=0.1, n_neg=2,
    )  # fmt: skip
    few, whole = run(by_rows=True), run()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=3e-4),
        few.state.params, whole.state.params,
    )  # fmt: skip
    for mine, theirs in zip(few.history, whole.history, strict=True):
        np.testing.assert_allclose(mine["loss"], theirs["loss"], rtol=1e-4)
        np.testing.assert_allclose(mine["valid_ndcg@20"], theirs["valid_ndcg@20"], atol=5e-3)


@pytest.mark.slow
def test_resumed_training_is_bitwise_identical(tmp_path, standard_promotion):
    run = partial(fit, split().train, by_rows=True, l2_target="rows", batch_size=100, epochs=5)

    path, whole = tmp_path / "run.npz", run()
    with raises(Killed):
        run(checkpoint=path, seconds=0, see=kill_at(2))
    with raises(ValueError, match="expected the arrays"):
        run(checkpoint=path, rule=rows.adagrad)
    resumed = run(checkpoint=path)
    states = (whole.state.params, whole.state.opt_state), (
        resumed.state.params, resumed.state.opt_state,
    )  # fmt: skip
    jax.tree.map(np.testing.assert_array_equal, *states)
    assert [entry["loss"] for entry in resumed.history] == [e["loss"] for e in whole.history]
