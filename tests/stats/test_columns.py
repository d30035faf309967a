"""Counts along columns against NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.platforms import forms_for, lowered_for
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.stats import count_no_larger, select_largest

pytestmark = pytest.mark.usefixtures("quick_compiles")

scores_lists = st.lists(
    st.sampled_from([-np.inf, -3.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 2.0, 1e30, np.inf, np.nan]),
    min_size=1,
    max_size=21,
)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 31, 32, 33, 131])
def test_count_no_larger_matches_numpy(n, hidden):
    rng = np.random.default_rng(n)
    scores = rng.integers(0, 9, (n, 5)).astype(np.float32)
    scores[rng.random((n, 5)) < 0.2] = np.nan
    at = rng.integers(-1, 10, (3, 5)).astype(np.float32)
    hide = rng.random((n, 5)) < 0.4 * hidden
    words = np.zeros((-(-n // 32), 5), np.uint32)
    for i, b in zip(*np.nonzero(hide), strict=True):
        words[i // 32, b] |= np.uint32(1) << np.uint32(i % 32)
    want = ((scores[:, None] <= at[None]) & ~hide[:, None]).sum(axis=0)
    got = jax.jit(count_no_larger)(scores, at, *([words] if hidden else []))
    np.testing.assert_array_equal(got, want)


SELECT = {platform: jax.jit(partial(select_largest)) for platform in ("cpu", "cuda")}


@pytest.mark.parametrize("platform", SELECT)
@settings(deadline=None, max_examples=60)
@given(column=scores_lists, data=st.data())
def test_selection_matches_stable_sort(platform, column, data):
    keep = data.draw(st.lists(st.booleans(), min_size=len(column), max_size=len(column)))
    kept = [i for i in range(len(column)) if keep[i]]

    def sort_key(i):
        number = -np.inf if np.isnan(column[i]) else column[i]
        return -number, np.isnan(column[i]), i

    order = sorted(kept, key=sort_key)
    padded = np.full((21, 1), np.nan, np.float32)
    padded[: len(column), 0] = column
    where = np.zeros((21, 1), bool)
    where[: len(column), 0] = keep
    with forms_for(platform):
        got = SELECT[platform](padded, np.arange(22, dtype=np.int32)[:, None], where)
    np.testing.assert_array_equal(got[:, 0], [*order, *[21] * (22 - len(order))])


@pytest.mark.parametrize("platform", SELECT)
def test_selection_per_column(platform):
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(50, 4)), jnp.float32)
    rank = jnp.array([[0, 10, 49, 3], [49, 0, 25, 7]], jnp.int32)
    with forms_for(platform):
        got = select_largest(scores, rank, jnp.ones(scores.shape, bool))
    want = np.take_along_axis(np.argsort(-np.asarray(scores), axis=0), np.asarray(rank), axis=0)
    np.testing.assert_array_equal(got, want)


def test_gpus_sort_short_columns_only():
    rank = jnp.zeros((1, 2), jnp.int32)
    for n, sorts in ((4096, True), (4097, False)):
        scores = jnp.zeros((n, 2))
        text = lowered_for("cuda", select_largest, scores, rank, scores == 0)
        assert ("stablehlo.sort" in text) == sorts
        assert "sort" not in lowered_for("cpu", select_largest, scores, rank, scores == 0)


def test_selection_without_jit():
    """``fori_loop`` counts in Python integers if JIT is disabled."""
    scores = jnp.array([[1.0], [3.0], [2.0]])
    with jax.disable_jit():
        got = select_largest(scores, jnp.array([[0], [2]]), jnp.ones((3, 1), bool))
    np.testing.assert_array_equal(got, [[1], [0]])
