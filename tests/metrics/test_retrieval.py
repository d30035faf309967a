"""Retrieval and zero-shot classification against float64 sorts and loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from _helpers.views import unit
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import metrics

pytestmark = pytest.mark.usefixtures("quick_compiles")
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(40, 5)).astype(np.float32)
IMAGE_IDS = np.repeat(np.arange(40), 3)  # three captions each
TEXTS = (IMAGES[IMAGE_IDS] + 1.5 * RNG.normal(size=(120, 5))).astype(np.float32)
GROUPS = np.where(RNG.random(40) < 0.2, -1, np.arange(40) // 2)  # variants in pairs, some unknown


def np_ranks(queries, answers, query_ids, answer_ids):
    """Reference: sorts each row; among equal scores the wrong answers come first."""
    scores = unit(queries) @ unit(answers).T
    ranks = []
    for row, own in zip(scores, query_ids):
        right = (answer_ids == own) & (own >= 0)
        order = np.lexsort((right, -row))
        ranks.append(1 + np.flatnonzero(right[order])[0] if right.any() else 0)
    return np.array(ranks)


def compute_ranks(*given, **rest):
    return np.asarray(metrics.retrieval_ranks(*map(jnp.asarray, given), **rest))


@pytest.mark.parametrize("block_size", [7, 40, 1000])
def test_ranks_match_sorting(block_size):
    for given_ in ((IMAGES, TEXTS, GROUPS, GROUPS[IMAGE_IDS]), (TEXTS, IMAGES, IMAGE_IDS, GROUPS)):
        got = compute_ranks(*given_, block_size=block_size)
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np_ranks(*given_))
    assert (got == 0).any()  # queries without valid right answers


def test_recall_and_median_rank_match_sorting_in_both_directions():
    groups = jnp.asarray(GROUPS), jnp.asarray(GROUPS[IMAGE_IDS])
    result = metrics.retrieval_recall(jnp.asarray(IMAGES), jnp.asarray(TEXTS), groups, (1, 3, 200))
    want = {}
    ways = (
        ("first", (IMAGES, TEXTS, GROUPS, GROUPS[IMAGE_IDS])),
        ("second", (TEXTS, IMAGES, GROUPS[IMAGE_IDS], GROUPS)),
    )
    for name, way in ways:
        ranks = np_ranks(*way)
        ranks = ranks[ranks > 0]
        want |= {f"{name}_recall@{k}": np.mean(ranks <= k) for k in (1, 3, 200)}
        want[f"{name}_median_rank"] = np.median(ranks)
    assert result.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(result[name], value, rtol=1e-6, err_msg=name)
    assert result["first_recall@200"] == 1


def test_default_ids_match_row_indices():
    x, y = jnp.asarray(IMAGES), jnp.asarray(TEXTS[::3])
    positions = jnp.arange(40, dtype=jnp.int32)
    got, want = (
        metrics.retrieval_recall(x, y, groups) for groups in (None, (positions, positions))
    )
    assert got == want


@pytest.mark.parametrize(("n", "dim"), [(37, 3), (513, 128)])
def test_constant_embeddings_rank_last(n, dim):
    """If all scores are equal to the last bit, wrong answers rank before the right one."""
    x = jnp.broadcast_to(jax.random.normal(jax.random.key(dim), (1, dim)), (n, dim))
    positions = jnp.arange(n, dtype=jnp.int32)
    np.testing.assert_array_equal(compute_ranks(x, x, positions, positions, block_size=64), n)
    assert metrics.retrieval_recall(x, x)["first_recall@10"] == 0


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 2)), min_size=6, max_size=6))
def test_ties_rank_wrong_answers_first(answers):
    """Answers along four axes tie often; the products are exact."""
    axes, groups = np.array([a for a, _ in answers]), np.array([g for _, g in answers])
    queries = np.float32([[4, 3, 2, 2]] * 3)
    query_ids = np.arange(3)
    got = compute_ranks(queries, np.eye(4, dtype=np.float32)[axes], query_ids, groups)
    height = np.array([4, 3, 2, 2])[axes]
    for own, rank in enumerate(got):
        right = groups == own
        want = 1 + np.sum(~right & (height >= height[right].max())) if right.any() else 0
        assert rank == want


def test_nan_embeddings_rank_last():
    positions = np.arange(4)
    x = np.eye(4, dtype=np.float32)
    ranks = compute_ranks(np.where(positions[:, None] == 1, np.nan, x), x, positions, positions)
    np.testing.assert_array_equal(ranks, [1, 5, 1, 1])
    ranks = compute_ranks(x, np.where(positions[:, None] == 1, np.nan, x), positions, positions)
    np.testing.assert_array_equal(ranks, [2, 5, 2, 2])
    none = metrics.retrieval_recall(
        jnp.asarray(x), jnp.asarray(x), (jnp.full(4, -1), jnp.arange(4)), (1,)
    )
    assert np.isnan([float(v) for v in none.values()]).all()


def test_memory_is_bounded_by_block_size():
    n, block = 8192, 16
    x, groups = jnp.zeros((n, 4)), jnp.zeros(n, jnp.int32)
    run = jax.jit(lambda x, g: metrics.retrieval_ranks(x, x, g, g, block_size=block))
    used = run.lower(x, groups).compile().memory_analysis().temp_size_in_bytes
    assert used < n * n * 4 / 32


def np_zero_shot(x, prompts):
    """The CLIP classifier: for each class the normalised mean of unit vectors."""
    return (unit(x) @ unit(np.stack([unit(p).mean(axis=0) for p in prompts])).T).argmax(axis=1)


def test_zero_shot_supports_varying_numbers_of_prompts():
    x = RNG.normal(size=(50, 4)).astype(np.float32)
    numbers = [1, 3, 2, 3, 1]
    prompts = [10 * RNG.random() * RNG.normal(size=(k, 4)) for k in numbers]
    padded = np.full((5, 3, 4), np.nan, np.float32)
    for row, own in zip(padded, prompts):
        row[: len(own)] = own
    where = np.arange(3) < np.array(numbers)[:, None]
    got = metrics.zero_shot(
        jnp.asarray(x), jnp.asarray(padded), where=jnp.asarray(where), block_size=8
    )
    np.testing.assert_array_equal(got, np_zero_shot(x, prompts))
    assert got.dtype == jnp.int32
    one = [own[:1] for own in prompts]
    got = metrics.zero_shot(jnp.asarray(x), jnp.asarray(np.concatenate(one), jnp.float32))
    np.testing.assert_array_equal(got, np_zero_shot(x, one))


def test_zero_shot_skips_classes_without_prompts_and_nan():
    x = jnp.array([[1.0, 0.0], [jnp.nan, 1.0], [-1.0, -1.0]])
    where = jnp.array([False, True])
    np.testing.assert_array_equal(metrics.zero_shot(x, jnp.eye(2), where=where), [1, -1, 1])
    none = jnp.zeros(2, bool)
    np.testing.assert_array_equal(metrics.zero_shot(x, jnp.eye(2), where=none), [-1, -1, -1])


def test_bfloat16_matches_rounded_float32():
    half = jnp.asarray(IMAGES, jnp.bfloat16), jnp.asarray(TEXTS, jnp.bfloat16)
    wide = (np.asarray(x.astype(jnp.float32)) for x in half)
    got = compute_ranks(*half, GROUPS, GROUPS[IMAGE_IDS])
    np.testing.assert_array_equal(got, np_ranks(*wide, GROUPS, GROUPS[IMAGE_IDS]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: metrics.retrieval_recall(x, x[1:]), "`second` must have shape"),
        (lambda x: metrics.retrieval_recall(x, x, ks=(0,)), "`ks` must be at least 1, got 0"),
        (lambda x: metrics.retrieval_recall(x, x, block_size=0), "`block_size` must be at least 1"),
        (
            lambda x: metrics.retrieval_recall(x, x, (jnp.arange(3), jnp.arange(40))),
            "`query_ids` must have shape",
        ),
        (
            lambda x: metrics.retrieval_recall(x, x, (jnp.arange(40), jnp.arange(3))),
            "`answer_ids` must have shape",
        ),
        (lambda x: metrics.zero_shot(x, x[:, 1:]), "`class_embeddings` must have shape"),
        (lambda x: metrics.zero_shot(x, x, where=jnp.ones(3, bool)), "`where` must have shape"),
    ],
)
def test_rejects_invalid_arguments(call, message):
    with raises(ValueError, match=message):
        call(jnp.asarray(IMAGES))


@pytest.mark.usefixtures("unchecked")
def test_rejects_ids_beyond_32_bits():
    """They would wrap, so that other pairs match."""
    ids = np.arange(3) + np.array([0, 0, 2**32])
    with raises(ValueError, match="`answer_ids` must fit into 32 bits, got 4294967298"):
        metrics.retrieval_ranks(IMAGES[:3], IMAGES[:3], np.arange(3), ids)
