"""Metrics of single lists, against loops and scikit-learn, and their properties."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from sklearn.metrics import ndcg_score, roc_auc_score

from crl_jax import metrics

pytestmark = pytest.mark.usefixtures("quick_compiles")


def np_dcg(hits):
    return sum(1 / np.log2(i + 2) for i, hit in enumerate(hits) if hit)


# The published definitions for a single list, in plain Python.
def best_from(h, i, k):
    """The best precision at rank i + 1 or a later one."""
    return max(sum(h[: j + 1]) / (j + 1) for j in range(i, k))


METRICS = {
    "precision": (metrics.precision_at, lambda h, n, k: sum(h[:k]) / k),
    "recall": (metrics.recall_at, lambda h, n, k: sum(h[:k]) / n),
    "f1": (metrics.f1_at, lambda h, n, k: 2 * sum(h[:k]) / (k + n)),
    "ndcg": (metrics.ndcg_at, lambda h, n, k: np_dcg(h[:k]) / np_dcg([1] * min(k, n))),
    "map": (
        metrics.average_precision_at,
        lambda h, n, k: sum(sum(h[: i + 1]) / (i + 1) for i in range(k) if h[i]) / min(k, n),
    ),
    "hit_precision": (
        metrics.hit_precision_at,
        lambda h, n, k: sum(best_from(h, i, k) for i in range(k) if h[i]) / max(sum(h[:k]), 1),
    ),
    "mrr": (
        metrics.reciprocal_rank_at,
        lambda h, n, k: next((1 / (i + 1) for i in range(k) if h[i]), 0.0),
    ),
    "hit_rate": (metrics.hit_rate_at, lambda h, n, k: float(any(h[:k]))),
}
each_metric = pytest.mark.parametrize(("fn", "ref"), METRICS.values(), ids=METRICS)


@each_metric
@settings(max_examples=20, deadline=None)
@given(
    hits=st.lists(st.booleans(), min_size=8, max_size=8),
    missed=st.integers(0, 30),
    k=st.sampled_from([1, 5, 8]),
)
def test_matches_definition(fn, ref, hits, missed, k):
    n = max(sum(hits) + missed, 1)
    got = fn(jnp.array(hits), jnp.int32(n), k=k)
    assert got.dtype == jnp.float32
    assert 0 <= got <= 1
    np.testing.assert_allclose(got, ref(hits, n, k), rtol=1e-6)


@each_metric
def test_ideal_and_empty_lists(fn, ref):
    # Three relevant items at the top of 10 ranks; no hits; no relevant items.
    hits = jnp.arange(10)[None] < jnp.array([[3], [0], [0]])
    got = fn(hits, jnp.array([3, 3, 0]), k=3)
    np.testing.assert_array_equal(got, [1, 0, 0])


@each_metric
def test_jit_vmap_and_batch_axes(fn, ref):
    hits = jax.random.bernoulli(jax.random.key(0), 0.3, (4, 5, 12))
    n = jnp.sum(hits, -1) + 1
    got, mapped = jax.jit(lambda h, m: (fn(h, m, k=7), jax.vmap(partial(fn, k=7))(h, m)))(hits, n)
    pairs = zip(np.asarray(hits).reshape(20, 12).tolist(), np.ravel(n), strict=True)
    want = np.reshape([ref(h, m, 7) for h, m in pairs], (4, 5))
    np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(mapped, want, rtol=1e-6)


@each_metric
def test_vmap_over_cutoffs_matches_single_cutoffs(fn, ref):
    hits = jax.random.bernoulli(jax.random.key(1), 0.4, (6, 9))
    n = jnp.sum(hits, -1) + jnp.arange(6)
    ks = jnp.array([1, 4, 9])
    got = jax.vmap(lambda k: fn(hits, n, k=k))(ks)
    np.testing.assert_allclose(got, [fn(hits, n, k=int(k)) for k in ks], rtol=1e-6)


@each_metric
def test_errors_name_the_argument(fn, ref):
    hits, n = jnp.zeros((2, 5), bool), jnp.ones(2, jnp.int32)
    for k in (0, 6):
        with raises(ValueError, match=r"`k` must lie in \[1, 5\]"):
            fn(hits, n, k=k)
    with raises((ValueError, TypeCheckError), match="n_relevant"):
        fn(hits, n[:1], k=2)


def test_ndcg_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    relevant, scores = rng.random((20, 30)) < 0.2, rng.random((20, 30))
    relevant[:, 0] = True
    hits = np.take_along_axis(relevant, np.argsort(-scores, -1), -1)
    for k in (1, 10, 30):
        got = metrics.ndcg_at(jnp.asarray(hits), jnp.asarray(relevant.sum(-1)), k=k)
        np.testing.assert_allclose(got.mean(), ndcg_score(relevant, scores, k=k), rtol=1e-6)


def test_auc_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(10):
        relevant = np.append(rng.random(40) < 0.2, [True, False])
        scores = rng.integers(0, 10, relevant.size)
        above = np.subtract.outer(scores[~relevant], scores[relevant])
        inversions = jnp.float32((above > 0).sum() + (above == 0).sum() / 2)
        got = metrics.auc(inversions, jnp.int32(relevant.sum()), jnp.int32((~relevant).sum()))
        np.testing.assert_allclose(got, roc_auc_score(relevant, scores), rtol=1e-6)


def test_auc_of_large_and_zero_counts():
    million = jnp.int32(1_000_000)  # its square overflows int32
    assert metrics.auc(jnp.float32(2.5e11), million, million) == 0.75
    assert metrics.auc(jnp.float32(0), jnp.int32(3), jnp.int32(0)) == 0.5
    with raises((ValueError, TypeCheckError), match="n_irrelevant"):
        metrics.auc(jnp.zeros(2), jnp.ones(2, jnp.int32), jnp.ones(3, jnp.int32))


def test_counts_of_narrow_integers_do_not_wrap():
    hits = jnp.ones((1, 100), bool)
    assert metrics.f1_at(hits, jnp.array([100], jnp.int8), k=100) == 1
    hits = (jnp.arange(300) < 100)[None]
    assert metrics.average_precision_at(hits, jnp.array([100], jnp.int8), k=300) == 1
