"""Recommender results match brute force in float64, in terms of the original ids."""

import jax.numpy as jnp
import numpy as np
import pandas
import polars
import pytest
import scipy.sparse
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.data import Interactions
from crl_jax.serving import Recommender, _rank

N_USERS, N_ITEMS, DIM = 11, 21, 3


def log_of(observed: np.ndarray, users=None, items=None) -> Interactions:
    """Returns interactions from a matrix of 0 and 1."""
    return Interactions.from_arrays(
        *np.nonzero(observed),
        user_ids=np.arange(observed.shape[0]) if users is None else users,
        item_ids=np.arange(observed.shape[1]) if items is None else items,
    )


def matrices(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tables of small integers, whose products are exact and often tie, and seen items."""
    rng = np.random.default_rng(seed)
    users, items = (rng.integers(-2, 3, (n, DIM)).astype(np.float32) for n in (N_USERS, N_ITEMS))
    return users, items, rng.random((N_USERS, N_ITEMS)) < rng.random()


def brute_force(scores: np.ndarray, masked: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and scores by a full sort, ties ordered by row; -1 and -inf as padding."""
    scores = np.where(masked, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    values = np.take_along_axis(scores, order, 1)
    rows = np.where(values > -np.inf, order, -1)
    tail = ((0, 0), (0, k - rows.shape[1]))
    return np.pad(rows, tail, constant_values=-1), np.pad(values, tail, constant_values=-np.inf)


def cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)
    return np.divide(a @ b.T, lengths, out=np.zeros(lengths.shape), where=lengths > 0)


def recommender_without_history(ids=None) -> Recommender:
    """Three users without interactions; the best item of each user is that of the same row."""
    table = np.eye(3, dtype=np.float32)
    return Recommender.from_tables((table, table), log_of(np.zeros((3, 3), bool), ids, ids))


rows_of_items = st.none() | st.lists(st.integers(0, N_ITEMS - 1), max_size=N_ITEMS)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    k=st.sampled_from([1, 5, N_ITEMS, N_ITEMS + 4]),
    users=st.none() | st.lists(st.integers(0, N_USERS - 1), max_size=12),
    include_known=st.booleans(),
    candidates=rows_of_items,
    exclude=rows_of_items,
)
def test_recommend_matches_full_sort(seed, k, users, include_known, candidates, exclude):
    user_table, item_table, observed = matrices(seed)
    model = Recommender.from_tables((user_table, item_table), log_of(observed))
    got = model.recommend(
        users, k, include_known=include_known, candidates=candidates, exclude=exclude
    )

    rows = np.arange(N_USERS) if users is None else np.array(users, int)
    masked = np.zeros((len(rows), N_ITEMS), bool) if include_known else observed[rows]
    if candidates is not None:
        masked = masked | ~np.isin(np.arange(N_ITEMS), candidates)
    if exclude is not None:
        masked = masked | np.isin(np.arange(N_ITEMS), exclude)
    want, scores = brute_force(user_table.astype(float)[rows] @ item_table.T, masked, k)
    np.testing.assert_array_equal(got.users, rows)
    np.testing.assert_array_equal(got.items, want)
    np.testing.assert_array_equal(got.scores, scores)
    assert got.scores.dtype == np.float32
    np.testing.assert_array_equal(got.present, want >= 0)


@pytest.mark.parametrize("scale", [1.0, 1e-25, 1e25])
def test_cosine_lists_do_not_depend_on_vector_norms(scale):
    rng = np.random.default_rng(0)
    user_table, item_table = rng.normal(size=(N_USERS, DIM)), rng.normal(size=(N_ITEMS, DIM))
    user_table[3] = item_table[4] = 0  # no direction: a cosine of 0 with everything
    observed = rng.random((N_USERS, N_ITEMS)) < 0.3
    tables = user_table * scale, item_table * scale
    got = Recommender.from_tables(tables, log_of(observed), similarity="cosine").recommend(k=6)
    want, scores = brute_force(cosines(user_table, item_table), observed, 6)
    np.testing.assert_array_equal(got.items, want)
    np.testing.assert_allclose(got.scores, scores, atol=2e-7)


def test_number_of_users_compiles_at_most_three_programs():
    rng = np.random.default_rng(1)
    n = 700
    user_table, item_table = rng.normal(size=(n, 4)), rng.normal(size=(30, 4))
    observed = rng.random((n, 30)) < 0.2
    model = Recommender.from_tables((user_table, item_table), log_of(observed))
    want, _ = brute_force(user_table @ item_table.T, observed, 7)
    _rank._best.clear_cache()
    for users in ([5], list(range(9)), rng.permutation(n), range(100), rng.integers(0, n, 650)):
        got = model.recommend(users, 7)
        np.testing.assert_array_equal(got.items, want[np.asarray(users)])
    np.testing.assert_array_equal(model.recommend(None, 3).items, want[:, :3])
    # Sizes 8, 64 and 256.
    assert _rank._best._cache_size() <= 3
    for k in (1, 16, 17, 29, 30, 99):  # 16 ranks, or all 30
        model.recommend([6], k)
    assert _rank._best._cache_size() <= 4


@given(n=st.integers(0, 2000), n_rows=st.sampled_from([10, 2**19, 2**21, 2**26, 2**30]))
def test_blocks_cover_all_users_within_memory_limit(n, n_rows):
    blocks = list(_rank._blocks(n, n_rows))
    assert [i for start, stop, *_ in blocks for i in range(start, stop)] == list(range(n))
    for start, stop, size, together in blocks:
        assert stop - start <= size if together == 1 else stop - start == together * size
        assert together in (1, _rank._BLOCKS_PER_CALL)
        assert size == 8 or size * n_rows <= 2**26


@pytest.mark.parametrize("n", [600, 1024, 1100])
def test_batched_blocks_match_full_sort(n, monkeypatch):
    rng = np.random.default_rng(n)
    user_table, item_table = rng.normal(size=(n, 4)), rng.normal(size=(30, 4))
    # Histories of very different lengths, one of them empty and one with all items.
    observed = rng.random((n, 30)) < rng.random((n, 1)) ** 3
    observed[0], observed[n // 2] = False, True
    model = Recommender.from_tables((user_table, item_table), log_of(observed))
    monkeypatch.setattr(_rank, "_BLOCKS_PER_CALL", 2)
    got = model.recommend(None, 7)
    want, _ = brute_force(user_table @ item_table.T, observed, 7)
    np.testing.assert_array_equal(got.items, want)


def test_bfloat16_tables_are_scored_in_float32():
    rng = np.random.default_rng(2)
    users, items = (jnp.asarray(rng.normal(size=(n, 8)), jnp.bfloat16) for n in (4, 50))
    observed = np.zeros((4, 50), bool)
    got = Recommender.from_tables((users, items), log_of(observed)).recommend(k=50)
    scores = np.asarray(users, np.float64) @ np.asarray(items, np.float64).T
    np.testing.assert_allclose(got.scores, -np.sort(-scores, axis=1), rtol=1e-5, atol=1e-6)


INTEGERS = np.array([30, 10, 20])
TEXT = np.array(["ann", "010", "bob"])
WITH_A_NUMBER = np.array(["x", "7", "y"])


@pytest.mark.parametrize(
    ("ids", "asked", "places"),
    [
        (INTEGERS, 10, [1]),
        (INTEGERS, "20", [2]),
        (INTEGERS, np.int32(30), [0]),
        (INTEGERS, [20, 30, 20], [2, 0, 2]),
        (INTEGERS, ["20", "30"], [2, 0]),
        (INTEGERS, np.array([10.0, 30.0]), [1, 0]),  # table readers' float ids if one is missing
        (INTEGERS, (10,), [1]),
        (INTEGERS, [], []),
        (TEXT, "ann", [0]),
        (TEXT, np.str_("bob"), [2]),
        (TEXT, b"bob", [2]),
        (TEXT, ["bob", "010"], [2, 1]),
        (TEXT, np.array(["bob", "ann"], object), [2, 0]),
        (WITH_A_NUMBER, 7, [1]),
    ],
)
def test_users_are_selected_by_original_ids(ids, asked, places):
    got = recommender_without_history(ids).recommend(asked, 1)
    np.testing.assert_array_equal(got.users, ids[places])
    np.testing.assert_array_equal(got.items[:, 0], ids[places])


UNKNOWN = {
    "integers": (11, "010", "ann", -10, 10.5, float("nan"), True, 2**70, [10, None]),
    "text": ("Ann", 10, "ann\0", ["ann", ""], "anna"),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_reports_unknown_ids(kind):
    known, ids = ("010", TEXT) if kind == "text" else (10, INTEGERS)
    model = recommender_without_history(ids)
    asks = (
        model.recommend,
        model.similar_users,
        model.similar_items,
        lambda x: model.recommend(known, candidates=x),
        lambda x: model.recommend(known, exclude=x),
    )
    for query_ids in UNKNOWN[kind]:
        for ask in asks:
            with raises(ValueError, match=r"Unknown (user|item) id .*none of the 3, "):
                ask(query_ids)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda model: model.recommend([0, 5, 6, 7]), "Unknown user id 5 and 2 more: none of"),
        (lambda model: model.recommend([[1], [2]]), "Expected one user id or a list of them"),
        (lambda model: model.recommend(object()), "Expected one user id or a list of them"),
        *((lambda model, items=items: model.recommend_new(items),
           r"`items` must be ids or lists of ids.* got both, such as [12]\.")
          for items in ([1, [2]], [[1], 2])),
        *((lambda model, name=name, k=k: getattr(model, name)([1], k), "`k` must be at least 1")
          for name in ("recommend", "recommend_new", "similar_items", "similar_users")
          for k in (0, -1)),
    ],
)  # fmt: skip
def test_rejects_invalid_requests(ask, message):
    with raises(ValueError, match=message):
        ask(recommender_without_history())


@pytest.mark.parametrize("huge", [1.0, 1e30, 1e-30])
def test_neighbours_have_greatest_cosines(huge):
    rng = np.random.default_rng(3)
    user_table, item_table = rng.normal(size=(N_USERS, DIM)), rng.normal(size=(N_ITEMS, DIM))
    tables = user_table / huge, item_table * huge
    model = Recommender.from_tables(tables, log_of(np.ones((N_USERS, N_ITEMS), bool)))
    for ask, table in ((model.similar_users, user_table), (model.similar_items, item_table)):
        for query_ids in ([4], [7, 0, 7]):
            got = ask(query_ids, 5)
            itself = np.arange(len(table)) == np.array(query_ids)[:, None]
            want, scores = brute_force(cosines(table[query_ids], table), itself, 5)
            np.testing.assert_array_equal(got.ids, query_ids)
            np.testing.assert_array_equal(got.neighbours, want)
            np.testing.assert_allclose(got.scores, scores, atol=2e-7)
    assert (model.similar_users(3, N_USERS).neighbours[0, -1]) == -1  # users exclude themselves


ZEROS = np.zeros((3, 1))


@pytest.mark.parametrize(
    ("users", "items", "similarity", "message"),
    [
        (ZEROS, np.zeros((4, 1)), "inner", "`items` must have a row for each of .* 3"),
        (np.zeros(3), ZEROS, "inner", "`users` must have a row"),
        (np.zeros((3, 0)), np.zeros((3, 0)), "inner", "`users` must have a row"),
        (ZEROS, np.zeros((3, 5)), "inner", "equal widths, got 1 and 5"),
        (np.array([[np.nan]] * 3), ZEROS, "inner", "in 3 of 3 rows: .*diverged"),
        (ZEROS, np.array([[0], [np.inf], [0]]), "cosine", "`items` .* 1 of 3 rows"),
        (np.full((3, 1), 1e39), ZEROS, "cosine", "`users` must be finite"),
        (np.full((3, 1), 1e30), np.full((3, 1), 1e9), "inner", "inner products within float32"),
        (ZEROS, ZEROS, "dot", "`similarity` must be inner or cosine"),
        (np.full((3, 1), "x"), ZEROS, "inner", "`users` must be numbers"),
    ],
)
def test_rejects_invalid_tables(users, items, similarity, message):
    with raises(ValueError, match=message):
        Recommender.from_tables(
            (users, items), log_of(np.zeros((3, 3), bool)), similarity=similarity
        )


def test_accepts_known_interactions_in_any_form():
    observed = np.array([[1, 0, 1], [0, 1, 0]])
    tables = np.eye(2, 3), np.eye(3)
    want = Recommender.from_tables(tables, log_of(observed)).recommend(k=3).to_dict()
    pairs = np.argwhere(observed)
    columns = {"user": pairs[:, 0], "item": pairs[:, 1]}
    frames = polars.DataFrame(columns), pandas.DataFrame(columns)
    for known in (scipy.sparse.csr_array(observed), pairs, *frames):
        assert Recommender.from_tables(tables, known).recommend(k=3).to_dict() == want
    with raises(ValueError, match="must be Interactions, a SciPy sparse"):
        Recommender.from_tables(tables, 3.0)


def test_tables_may_be_pair_mapping_or_object():
    class Tables:
        users, items = np.eye(3), 2 * np.eye(3)

    log = log_of(np.zeros((3, 3), bool))
    forms = (Tables(), {"users": Tables.users, "items": Tables.items}, [Tables.users, Tables.items])
    for tables in forms:
        model = Recommender.from_tables(tables, log)
        np.testing.assert_array_equal(model.recommend(1, 1).scores, [[2.0]])
    assert repr(model) == "Recommender(3 users, 3 items, width 3, inner)"
    for other, kind in (({"users": Tables.users}, "dict"), (np.zeros((2, 3, 1)), "ndarray")):
        with raises(ValueError, match=f"`tables` must have users and items, got {kind}"):
            Recommender.from_tables(other, log)


@pytest.mark.parametrize("ids", [INTEGERS, TEXT])
def test_results_convert_to_dict_rows_and_dataframes(ids):
    """The first user has all items but one, the second all, the third none."""
    observed = np.array([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    table = np.array([[1.0], [2.0], [3.0]])
    model = Recommender.from_tables((table, table), log_of(observed, ids, ids))
    got = model.recommend(k=2)
    a, b, c = ids.tolist()
    assert got.to_dict() == {a: [(c, 3.0)], b: [], c: [(c, 9.0), (b, 6.0)]}
    rows = [(a, 1, c, 3.0), (c, 1, c, 9.0), (c, 2, b, 6.0)]
    assert list(got.rows()) == rows
    assert len(got) == 3
    missing = -1 if ids is INTEGERS else ""
    assert got.items[1].tolist() == [missing, missing]
    assert got.to_polars().rows() == rows
    assert got.to_polars().columns == ["user", "rank", "item", "score"]
    assert list(got.to_pandas().itertuples(index=False, name=None)) == rows
    similar = model.similar_items(ids[:1], 1)
    assert similar.to_polars().columns == ["id", "rank", "neighbour", "score"]
    assert similar.to_dict() == {a: [(b, 1.0)]}


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_pair_scores_match_list_scores(similarity):
    user_table, item_table, observed = matrices(1)
    model = Recommender.from_tables(
        (user_table, item_table), log_of(observed), similarity=similarity
    )
    for user in range(N_USERS):
        lists = model.recommend(user, N_ITEMS, include_known=True)
        np.testing.assert_allclose(model.score(user, lists.items[0]), lists.scores[0], atol=1e-6)
    pairs = model.score([3, 1, 3], [0, 2, 0])
    assert pairs.dtype == np.float32
    assert pairs[0] == pairs[2]
    np.testing.assert_array_equal(model.score([3, 1], 5), model.score([3, 1], [5, 5]))
    with raises(ValueError, match="one id per user, got 2 users and 3 items"):
        model.score([0, 1], [0, 1, 2])
    with raises(ValueError, match="Unknown item id 99"):
        model.score(0, 99)


def test_cold_users_are_marked():
    observed = np.array([[1, 0], [0, 0], [0, 1]], bool)
    model = Recommender.from_tables((np.ones((3, 1)), np.ones((2, 1))), log_of(observed))
    assert model.recommend([1, 2, 0], 1).is_cold.tolist() == [True, False, False]
    assert model.recommend(k=1, include_known=True).is_cold.tolist() == [False, True, False]
    assert model.recommend_new([[0], [1]], 1).is_cold.tolist() == [False, False]


@pytest.mark.parametrize("only", [None, [0, 3, 4, 7]])
def test_forked_process_gives_same_lists(only, monkeypatch):
    """Avoids XLA, whose threads do not survive a fork."""
    rng = np.random.default_rng(0)
    observed = rng.random((6, 9)) < 0.4
    tables = rng.integers(-3, 4, (6, 4)), rng.integers(-3, 4, (9, 4))  # sums without rounding
    model = Recommender.from_tables(tables, log_of(observed))
    want = model.recommend(k=7, candidates=only)
    monkeypatch.setattr(_rank.os, "getpid", lambda: -1)
    monkeypatch.setattr(_rank, "_best", None)
    got = model.recommend(k=7, candidates=only)
    np.testing.assert_array_equal(got.items, want.items)
    np.testing.assert_array_equal(got.scores, want.scores)
