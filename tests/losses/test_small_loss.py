"""Truncated and reweighted losses: the dropped terms and the stopped gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import quick_jit
from _helpers.refusals import raises

from crl_jax import losses

TRUNCATED = {"bce": losses.truncated_bce, "bpr": losses.truncated_bpr}
REWEIGHTED = {"bce": losses.reweighted_bce, "bpr": losses.reweighted_bpr}
PLAIN = {"bce": losses.bce, "bpr": losses.bpr}
each_kind = pytest.mark.parametrize("kind", PLAIN)


@pytest.fixture
def data():
    keys = jax.random.split(jax.random.key(0), 4)
    return dict(
        pos=jax.random.normal(keys[0], (4, 5)),
        neg=jax.random.normal(keys[1], (4, 5, 3)),
        where=jax.random.bernoulli(keys[2], 0.6, (4, 5, 3)).at[0].set(False),
        weights=jax.random.uniform(keys[3], (4, 5)) + 0.1,
    )


def np_terms(kind, pos, neg, m, t):
    """Returns the terms subject to truncation and those always kept."""
    pos, neg, m = (np.asarray(x, np.float64) for x in (pos, neg, m))
    count = np.maximum(m.sum(-1), 1)
    if kind == "bpr":
        pairs = np.log1p(np.exp((neg - pos[..., None]) / t))
        return (m * pairs).sum(-1) / count, np.zeros(pos.shape)
    return np.log1p(np.exp(-pos / t)), (m * np.log1p(np.exp(neg / t))).sum(-1) / count


@each_kind
@pytest.mark.parametrize("family", ["truncated", "reweighted"])
def test_with_nothing_to_distrust_it_is_the_plain_loss(kind, family, data):
    fn, hyper = {
        "truncated": (TRUNCATED[kind], dict(drop_rate=0.0)),
        "reweighted": (REWEIGHTED[kind], dict(exponent=0.0)),
    }[family]

    def value_and_slopes(fn, **hyper):
        def f(pos, neg, weights):
            return fn(pos, neg, weights=weights, where=data["where"], temperature=0.5, **hyper)

        return quick_jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(
            data["pos"], data["neg"], data["weights"]
        )

    got, want = value_and_slopes(fn, **hyper), value_and_slopes(PLAIN[kind])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-6), got, want)


@each_kind
@pytest.mark.parametrize("drop_rate", [0.2, 0.5, 1.0])
def test_truncation_counts_the_anchors_with_negatives(kind, drop_rate, data):
    fn = TRUNCATED[kind]
    kept = np.asarray(data["where"]).any(-1)
    assert 5 <= (~kept).sum() < 10
    first, rest = np_terms(kind, data["pos"], data["neg"], data["where"], 0.5)
    order = np.argsort(np.where(kept, first, -1), axis=None)[::-1]
    dropped = np.zeros(20, bool)
    dropped[order[: int(drop_rate * kept.sum())]] = True
    want = np.asarray(data["weights"]) * kept * (~dropped.reshape(4, 5) * first + rest)

    got = fn(**data, temperature=0.5, drop_rate=drop_rate, reduce_fn=None)
    np.testing.assert_allclose(got, want, rtol=1e-5)
    # Dropped anchors still count in the mean, those without negatives do not.
    got = fn(**data, temperature=0.5, drop_rate=drop_rate)
    np.testing.assert_allclose(got, want.sum() / kept.sum(), rtol=1e-5)
    nothing = data | {"where": jnp.zeros_like(data["where"])}
    assert fn(**nothing, drop_rate=drop_rate) == 0


@each_kind
def test_what_is_dropped_has_no_gradient_and_the_rest_has_the_plain_one(kind, data):
    del data["where"]
    first, _ = np_terms(kind, data["pos"], data["neg"], np.ones((4, 5, 3)), 1.0)
    dropped = first >= np.sort(first, axis=None)[-10]

    def slopes(fn, **hyper):
        def f(pos, neg):
            return fn(pos, neg, weights=data["weights"], reduce_fn=jnp.sum, **hyper)

        return quick_jit(jax.grad(f, argnums=(0, 1)))(data["pos"], data["neg"])

    (pos, neg), plain = slopes(TRUNCATED[kind], drop_rate=0.5), slopes(PLAIN[kind])
    np.testing.assert_allclose(pos, np.where(dropped, 0, plain[0]), rtol=1e-6)
    gone = dropped[..., None] & (kind == "bpr")  # the negatives of BCE stay
    np.testing.assert_allclose(neg, np.where(gone, 0, plain[1]), rtol=1e-6)


@each_kind
def test_weights_do_not_say_who_is_dropped(kind):
    pos, neg = jnp.array([2.0, -1.0, 1.0, 0.0]), jnp.zeros((4, 1))
    w = jnp.array([9.0, 0.1, 9.0, 0.1])  # weighted, the second loss is among the smallest
    one = TRUNCATED[kind](pos, neg, drop_rate=0.25, reduce_fn=None)
    got = TRUNCATED[kind](pos, neg, drop_rate=0.25, weights=w, reduce_fn=None)
    np.testing.assert_allclose(got, w * one, rtol=1e-6)
    plain = PLAIN[kind](pos, neg, reduce_fn=None)
    np.testing.assert_array_equal(one != plain, [False, True, False, False])


@each_kind
def test_truncation_does_not_retrace(kind, data):
    traces = 0

    @jax.jit
    def f(drop_rate):
        nonlocal traces
        traces += 1
        return TRUNCATED[kind](**data, drop_rate=drop_rate, reduce_fn=None)

    for drop_rate in (0.0, 0.3):
        want = TRUNCATED[kind](**data, drop_rate=drop_rate, reduce_fn=None)
        np.testing.assert_allclose(f(drop_rate), want, rtol=1e-5)
    assert traces == 1


@each_kind
def test_the_rate_is_one_for_the_batch(kind, data):
    with raises(Exception, match="drop_rate"):
        TRUNCATED[kind](**data, drop_rate=jnp.full(5, 0.5))


@each_kind
def test_the_power_is_a_constant_to_the_gradient(kind):
    """Slopes of trust · softplus(-x), with trust held constant."""
    t, b = 0.5, 0.7
    pos, neg = np.array([0.3, -1.0]), np.array([[0.1, 1.5], [-0.4, 0.2]])

    def slope(x):  # of σ(x)^b · softplus(-x), with respect to x
        p = 1 / (1 + np.exp(-x))
        return -(p**b) * (1 - p)

    if kind == "bpr":
        of_pairs = slope((pos[:, None] - neg) / t) / 2
        want = (of_pairs.sum(-1) / t, -of_pairs / t)
    else:
        want = (slope(pos / t) / t, -slope(-neg / t) / 2 / t)

    def f(pos, neg, exponent):
        return REWEIGHTED[kind](pos, neg, exponent=exponent, temperature=t, reduce_fn=jnp.sum)

    got = quick_jit(jax.grad(f, argnums=(0, 1, 2)))(
        jnp.float32(pos), jnp.float32(neg), jnp.float32(b)
    )
    np.testing.assert_allclose(got[0], want[0], rtol=1e-5)
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5)
    assert got[2] == 0
