"""Top-k selection against a stable NumPy sort, on both of its code paths."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.platforms import forms_for, lowered_for
from _helpers.refusals import raises
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jaxtyping import TypeCheckError

from crl_jax.metrics import _top_k as module
from crl_jax.metrics import approx_top_k, top_k, top_k_recall

pytestmark = pytest.mark.usefixtures("quick_compiles")


def reference(scores, k):
    order = np.argsort(-np.asarray(scores, np.float64), axis=-1, kind="stable")[..., :k]
    return np.take_along_axis(np.asarray(scores), order, -1), order


def check(got, scores, k):
    values, indices = reference(scores, k)
    assert got[1].dtype == jnp.int32
    np.testing.assert_array_equal(got[0], values)
    np.testing.assert_array_equal(got[1], indices)


@pytest.mark.parametrize(("n", "k"), [(1, 1), (7, 7), (500, 20), (4096, 1), (4097, 32), (9001, 70)])
def test_matches_stable_sort(n, k):
    scores = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    check(top_k(jnp.asarray(scores), k), scores, k)


@pytest.mark.parametrize("values", [[0.0], [0.0, -0.0], [1.0, 2.0], [-np.inf], [-np.inf, np.inf]])
def test_ties_rank_by_index(values):
    scores = np.random.default_rng(0).choice(np.float32(values), size=(4, 5003))
    check(top_k(jnp.asarray(scores), 17), scores, 17)


two_stages = jax.jit(module._two_stages, static_argnums=(1, 2))


# Few distinct shapes: each one compiles.
@settings(max_examples=60, deadline=None)
@given(
    scores=st.lists(st.sampled_from([-np.inf, -1.0, -0.0, 0.0, 1.0, np.inf]), min_size=40)
    .map(lambda x: np.resize(np.float32(x), 41))
    .flatmap(lambda x: st.permutations(x.tolist())),
    shape=st.sampled_from([(41, 3, 4), (37, 5, 4), (37, 1, 16), (32, 2, 8)]),
)
@example([0.0] * 4 + [1.0] + [0.0] * 3 + [-1.0] * 33, (41, 3, 4))  # a tie with an earlier chunk
def test_two_stages_are_exact_under_ties(scores, shape):
    n, k, chunk = shape
    scores = jnp.asarray(scores, jnp.float32)[:n]
    values, indices, has_nan = two_stages(scores, k, chunk)
    check((values, indices), scores, k)
    assert not has_nan


@pytest.mark.parametrize("n", [50, 6000])
@pytest.mark.parametrize("nan", [np.float32(np.nan), -np.float32(np.nan)])
def test_nan_only_affects_its_row(n, nan):
    scores = np.random.default_rng(0).normal(size=(3, n)).astype(np.float32)
    scores[1, n - 1] = nan
    values, indices = top_k(jnp.asarray(scores), 4)
    assert np.isnan(values[1]).all()
    check((values[::2], indices[::2]), scores[::2], 4)


@pytest.mark.parametrize("n", [50, 6000])
def test_half_precision_batches_and_transformations(n):
    scores = jax.random.normal(jax.random.key(0), (2, 3, n), jnp.bfloat16)  # full of ties
    got = top_k(scores, 9)
    assert got[0].dtype == jnp.bfloat16
    check((got[0].astype(jnp.float32), got[1]), scores.astype(jnp.float32), 9)
    for other in (
        jax.jit(top_k, static_argnums=1)(scores, 9),
        jax.vmap(lambda s: top_k(s, 9))(scores),
    ):
        jax.tree.map(np.testing.assert_array_equal, other, got)


def test_long_rows_use_one_stage_on_tpu():
    scores = np.random.default_rng(0).choice(np.float32([0, -0.0, 1, -np.inf]), (3, 5003))
    with forms_for("tpu", module._select_from_long_rows):
        check(top_k(jnp.asarray(scores), 17), scores, 17)
        with_nan = jnp.asarray(scores).at[1, 9].set(jnp.nan)
        assert np.isnan(top_k(with_nan, 17)[0]).all(1).tolist() == [False, True, False]
    select = partial(top_k, k=17)
    assert "gather" in lowered_for("cpu", select, scores)
    assert "gather" not in lowered_for("tpu", select, scores)


@pytest.mark.parametrize("k", [0, 6])
def test_rejects_k_out_of_range(k):
    with raises((ValueError, TypeCheckError), match=r"`k` must lie in \[1, 5\]"):
        top_k(jnp.zeros((2, 5)), k)


@pytest.mark.parametrize(("n", "k"), [(7, 7), (4097, 32)])
def test_approx_top_k_is_exact_on_cpu(n, k):
    scores = np.random.default_rng(n).normal(size=(5, n)).astype(np.float32)
    check(jax.jit(approx_top_k, static_argnums=(1, 2))(jnp.asarray(scores), k, 0.5), scores, k)


def test_approx_top_k_returns_nan_for_rows_with_nan():
    scores = jnp.array([[1.0, jnp.nan, 3.0], [1.0, 2.0, 3.0]])
    values, _ = approx_top_k(scores, 2)
    np.testing.assert_array_equal(values, [[np.nan, np.nan], [3, 2]])


@pytest.mark.parametrize("target", [0, 1.5, np.nan])
def test_rejects_recall_target_out_of_range(target):
    with raises(ValueError, match="`recall_target` must"):
        approx_top_k(jnp.ones(3), 2, target)


def test_top_k_recall_ignores_order():
    exact = np.array([[3, 1, 2], [4, -1, -1], [0, 5, 6]])
    found = np.array([[2, 9, 3], [-1, -1, 4], [7, 8, 9]])
    assert top_k_recall(found, exact) == pytest.approx(3 / 7)
    assert top_k_recall(exact[1:2, 1:], exact[1:2, 1:]) == 1
    for other in (exact[0], exact[:1]):
        with raises(ValueError, match=r"`found` and `exact` must have shapes \[rows, k\]"):
            top_k_recall(found, other)
