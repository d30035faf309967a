"""Nearest neighbours against a float64 sort and sum, and uniformity against its loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import losses, metrics
from crl_jax.metrics import _neighbours as module
from crl_jax.metrics import uniformity

pytestmark = pytest.mark.usefixtures("quick_compiles")
knn_accuracy = partial(metrics.knn_accuracy, n_classes=4)
knn_predict = partial(metrics.knn_predict, n_classes=4)


def np_predict(queries, bank, labels, k, tau, leave_out=None, kept=None):
    """Reference: the published formula, one query after another, in float64."""
    queries, bank = (np.asarray(x, np.float64) for x in (queries, bank))
    unit = bank / np.linalg.norm(bank, axis=1, keepdims=True)
    kept = labels >= 0 if kept is None else kept & (labels >= 0)
    predictions = []
    for i, query in enumerate(queries):
        s = unit @ query / np.linalg.norm(query)
        s[~kept] = -np.inf
        if leave_out is not None and leave_out[i] >= 0:
            s[leave_out[i]] = -np.inf
        near = np.argsort(-s, kind="stable")[:k]
        near = near[np.isfinite(s[near])]
        votes = np.zeros(labels.max() + 1)
        np.add.at(votes, labels[near], np.exp(s[near] / tau))
        predictions.append(votes.argmax() if len(near) else -1)
    return np.array(predictions)


def clusters(seed=0, n=300, dim=6, classes=4):
    """Overlapping clusters, with a tenth of the labels unknown."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, n)
    centres = rng.normal(size=(classes, dim))
    x = centres[labels] + 1.2 * rng.normal(size=(n, dim))
    labels[rng.random(n) < 0.1] = -1
    return jnp.asarray(x, jnp.float32), jnp.asarray(labels, jnp.int32)


X, Y = clusters()
QUERIES, BANK, QUERY_LABELS, LABELS = X[:90], X[90:], Y[:90], Y[90:]


@pytest.mark.parametrize(("k", "tau"), [(1, 0.07), (20, 0.07), (20, 0.5), (210, 0.02)])
def test_predictions_match_weighted_votes(k, tau):
    want = np_predict(QUERIES, BANK, np.asarray(LABELS), k, tau)
    got = knn_predict(QUERIES, BANK, LABELS, k=k, temperature=tau)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, want)
    known = np.asarray(QUERY_LABELS) >= 0
    share = np.mean(want[known] == np.asarray(QUERY_LABELS)[known])
    accuracy = knn_accuracy(QUERIES, QUERY_LABELS, BANK, LABELS, k=k, temperature=tau)
    assert accuracy == pytest.approx(share)
    assert accuracy > 0.4  # a quarter by chance


def test_ignores_masked_entries():
    kept = np.random.default_rng(1).random(len(BANK)) < 0.5
    corrupted = jnp.where(jnp.asarray(kept)[:, None], BANK, jnp.nan)
    got = knn_predict(QUERIES, corrupted, LABELS, k=150, bank_where=jnp.asarray(kept))
    assert kept.sum() < 150
    np.testing.assert_array_equal(
        got, np_predict(QUERIES, BANK, np.asarray(LABELS), 150, 0.07, kept=kept)
    )
    np.testing.assert_array_equal(
        got, knn_predict(QUERIES, BANK[kept], LABELS[kept], k=int(kept.sum()))
    )
    where = jnp.arange(len(QUERIES)) % 3 > 0
    some = knn_accuracy(QUERIES, QUERY_LABELS, BANK, LABELS, k=9, where=where)
    short = knn_accuracy(QUERIES[where], QUERY_LABELS[where], BANK, LABELS, k=9)
    assert some == pytest.approx(float(short))


def test_leave_out_excludes_own_entry():
    """Excluded, each entry sees only the others; otherwise it is its own nearest neighbour."""
    own = jnp.arange(len(BANK), dtype=jnp.int32)
    want = np_predict(BANK, BANK, np.asarray(LABELS), 5, 0.07, leave_out=np.arange(len(BANK)))
    np.testing.assert_array_equal(knn_predict(BANK, BANK, LABELS, k=5, leave_out=own), want)
    assert knn_accuracy(BANK, LABELS, BANK, LABELS, k=1) == 1
    assert knn_accuracy(BANK, LABELS, BANK, LABELS, k=1, leave_out=own) < 1
    none = jnp.full(len(BANK), -1, jnp.int32)
    assert knn_accuracy(BANK, LABELS, BANK, LABELS, k=1, leave_out=none) == 1


@pytest.mark.parametrize("block_size", [1, 89, 1000])
def test_block_size_does_not_change_predictions(block_size):
    leave_out = jnp.arange(len(QUERIES), dtype=jnp.int32) - 3
    got = knn_predict(QUERIES, BANK, LABELS, k=7, leave_out=leave_out, block_size=block_size)
    want = np_predict(QUERIES, BANK, np.asarray(LABELS), 7, 0.07, leave_out=leave_out)
    np.testing.assert_array_equal(got, want)


@settings(deadline=None, max_examples=10)
@given(seed=st.integers(0, 2**31 - 1), power=st.integers(-60, 60))
def test_predictions_are_invariant_to_scale_and_rotation(seed, power):
    rng = np.random.default_rng(seed)
    rotation = jnp.asarray(np.linalg.qr(rng.normal(size=(6, 6)))[0], jnp.float32)
    lengths = jnp.asarray(2.0 ** (power / 2) * (1 + rng.random(len(BANK)))[:, None], jnp.float32)
    want = knn_predict(QUERIES, BANK, LABELS, k=20)
    rotated = QUERIES @ rotation * 2.0**power, BANK @ rotation * lengths
    got = knn_predict(*rotated, LABELS, k=20)
    assert np.mean(np.asarray(got) != np.asarray(want)) < 0.03  # nearly equal votes


def test_duplicated_bank_gives_same_predictions():
    twice = jnp.concatenate([BANK, BANK]), jnp.concatenate([LABELS, LABELS])
    got = knn_predict(QUERIES, *twice, k=40)
    np.testing.assert_array_equal(got, knn_predict(QUERIES, BANK, LABELS, k=20))


def test_ties_are_broken_by_entry_and_class_order():
    """Ties go to the first entry among equal cosines, to the lowest class among equal votes."""
    bank, query = jnp.ones((6, 2)), jnp.ones((1, 2))
    labels = jnp.array([4, 2, 9, 1, 1, 1])
    for k, first in ((1, 4), (3, 2), (5, 1)):
        assert metrics.knn_predict(query, bank, labels, n_classes=10, k=k)[0] == first
    # A label of at least `n_classes` is an error, or has no vote if it is traced.
    predict = partial(metrics.knn_predict, query, bank, n_classes=4, k=1)
    with raises(ValueError, match="`labels` must be below `n_classes` = 4"):
        predict(labels)
    assert jax.jit(predict)(labels)[0] == 2


def test_handles_tiny_temperatures_nan_and_empty_banks():
    """A tiny temperature uses only the nearest; NaN or no valid neighbour gives no class."""
    got = knn_predict(QUERIES, BANK, LABELS, k=30, temperature=1e-6)
    nearest = np_predict(QUERIES, BANK, np.asarray(LABELS), 1, 1.0)
    np.testing.assert_array_equal(got, nearest)
    assert np.all(knn_predict(QUERIES, BANK, jnp.full_like(LABELS, -1), k=3) == -1)
    voter = int(jnp.argmax(LABELS >= 0))
    assert np.all(knn_predict(QUERIES, BANK.at[voter, 0].set(jnp.nan), LABELS, k=3) == -1)
    corrupted = knn_predict(QUERIES.at[2].set(jnp.nan), BANK, LABELS, k=3)
    clean = knn_predict(QUERIES, BANK, LABELS, k=3)
    assert corrupted[2] == -1
    np.testing.assert_array_equal(np.delete(corrupted, 2), np.delete(clean, 2))
    assert knn_accuracy(QUERIES, jnp.full_like(QUERY_LABELS, -1), BANK, LABELS, k=3) == 0


def test_supports_jit_vmap_and_half_precision():
    predict = jax.jit(lambda q, tau: knn_predict(q, BANK, LABELS, k=9, temperature=tau))
    tau = jnp.float32(0.1)
    want = knn_predict(QUERIES, BANK, LABELS, k=9, temperature=0.1)
    np.testing.assert_array_equal(predict(QUERIES, tau), want)
    both = jax.vmap(predict, (0, None))(jnp.stack([QUERIES, QUERIES[::-1]]), tau)
    np.testing.assert_array_equal(both, jnp.stack([want, want[::-1]]))
    half = QUERIES.astype(jnp.bfloat16), BANK.astype(jnp.bfloat16)
    wide = (x.astype(jnp.float32) for x in half)
    np.testing.assert_array_equal(knn_predict(*half, LABELS, k=9), knn_predict(*wide, LABELS, k=9))


def test_temperature_does_not_recompile():
    before = module._predict._cache_size()
    for tau in (0.31, 0.32, 0.33):
        knn_predict(QUERIES, BANK, LABELS, k=11, temperature=tau)
    assert module._predict._cache_size() == before + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 211}, r"`k` must lie in \[1, 210\], the size of the bank, got 211"),
        ({"k": 0}, r"`k` must lie in \[1, 210\]"),
        ({"temperature": 0.0}, "`temperature` must lie in"),
        ({"n_classes": 0}, "`n_classes` must be at least 1"),
        ({"block_size": 0}, "`block_size` must be at least 1"),
        ({"labels": LABELS[1:]}, "`labels` must have shape"),
        ({"bank": BANK[:, 1:]}, "`bank` must have shape"),
        ({"leave_out": LABELS}, "`leave_out` must have shape"),
        ({"bank_where": QUERY_LABELS > 0}, "`bank_where` must have shape"),
        ({"query_labels": LABELS}, "`query_labels` must have shape"),
        ({"where": LABELS > 0}, "`where` must have shape"),
    ],
)
def test_rejects_invalid_arguments(change, message):
    given = {"queries": QUERIES, "query_labels": QUERY_LABELS, "bank": BANK, "labels": LABELS}
    with raises(ValueError, match=message):
        knn_accuracy(**(given | {"k": 3} | change))


@pytest.mark.parametrize("block_size", [7, 500])
def test_uniformity_matches_loss(block_size):
    z, where = losses.normalize(QUERIES), jnp.arange(len(QUERIES)) % 4 > 0
    got = uniformity(z, scale=1.7, block_size=block_size)
    assert got == pytest.approx(float(losses.uniformity(z, scale=1.7)), rel=1e-5)
    apart = ((np.asarray(z, np.float64)[:, None] - np.asarray(z, np.float64)) ** 2).sum(-1)
    mean = np.exp(-1.7 * apart)[~np.eye(len(z), dtype=bool)].mean()
    assert got == pytest.approx(np.log(mean), rel=1e-5)
    corrupted = jnp.where(where[:, None], z, jnp.nan)
    masked = uniformity(corrupted, where=where, block_size=block_size)
    assert masked == pytest.approx(float(losses.uniformity(z, where=where)), rel=1e-5)


def test_uniformity_at_extreme_inputs():
    one = jnp.ones((5, 2)) / jnp.sqrt(2.0)
    assert uniformity(one) == pytest.approx(0, abs=1e-5)
    assert uniformity(one, where=jnp.arange(5) == 2) == 0
    assert uniformity(one, where=jnp.zeros(5, bool)) == 0
    opposite = jnp.array([[1.0, 0.0], [-1.0, 0.0]])
    assert uniformity(opposite, scale=1000.0) == pytest.approx(-4000)
    wide = jax.jit(uniformity)(one.astype(jnp.bfloat16))
    assert wide.dtype == jnp.float32
    with raises(ValueError, match="`scale` must lie in"):
        uniformity(one, scale=0.0)
    with raises(ValueError, match="`where` must have shape"):
        uniformity(one, where=jnp.ones(4, bool))
