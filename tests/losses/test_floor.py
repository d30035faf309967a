"""Rate at which the floor clamps the estimate, against a loop over the anchors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import losses

pytestmark = pytest.mark.usefixtures("quick_compiles")

hit_rate = jax.jit(losses.floor_hit_rate)


@pytest.fixture
def scores():
    keys = jax.random.split(jax.random.key(0), 3)
    neg = jax.random.uniform(keys[0], (40, 5, 12), minval=-1.0)
    pos = jax.random.uniform(keys[1], (40, 5, 3), minval=-0.3)
    where = jax.random.bernoulli(keys[2], 0.5, neg.shape).at[0, 0].set(False)
    return neg, pos, where


def np_rate(neg, pos, where, tau_plus, beta, min_score, t):
    neg, pos, where = np.asarray(neg, np.float64), np.asarray(pos, np.float64), np.asarray(where)
    hits = []
    for i in np.ndindex(neg.shape[:-1]):
        s = neg[i][where[i]] / t
        if not s.size:
            continue
        mean = np.sum(np.exp((beta + 1) * s)) / np.sum(np.exp(beta * s))
        estimate = (mean - tau_plus * np.exp(pos[i] / t).mean()) / (1 - tau_plus)
        hits.append(estimate <= np.exp(min_score / t))
    return np.mean(hits)


@pytest.mark.parametrize(
    ("tau_plus", "beta", "min_score", "t"), [(0.0, 0.0, -1.0, 0.5), (0.4, 0.5, -jnp.inf, 1.0)]
)
def test_floor_hit_rate(scores, tau_plus, beta, min_score, t):
    neg, pos, where = scores
    hyper = dict(tau_plus=tau_plus, beta=beta, min_score=min_score, temperature=t)
    want = np_rate(neg, pos, where, *hyper.values())
    assert hit_rate(neg, pos, where=where, **hyper) == pytest.approx(want)
    want = np_rate(neg, pos, np.ones_like(where), *hyper.values())
    assert hit_rate(neg, pos, **hyper) == pytest.approx(want)
    assert (want == 0) == (tau_plus == 0)
    assert hit_rate(neg, pos, where=jnp.zeros_like(where), **hyper) == 0


def test_clamped_anchors_have_zero_gradient(scores):
    neg, pos, _ = scores
    grad = jax.jit(jax.grad(lambda neg: losses.debiased_log_sum(neg, pos, tau_plus=0.5).sum()))(neg)
    still = jnp.all(grad == 0, axis=-1)
    assert 0.02 < still.mean() < 0.98
    assert hit_rate(neg, pos, tau_plus=0.5) == pytest.approx(float(still.mean()))


def test_propagates_nan_unless_masked(scores):
    neg, pos, where = scores
    for corrupted in ((neg.at[1].set(jnp.nan), pos), (neg, pos.at[1, 0].set(jnp.nan))):
        for keep in (where, None):
            assert np.isnan(hit_rate(*corrupted, tau_plus=0.1, where=keep))
        gone = where.at[1].set(False)
        assert np.isfinite(hit_rate(*corrupted, tau_plus=0.1, where=gone))


def test_errors_name_the_argument(scores):
    neg, pos, where = scores
    with raises(Exception, match="where"):
        losses.floor_hit_rate(neg, pos, tau_plus=0.1, where=where[0])
    with raises(ValueError, match="`tau_plus` must lie in"):
        losses.floor_hit_rate(neg, pos, tau_plus=1.0)
    with raises(ValueError, match="`min_score` must lie in"):
        losses.floor_hit_rate(neg, pos, tau_plus=0.1, min_score=jnp.inf)


def test_half_precision_keeps_the_number_of_negatives():
    """bfloat16 would round log 300 by 0.016, which exceeds the distance of the floor here."""
    scores = jax.random.uniform(jax.random.key(0), (4, 300)).astype(jnp.bfloat16)
    exact = np.asarray(scores, np.float64)
    log_mean = np.log(np.mean(np.exp(exact), axis=1))
    pos = scores[:, :1]
    for distance, want in ((-0.005, 0), (0.005, 1)):
        assert hit_rate(scores, pos, tau_plus=0.0, min_score=log_mean + distance) == want
    everything = jnp.ones(scores.shape, bool)
    got = losses.oracle_log_sum(scores, true_negative=everything)
    np.testing.assert_allclose(got, np.log(300) + log_mean, rtol=1e-6)
