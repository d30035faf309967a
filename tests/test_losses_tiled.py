"""Tiled losses are the direct ones, in value and gradient, with memory linear in the batch."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from crl_jax import losses

LOSSES = {
    "info_nce": (losses.info_nce, {}),
    "debiased": (losses.debiased_contrastive, {"tau_plus": 0.1}),
    "hard": (losses.hard_contrastive, {"tau_plus": 0.1, "beta": 0.8}),
    "bayesian": (losses.bayesian_contrastive, {"tau_plus": 0.1, "alpha": 0.8, "beta": 0.9}),
    "bpr": (losses.bpr, {}),
}
each_loss = pytest.mark.parametrize("name", LOSSES)
BATCHES = {
    "views": (losses.view_scores, losses.tiled_view_loss, 2),
    "towers": (losses.tower_scores, losses.tiled_tower_loss, 1),
}
each_batch = pytest.mark.parametrize("batch", BATCHES)


def embeddings(n, dim=5, seed=0):
    z = losses.normalize(jax.random.normal(jax.random.key(seed), (2, n, dim)))
    return z[0], z[1]


def both_ways(batch, name, rows, **extra):
    """The tiled and the direct loss as functions of embeddings and temperature."""
    scores_of, tiled_of, _ = BATCHES[batch]
    loss, knobs = LOSSES[name]
    ids = extra.pop("ids", None)

    def tiled(x, y, temperature):
        return tiled_of(loss, x, y, ids=ids, rows=rows, temperature=temperature, **knobs, **extra)

    def direct(x, y, temperature):
        s = scores_of(x, y, ids=ids)
        return loss(s.pos, s.neg, where=s.where, temperature=temperature, **knobs, **extra)

    return tiled, direct


def assert_same(tiled, direct, *args):
    got, want = (
        jax.jit(jax.value_and_grad(f, tuple(range(len(args)))))(*args) for f in (tiled, direct)
    )
    np.testing.assert_allclose(tiled(*args), want[0], rtol=2e-6)  # without the gradient
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)


@each_batch
@each_loss
@pytest.mark.parametrize("rows", [3, None])
def test_equals_the_direct_form(batch, name, rows):
    tiled, direct = both_ways(batch, name, rows)
    assert_same(tiled, direct, *embeddings(7), jnp.float32(0.3))


@each_batch
@each_loss
def test_ids_and_weights(batch, name):
    n, (_, _, per_row) = 6, BATCHES[batch]
    ids = jnp.array([4, 9, 4, 1, 9, 4])
    weights = jnp.linspace(0, 2, n * per_row)
    tiled, direct = both_ways(batch, name, 4, ids=ids, weights=weights)
    assert_same(tiled, direct, *embeddings(n), jnp.float32(0.5))


@each_batch
def test_gradients_reach_weights_and_hyper_parameters(batch):
    scores_of, tiled_of, per_row = BATCHES[batch]
    n = 5
    x, y = embeddings(n)
    tau_plus = jnp.linspace(0.01, 0.2, n * per_row)  # one for each anchor

    def tiled(weights, tau_plus, min_score):
        return tiled_of(
            losses.debiased_contrastive, x, y, rows=2,
            weights=weights, tau_plus=tau_plus, min_score=min_score,
        )  # fmt: skip

    def direct(weights, tau_plus, min_score):
        s = scores_of(x, y)
        return losses.debiased_contrastive(
            s.pos, s.neg, where=s.where, weights=weights, tau_plus=tau_plus, min_score=min_score
        )

    assert_same(tiled, direct, jnp.linspace(1, 2, n * per_row), tau_plus, jnp.float32(0.1))


@each_batch
def test_anchors_without_a_negative_leave_the_mean(batch):
    tiled, _ = both_ways(batch, "bayesian", 2, ids=jnp.array([1, 1, 1, 1, 1]))
    assert tiled(*embeddings(5), 0.5) == 0
    grads = jax.grad(tiled, (0, 1))(*embeddings(5), jnp.float32(0.5))
    assert all((np.asarray(g) == 0).all() for g in grads)


@each_batch
@each_loss
def test_half_precision(batch, name):
    tiled, direct = both_ways(batch, name, 4)
    x, y = (z.astype(jnp.bfloat16) for z in embeddings(9))
    args = x, y, jnp.float32(0.2)
    got, want = (jax.value_and_grad(f, (0, 1, 2))(*args) for f in (tiled, direct))
    assert got[0].dtype == jnp.float32
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    for g, w in zip(got[1], want[1], strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(
            g.astype(jnp.float32), w.astype(jnp.float32), rtol=2e-2, atol=4e-3
        )


def temporary_bytes(f, n):
    args = *(jax.ShapeDtypeStruct((n, 16), jnp.float32) for _ in range(2)), jnp.float32(0.5)
    compiled = jax.jit(jax.value_and_grad(f, (0, 1, 2))).lower(*args).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@each_loss
def test_memory_is_linear_in_the_batch(name):
    tiled, direct = both_ways("views", name, 8)
    small, large = temporary_bytes(tiled, 256), temporary_bytes(tiled, 2048)
    assert large < 10 * small  # eight times the batch
    assert temporary_bytes(direct, 2048) > 10 * large


@each_loss
def test_values_do_not_recompile_and_jit_and_vmap_agree(name):
    tiled, _ = both_ways("views", name, 3)
    x, y = embeddings(4)
    traces = 0

    def f(x, y, temperature):
        nonlocal traces
        traces += 1
        return tiled(x, y, temperature)

    jitted = jax.jit(f)
    temperatures = jnp.array([0.2, 0.9])
    want = [jitted(x, y, t) for t in temperatures]
    assert traces == 1
    np.testing.assert_allclose(
        jax.vmap(tiled, (None, None, 0))(x, y, temperatures), want, rtol=1e-6
    )
    np.testing.assert_allclose(tiled(x, y, 0.2), want[0], rtol=1e-6)


@each_batch
@pytest.mark.parametrize("name", ["info_nce", "bayesian"])
def test_eight_devices_give_the_result_of_one(batch, name):
    _, tiled_of, per_row = BATCHES[batch]
    loss, knobs = LOSSES[name]
    n = 24
    x, y = embeddings(n)
    ids, weights = jnp.arange(n) % 17, jnp.linspace(0.5, 1.5, n)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def on_one(x, y, weights, temperature):
        return tiled_of(
            loss, x, y, ids=ids, weights=jnp.tile(weights, per_row), rows=2,
            temperature=temperature, **knobs,
        )  # fmt: skip

    def on_all(x, y, weights, temperature):
        def part(x, y, ids, weights, temperature):
            return tiled_of(
                loss, x, y, ids=ids, weights=jnp.tile(weights, per_row), rows=2,
                temperature=temperature, axis_name="data", **knobs,
            )  # fmt: skip

        split = jax.shard_map(part, mesh=mesh, in_specs=(*4 * (P("data"),), P()), out_specs=P())
        return split(x, y, ids, weights, temperature)

    args = x, y, weights, jnp.float32(0.4)
    got, want = (jax.jit(jax.value_and_grad(f, (0, 1, 2, 3)))(*args) for f in (on_all, on_one))
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=1e-7), got, want)


def test_without_ids_rows_of_other_devices_are_others():
    x, y = embeddings(16)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def part(x, y):
        return losses.tiled_tower_loss(losses.info_nce, x, y, axis_name="data")

    on_all = jax.shard_map(part, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P())
    scores = losses.tower_scores(x, y)
    np.testing.assert_allclose(
        on_all(x, y), losses.info_nce(*scores[:2], where=scores.where), rtol=1e-6
    )


def test_what_does_not_fit_is_named():
    x, y = embeddings(4)
    with pytest.raises(ValueError, match="`z2` must have shape"):
        losses.tiled_view_loss(losses.info_nce, x, y[:3])
    with pytest.raises(ValueError, match="`weights` must have shape"):
        losses.tiled_view_loss(losses.info_nce, x, y, weights=jnp.ones(4))
    with pytest.raises(ValueError, match="`ids` must have shape"):
        losses.tiled_tower_loss(losses.info_nce, x, y, ids=jnp.arange(3))
    with pytest.raises(ValueError, match="`tau_plus` must lie in"):
        losses.tiled_tower_loss(losses.debiased_contrastive, x, y, tau_plus=1.5)
    with pytest.raises(ValueError, match="`rows` must be positive, got 0"):
        losses.tiled_tower_loss(losses.info_nce, x, y, rows=0)
