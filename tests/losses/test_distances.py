"""Distance-based pair losses, alignment and uniformity."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.compare import same
from _helpers.programs import jitted
from _helpers.refusals import raises
from jax.test_util import check_grads

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(losses)


def unit(seed, *shape):
    x = np.random.default_rng(seed).normal(size=shape)
    return jnp.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True), jnp.float32)


@pytest.fixture
def x():
    return unit(0, 6, 4)


@pytest.fixture
def y():
    return unit(1, 6, 4)


DISTANCE = jnp.array([0.0, 0.5, 2.0, 0.0, 0.5, 2.0])
SAME = jnp.array([True, True, True, False, False, False])


def test_pair_contrastive_matches_hand_computed_values():
    each = quick.pair_contrastive(DISTANCE, SAME, reduce_fn=None)
    same(each, [0, 0.125, 2, 0.5, 0.125, 0])
    wider = partial(losses.half_squared_hinge, margin=3.0)
    each = quick.pair_contrastive(DISTANCE, SAME, repel=wider, reduce_fn=None)
    same(each, [0, 0.125, 2, 4.5, 3.125, 0.5])


def test_infinite_repel_does_not_affect_positive_pairs():
    """The logarithm, infinite at 0, must not affect the gradient of a positive pair."""
    distance = jnp.array([0.0, 0.5])

    def loss(d):
        return quick.pair_contrastive(
            d, jnp.array([True, False]), attract=jnp.square, repel=lambda d: -jnp.log(d)
        )

    value, slope = jax.jit(jax.value_and_grad(loss))(distance)
    same(value, -np.log(0.5) / 2)
    same(slope, [0, -1 / 0.5 / 2])


def np_uniformity(z, scale, keep):
    """The log of a mean over pairs, in float64."""
    z = np.asarray(z, np.float64)[np.asarray(keep)]
    terms = [np.exp(-scale * ((a - b) ** 2).sum()) for i, a in enumerate(z) for b in z[:i]]
    return np.log(np.mean(terms))


@pytest.mark.parametrize("scale", [0.5, 2.0, 200.0])
def test_uniformity_matches_log_mean_over_pairs(x, scale):
    everything = jnp.ones(6, bool)
    same(quick.uniformity(x, scale=scale), np_uniformity(x, scale, everything), rtol=1e-5)
    keep = everything.at[2].set(False)
    same(quick.uniformity(x, scale=scale, where=keep), np_uniformity(x, scale, keep), rtol=1e-5)


def test_uniformity_of_single_point_is_zero(x):
    sets = jnp.stack([x, x])
    where = jnp.stack([jnp.arange(6) == 0, jnp.ones(6, bool)])

    @jax.jit
    @partial(jax.value_and_grad, has_aux=True)
    def total(sets):
        each = losses.uniformity(sets, where=where, reduce_fn=None)
        return each.sum(), (each, losses.uniformity(sets, where=where), losses.uniformity(x))

    (_, (each, mean, one)), slope = total(sets)
    assert each[0] == 0
    assert (slope[0] == 0).all()
    same(mean, one)
    assert quick.uniformity(x[:1]) == 0


LOSSES = {
    "pair": (lambda d, **kw: losses.pair_contrastive(d, SAME, **kw), (DISTANCE + 0.1,)),
    "alignment": (losses.alignment, (unit(0, 6, 4), unit(1, 6, 4))),
    "uniformity": (losses.uniformity, (unit(2, 6, 3, 4),)),
}
each_loss = pytest.mark.parametrize(("fn", "args"), LOSSES.values(), ids=LOSSES)


@each_loss
def test_ignores_masked_entries(fn, args):
    weights = jnp.arange(1.0, 7.0)
    keep = where = jnp.arange(6) > 1
    if fn is losses.uniformity:
        where = jnp.broadcast_to(keep[:, None], (6, 3)).at[5, 0].set(False)
    value_and_grad = jax.jit(
        jax.value_and_grad(lambda a, w: fn(*a, weights=w, where=where), (0, 1))
    )
    want = value_and_grad(args, weights)
    rest = jax.jit(lambda a, w: fn(*a, weights=w, where=where, reduce_fn=None))(args, weights)
    np.testing.assert_array_equal(rest[:2], 0)
    same(want[0], rest[2:].mean())
    for junk in (jnp.nan, jnp.inf):
        corrupted = [
            jnp.where(where.reshape(where.shape + (1,) * (a.ndim - where.ndim)), a, junk)
            for a in args
        ]
        got = value_and_grad(tuple(corrupted), jnp.where(keep, weights, junk))
        jax.tree.map(np.testing.assert_array_equal, got, want)


@each_loss
def test_gradients_types_and_transforms(fn, args):
    half = [a.astype(jnp.bfloat16) for a in args]

    @jax.jit
    def several(args, half):
        back = (a.astype(jnp.float32) for a in half)
        # The labels of pairs are not mapped.
        mapped = None if fn is LOSSES["pair"][0] else jax.vmap(fn)(*args)
        doubled = fn(*args, weights=jnp.full(6, 2.0))
        return fn(*args, reduce_fn=None), doubled, mapped, fn(*half), fn(*back)

    each, doubled, mapped, got, want = several(args, half)
    same(doubled, 2 * each.mean(), rtol=1e-5)
    if mapped is not None:
        same(mapped, each, rtol=1e-5)
    assert got.dtype == jnp.float32
    same(got, want)
    with jax.enable_x64(True):
        wide = tuple(jnp.asarray(np.asarray(a), jnp.float64) for a in args)
        assert jax.eval_shape(fn, *wide).dtype == jnp.float64
        check_grads(jax.jit(lambda *a: fn(*a)), wide, order=1, modes=["rev"], rtol=1e-4)


def test_propagates_nan_of_valid_entries(x, y):
    bad = x.at[1, 0].set(jnp.nan)
    assert jnp.isnan(quick.alignment(bad, y, reduce_fn=None)[1])
    assert jnp.isnan(quick.uniformity(bad))
    assert jnp.isnan(quick.pair_contrastive(DISTANCE.at[4].set(jnp.nan), SAME))


def test_rejects_invalid_shapes_and_ranges(x, y):
    five = jnp.ones(5)
    for name, call in [
        ("same", lambda: losses.pair_contrastive(DISTANCE, SAME[:5])),
        ("where", lambda: losses.pair_contrastive(DISTANCE, SAME, where=SAME[:5])),
        ("weights", lambda: losses.pair_contrastive(DISTANCE, SAME, weights=five)),
        ("y", lambda: losses.alignment(x, y[:5])),
        ("where", lambda: losses.alignment(x, y, where=SAME[:5])),
        ("weights", lambda: losses.alignment(x, y, weights=five)),
        ("where", lambda: losses.uniformity(x, where=SAME[:5])),
        ("weights", lambda: losses.uniformity(x, weights=five)),
        ("scale", lambda: losses.uniformity(x, scale=0.0)),
        ("scale", lambda: losses.uniformity(x, scale=five)),
    ]:
        with raises(Exception, match=name):
            call()
