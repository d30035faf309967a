"""Tiled losses equal the direct ones, in value and gradient, with memory linear in the batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.platforms import lowered_for
from _helpers.programs import counted
from _helpers.refusals import raises, refused
from jax.sharding import PartitionSpec as P

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")

LOSSES = {
    "info_nce": (losses.info_nce, {}),
    "hard": (losses.hard_contrastive, {"tau_plus": 0.1, "beta": 0.8}),
    "bayesian": (losses.bayesian_contrastive, {"tau_plus": 0.1, "alpha": 0.8, "beta": 0.9}),
    "adjusted": (losses.adjusted_contrastive, {"mu": 0.3, "sigma": 0.4}),
    "sigmoid": (losses.sigmoid_contrastive, {"bias": -2.0}),
    "adversarial": (losses.adversarial_contrastive, {"radius": 0.3}),
    "at_k": (losses.softmax_at_k, {"top_fraction": 0.2, "weight_temperature": 0.5}),
}
BATCHES = {
    "views": (losses.view_scores, losses.tiled_view_loss, 2),
    "towers": (losses.tower_scores, losses.tiled_tower_loss, 1),
}
# Tower and view losses share their inner code.
each_pair = pytest.mark.parametrize(
    ("batch", "name"),
    [
        ("views", "hard"),
        ("views", "bayesian"),
        ("views", "adjusted"),
        ("views", "at_k"),
        ("towers", "info_nce"),
        ("towers", "sigmoid"),
        ("towers", "adversarial"),
    ],
)
one_per_batch = pytest.mark.parametrize(
    ("batch", "name"), [("views", "bayesian"), ("towers", "info_nce")]
)


def embeddings(n, dim=5, seed=0):
    z = losses.normalize(jax.random.normal(jax.random.key(seed), (2, n, dim)))
    return z[0], z[1]


def tiled_and_direct(batch, name, rows, **extra):
    """Returns the tiled and the direct loss as functions of embeddings and temperature."""
    scores_of, tiled_of, _ = BATCHES[batch]
    loss, hyper = LOSSES[name]
    ids = extra.pop("ids", None)

    def tiled(x, y, temperature):
        return tiled_of(loss, x, y, ids=ids, rows=rows, temperature=temperature, **hyper, **extra)

    def direct(x, y, temperature):
        s = scores_of(x, y, ids=ids)
        return loss(s.pos, s.neg, where=s.where, temperature=temperature, **hyper, **extra)

    return tiled, direct


def assert_same(tiled, direct, *args):
    got, want = (
        jax.jit(jax.value_and_grad(f, tuple(range(len(args)))))(*args) for f in (tiled, direct)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)
    return want[0]


@one_per_batch
def test_matches_direct_loss_without_ids_and_rows(batch, name):
    tiled, direct = tiled_and_direct(batch, name, None)
    assert_same(tiled, direct, *embeddings(7), jnp.float32(0.3))


@each_pair
def test_matches_direct_loss_with_ids_and_weights(batch, name):
    n, (_, _, per_row) = 6, BATCHES[batch]
    ids = jnp.array([4, 9, 4, 1, 9, 4])
    weights = jnp.linspace(0, 2, n * per_row)
    tiled, direct = tiled_and_direct(batch, name, 5, ids=ids, weights=weights)
    args = *embeddings(n), jnp.float32(0.5)
    want = assert_same(tiled, direct, *args)
    if name == "bayesian":  # without the gradient
        np.testing.assert_allclose(jax.jit(tiled)(*args), want, rtol=2e-6)


@one_per_batch
@pytest.mark.usefixtures("unchecked")
def test_numpy_arrays_match_jax_arrays_in_partial_tile(batch, name):
    """NumPy arrays are constants in the custom gradient rules, unlike JAX arrays."""
    n, (_, _, per_row) = 6, BATCHES[batch]
    of = {"ids": np.array([4, 9, 4, 1, 9, 4]), "weights": np.linspace(0, 2, n * per_row)}
    own, same = (
        tiled_and_direct(batch, name, 5, **jax.tree.map(f, of))[0] for f in (np.array, jnp.array)
    )
    args = [np.asarray(x) for x in (*embeddings(n), jnp.float32(0.5))]
    want = jax.grad(same)(*args)
    jax.tree.map(np.testing.assert_array_equal, jax.grad(own)(*args), want)
    assert_same(own, same, *args)
    np.testing.assert_array_equal(own(*args), same(*args))


@pytest.mark.parametrize(
    ("batch", "name"), [("views", "bayesian"), ("towers", "bayesian"), ("towers", "sigmoid")]
)
def test_ignores_masked_pairs(batch, name):
    """Value and gradient match those of the valid examples alone, with NaN in the masked ones."""
    (loss, hyper), (scores_of, tiled_of, per_row) = LOSSES[name], BATCHES[batch]
    where = jnp.array([True, False, True, True, False, True, True])
    kept, ids = np.flatnonzero(where), jnp.array([4, 4, 9, 4, 1, 2, 3])
    weights = jnp.linspace(1, 2, 7 * per_row)
    x, y = embeddings(7)

    def tiled(x, y, temperature):
        return tiled_of(
            loss, x, y, ids=ids, where=where, weights=weights, rows=3, temperature=temperature,
            **hyper,
        )  # fmt: skip

    def direct(x, y, temperature):
        s = scores_of(x[kept], y[kept], ids=ids[kept])
        own = weights.reshape(per_row, 7)[:, kept].ravel()
        return loss(s.pos, s.neg, where=s.where, weights=own, temperature=temperature, **hyper)

    corrupted = (jnp.where(where[:, None], z, jnp.nan) for z in (x, y))
    got = jax.jit(jax.value_and_grad(tiled, (0, 1)))(*corrupted, jnp.float32(0.5))
    want = jax.jit(jax.value_and_grad(direct, (0, 1)))(x, y, jnp.float32(0.5))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)


@pytest.mark.parametrize("name", ["info_nce", "bayesian"])
def test_catalogue_loss_matches_direct_loss(name):
    """Each anchor has all items but its own as negatives, in value and gradient."""
    loss, hyper = LOSSES[name]
    x, items = embeddings(7)[0], embeddings(11, seed=1)[0]
    targets, weights = jnp.array([3, 10, 3, 0, 5, 99, 2]), jnp.linspace(1, 2, 7)
    where = jnp.array([True, True, False, True, True, False, True])
    kept = np.flatnonzero(where)

    def tiled(x, items, temperature):
        return losses.tiled_catalogue_loss(
            loss, x, items, targets, where=where, weights=weights, rows=3,
            temperature=temperature, **hyper,
        )  # fmt: skip

    def direct(x, items, temperature):
        scores = jnp.matmul(x[kept], items.T)
        own = jax.nn.one_hot(targets[kept], 11, dtype=bool)
        return loss(
            jnp.sum(jnp.where(own, scores, 0), axis=1), scores, where=~own, weights=weights[kept],
            temperature=temperature, **hyper,
        )  # fmt: skip

    args = items, jnp.float32(0.5)
    got = jax.jit(jax.value_and_grad(tiled, (0, 1, 2)))(
        jnp.where(where[:, None], x, jnp.nan), *args
    )
    want = jax.jit(jax.value_and_grad(direct, (0, 1, 2)))(x, *args)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)


def test_catalogue_info_nce_matches_softmax_cross_entropy():
    x, items = embeddings(6)[0], embeddings(6, seed=1)[1]
    got = losses.tiled_catalogue_loss(losses.info_nce, x, items, jnp.arange(6)[::-1], rows=4)
    logits = np.asarray(x, np.float64) @ np.asarray(items, np.float64).T
    own = np.take_along_axis(logits, np.arange(6)[::-1, None], axis=1)[:, 0]
    np.testing.assert_allclose(got, np.mean(np.log(np.exp(logits).sum(axis=1)) - own), rtol=1e-5)


def test_catalogue_loss_rejects_mismatched_shapes():
    x = embeddings(3)[0]
    with raises(ValueError, match="`items` must have shape .* with the width of `x`"):
        losses.tiled_catalogue_loss(losses.info_nce, x, x[:, :2], jnp.arange(3))
    with refused("targets"):
        losses.tiled_catalogue_loss(losses.info_nce, x, x, jnp.arange(2))


@pytest.mark.parametrize(
    "loss",
    [losses.tiled_view_loss, losses.tiled_tower_loss, losses.fused_view_loss,
     losses.fused_tower_loss],
)  # fmt: skip
def test_rejects_empty_batch(loss):
    with raises(ValueError, match=r"must have at least one pair, got shape \(0, 3\)"):
        loss(losses.info_nce, jnp.zeros((0, 3)), jnp.zeros((0, 3)))


def test_gradients_of_weights_and_hyper_parameters_match_direct_loss():
    x, y = embeddings(5)
    tau_plus = jnp.linspace(0.01, 0.2, 10)  # one for each anchor

    def tiled(weights, tau_plus, min_score):
        return losses.tiled_view_loss(
            losses.debiased_contrastive, x, y, rows=2,
            weights=weights, tau_plus=tau_plus, min_score=min_score,
        )  # fmt: skip

    def direct(weights, tau_plus, min_score):
        s = losses.view_scores(x, y)
        return losses.debiased_contrastive(
            s.pos, s.neg, where=s.where, weights=weights, tau_plus=tau_plus, min_score=min_score
        )

    assert_same(tiled, direct, jnp.linspace(1, 2, 10), tau_plus, jnp.float32(0.1))


def test_loss_is_zero_if_no_anchor_has_negatives():
    tiled, _ = tiled_and_direct("views", "bayesian", 2, ids=jnp.array([1, 1, 1, 1, 1]))
    value_and_grad = jax.jit(jax.value_and_grad(tiled, (0, 1)))
    value, grads = value_and_grad(*embeddings(5), jnp.float32(0.5))
    assert value == 0
    assert all((np.asarray(g) == 0).all() for g in grads)


@one_per_batch
def test_half_precision(batch, name):
    tiled, direct = tiled_and_direct(batch, name, 4)
    x, y = (z.astype(jnp.bfloat16) for z in embeddings(9))
    args = x, y, jnp.float32(0.2)
    got, want = (jax.jit(jax.value_and_grad(f, (0, 1, 2)))(*args) for f in (tiled, direct))
    assert got[0].dtype == jnp.float32
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for g, w in zip(got[1], want[1], strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(
            g.astype(jnp.float32), w.astype(jnp.float32), rtol=2e-2, atol=4e-3
        )


@pytest.mark.parametrize("name", ["info_nce", "bayesian"])
@pytest.mark.usefixtures("all_optimisations")
def test_memory_is_below_tenth_of_score_matrix(name):
    """Uses less than a tenth of the score matrix, which the direct form stores."""
    tiled, _ = tiled_and_direct("views", name, 8)
    args = *(jax.ShapeDtypeStruct((2048, 16), jnp.float32) for _ in range(2)), jnp.float32(0.5)
    compiled = jax.jit(jax.value_and_grad(tiled, (0, 1, 2))).lower(*args).compile()
    assert 10 * compiled.memory_analysis().temp_size_in_bytes < (2 * 2048) ** 2 * 4


def test_temperature_does_not_recompile_and_vmap_matches_jit():
    tiled, _ = tiled_and_direct("views", "bayesian", 3)
    x, y = embeddings(4)
    jitted, traces = counted(tiled)
    temperatures = jnp.array([0.2, 0.9])
    want = [jitted(x, y, t) for t in temperatures]
    assert len(traces) == 1
    sweep = jax.jit(jax.vmap(tiled, (None, None, 0)))
    np.testing.assert_allclose(sweep(x, y, temperatures), want, rtol=1e-6)


@one_per_batch
def test_eight_devices_match_single_device(batch, name):
    _, tiled_of, per_row = BATCHES[batch]
    loss, hyper = LOSSES[name]
    n = 24
    x, y = embeddings(n)
    ids, weights = jnp.arange(n) % 17, jnp.linspace(0.5, 1.5, n)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def on_one(x, y, weights, temperature):
        return tiled_of(
            loss, x, y, ids=ids, weights=jnp.tile(weights, per_row), rows=2,
            temperature=temperature, **hyper,
        )  # fmt: skip

    def on_all(x, y, weights, temperature):
        def part(x, y, ids, weights, temperature):
            return tiled_of(
                loss, x, y, ids=ids, weights=jnp.tile(weights, per_row), rows=2,
                temperature=temperature, axis_name="data", **hyper,
            )  # fmt: skip

        split = jax.shard_map(part, mesh=mesh, in_specs=(*4 * (P("data"),), P()), out_specs=P())
        return split(x, y, ids, weights, temperature)

    args = x, y, weights, jnp.float32(0.4)
    got, want = (jax.jit(jax.value_and_grad(f, (0, 1, 2, 3)))(*args) for f in (on_all, on_one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), got, want)


def test_sharded_loss_without_ids_matches_direct_loss():
    x, y = embeddings(16)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def part(x, y):
        return losses.tiled_tower_loss(losses.info_nce, x, y, axis_name="data")

    def direct(x, y):
        s = losses.tower_scores(x, y)
        return losses.info_nce(s.pos, s.neg, where=s.where)

    on_all = jax.shard_map(part, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())
    got, want = (jax.jit(f)(x, y) for f in (on_all, direct))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    ("platform", "n", "rows"),
    [("cpu", 2**12, 512), ("cpu", 2**17, 32), ("tpu", 2**17, 32), ("cuda", 2**12, 2048),
     ("cuda", 2**17, 128)],
)  # fmt: skip
def test_default_tiles(platform, n, rows):
    """About 2 million scores and at least 32 anchors; on GPUs four times as many."""
    z = jax.ShapeDtypeStruct((n, 2), jnp.float32)
    tiled = partial(losses.tiled_tower_loss, losses.info_nce, temperature=0.5)
    gradient = lowered_for(platform, jax.value_and_grad(tiled), z, z)
    tiles = [found for found in (32, 128, 512, 2048) if f"tensor<{found}x{n}xf32>" in gradient]
    assert tiles == [rows]


def test_errors_name_the_argument():
    x, y = embeddings(4)
    with refused("z2", " must have shape"):
        losses.tiled_view_loss(losses.info_nce, x, y[:3])
    with refused("weights", " must have shape"):
        losses.tiled_view_loss(losses.info_nce, x, y, weights=jnp.ones(4), where=x[:, 0] > 0)
    with refused("where", " must have shape"):
        losses.tiled_tower_loss(losses.info_nce, x, y, where=jnp.ones(3, bool))
    with refused("ids", " must have shape"):
        losses.tiled_tower_loss(losses.info_nce, x, y, ids=jnp.arange(3))
    with raises(ValueError, match="`tau_plus` must lie in"):
        losses.tiled_tower_loss(losses.debiased_contrastive, x, y, tau_plus=1.5)
    with raises(ValueError, match="`rows` must be at least 1, got 0"):
        losses.tiled_tower_loss(losses.info_nce, x, y, rows=0)


@one_per_batch
@pytest.mark.parametrize("rows", [None, 4])
def test_exports_with_symbolic_batch(batch, name, rows):
    def gradients(f):
        return jax.jit(jax.value_and_grad(f, (0, 1, 2)))

    tiled, direct = map(gradients, tiled_and_direct(batch, name, rows))
    function = exported(tiled, *embeddings(3), jnp.float32(0.3), b=3)
    args = *embeddings(9), jnp.float32(0.3)
    got, want = function.call(*args), direct(*args)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)


def test_global_loss_takes_per_anchor_moving_averages():
    """Tiled SogCLR loss: its required argument has an entry per anchor."""
    x, y = embeddings(7)
    log_mean = jnp.linspace(-0.5, 1.5, 14)
    given = {"log_mean": log_mean, "temperature": 0.5}

    def tiled(x, y):
        return losses.tiled_view_loss(losses.global_contrastive, x, y, rows=4, **given)

    def direct(x, y):
        s = losses.view_scores(x, y)
        return losses.global_contrastive(s.pos, s.neg, where=s.where, **given)

    assert_same(tiled, direct, x, y)


@pytest.mark.parametrize("loss", [losses.truncated_bpr, losses.truncated_bce])
def test_rejects_whole_batch_losses(loss):
    """A tile lacks anchors among which these losses select."""
    x, y = embeddings(5)
    for tiled in (losses.tiled_view_loss, losses.tiled_tower_loss):
        with raises(ValueError, match=f"`loss` must be a per-anchor loss.* got {loss.__name__}"):
            tiled(partial(loss, drop_rate=0.5), x, y)


def test_forwards_static_arguments_to_loss():
    x, y = embeddings(6)
    scores = losses.view_scores(x, y)

    def both(loss, **given):
        plain = loss(scores.pos, scores.neg, where=scores.where, **given)
        return losses.tiled_view_loss(loss, x, y, rows=5, **given), plain

    for surrogate in ("relu", "tanh"):
        np.testing.assert_allclose(*both(losses.pairwise_softmax, surrogate=surrogate), rtol=1e-5)
    np.testing.assert_allclose(*both(losses.bayesian_contrastive, bins=4), rtol=1e-5)
    np.testing.assert_allclose(*both(losses.bilateral_softmax, pos_temperature=None), rtol=1e-5)
    first, other = (both(losses.pairwise_softmax, surrogate=x)[0] for x in ("relu", "tanh"))
    assert not np.isclose(first, other)


def test_targets_out_of_range_make_loss_nan():
    x, items = embeddings(6)
    targets = jnp.array([0, 3, 2, 5, 1, 4])

    def loss(target, **given):
        return losses.tiled_catalogue_loss(
            losses.info_nce, x, items, targets.at[2].set(target), **given
        )

    for target in (-1, -6, -7, 6):
        assert np.isnan(loss(target)), target
    where = jnp.arange(6) != 2
    np.testing.assert_allclose(loss(-1, where=where), loss(2, where=where))


def test_narrow_integer_targets_match_wide_targets():
    x = embeddings(5)[0]
    items = jax.random.normal(jax.random.key(1), (300, x.shape[1]))
    targets = jnp.array([0, 3, 6, 2, 2])
    want = losses.tiled_catalogue_loss(losses.info_nce, x, items, targets)
    for dtype in (jnp.int8, jnp.int16):
        got = losses.tiled_catalogue_loss(losses.info_nce, x, items, targets.astype(dtype))
        np.testing.assert_array_equal(got, want)
