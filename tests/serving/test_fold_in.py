"""Fold-in of new users: least squares on the items, for every input form."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fold_in
from benchmarks._report import read_csv
from crl_jax import data
from crl_jax.data import Interactions
from crl_jax.serving import Recommender


def recommender(items: np.ndarray, similarity="inner", item_ids=None) -> Recommender:
    item_ids = np.arange(len(items)) if item_ids is None else item_ids
    log = Interactions.from_arrays([0], [0], user_ids=["u"], item_ids=item_ids)
    return Recommender.from_tables(
        (np.ones((1, items.shape[1])), items), log, similarity=similarity
    )


def least_squares(items: np.ndarray, observed: list[int], ridge: float) -> np.ndarray:
    """The penalty as additional rows, the intercept as a column, solved by NumPy."""
    n, d = items.shape
    scatter = np.sum((items - items.mean(axis=0)) ** 2) / d
    left = np.block([[items, np.ones((n, 1))], [np.sqrt(ridge * scatter) * np.eye(d, d + 1)]])
    right = np.concatenate([np.isin(np.arange(n), observed).astype(float), np.zeros(d)])
    return np.linalg.lstsq(left, right)[0][:d]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    observed=st.lists(st.integers(0, 29), min_size=1, max_size=29, unique=True),
    ridge=st.sampled_from([None, 0.0, 0.01, 5.0]),
    similarity=st.sampled_from(["inner", "cosine"]),
)
def test_fold_in_matches_least_squares(seed, observed, ridge, similarity):
    rng = np.random.default_rng(seed)
    items = (rng.normal(size=(30, 4)) + rng.normal(size=4)).astype(np.float32)
    got = recommender(items, similarity).fold_in(observed, ridge=ridge)
    assert got.shape == (1, 4)
    assert got.dtype == np.float32
    table = items.astype(np.float64)
    if similarity == "cosine":
        table /= np.linalg.norm(table, axis=1)[:, None]
    if ridge is None:
        ridge = {"inner": 0.3, "cosine": 3.0}[similarity]
    want = least_squares(table, observed, ridge)
    if similarity == "cosine":
        want /= np.linalg.norm(want)
    np.testing.assert_allclose(got[0], want, atol=1e-5 * np.abs(want).max())


def test_recommend_new_ranks_scores_and_excludes_basket():
    rng = np.random.default_rng(0)
    items = rng.normal(size=(30, 4))
    baskets = [[3, 4, 5], [7], [29, 0, 0, 29]]
    for similarity in ("inner", "cosine"):
        model = recommender(items, similarity)
        vectors = model.fold_in(baskets).astype(np.float64)
        scores = vectors @ model.item_vectors.astype(np.float64).T
        full = model.recommend_new(baskets, 30, include_known=True)
        np.testing.assert_array_equal(full.items, np.argsort(-scores, axis=1))
        got = model.recommend_new(baskets, 5, exclude=[11])
        assert got.users.tolist() == [0, 1, 2]
        for user, basket in enumerate(baskets):
            order = np.argsort(-scores[user])
            wanted = [i for i in order.tolist() if i not in (*basket, 11)][:5]
            assert got.items[user].tolist() == wanted
            np.testing.assert_allclose(got.scores[user], scores[user, wanted], rtol=1e-5)
        found = model.recommend_new([3], 9, candidates=[1, 2, 3]).items[0]
        assert {*found.tolist()} == {1, 2, -1}


def test_input_forms_agree():
    table = np.random.default_rng(1).normal(size=(6, 3))
    model = recommender(table, item_ids=["a", "b", "c", "d", "e", "7"])
    lists = model.recommend_new([["a", "b"], ["7"]], 3).to_dict()
    # Another vocabulary, with some of the items in another order.
    log = Interactions.from_arrays([50, 50, 60], ["b", "a", "7"])
    for given_items, users in (
        (["b", "a", "b"], {0: 0}),
        ("7", {0: 1}),
        ({"ann": ("a", "b"), "bob": np.array([7])}, {"ann": 0, "bob": 1}),
        ([{"a", "b"}, ("7",)], {0: 0, 1: 1}),
        (iter("ab"), {0: 0}),
        (log, {50: 0, 60: 1}),
        ({}, {}),
    ):
        want = {user: lists[row] for user, row in users.items()}
        assert model.recommend_new(given_items, 3).to_dict() == want


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_item_scale_does_not_change_lists(similarity, scale):
    items = np.random.default_rng(2).normal(size=(30, 4))
    want = recommender(items, similarity).recommend_new([1, 2, 3], 20)
    got = recommender(items * scale, similarity).recommend_new([1, 2, 3], 20)
    np.testing.assert_array_equal(got.items, want.items)
    np.testing.assert_allclose(got.scores, want.scores, rtol=1e-4, atol=1e-6)


DEGENERATE = {
    "equal": np.ones((5, 3)),
    "zero": np.zeros((5, 3)),
    "one column": np.eye(5)[:, :1],
    "wide": np.eye(5, 8),
    "tiny": np.full((5, 3), 1e-30),
    "huge": np.arange(15).reshape(5, 3) * 1e12,
}


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
@pytest.mark.parametrize("items", DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("ridge", [None, 0])
def test_degenerate_items_give_finite_scores(items, similarity, ridge):
    model = recommender(items, similarity)
    got = model.recommend_new([[0], [0, 1, 2, 3, 4]], 5, ridge=ridge)
    assert np.isfinite(got.scores[0, :4]).all()
    assert got.items[1].tolist() == [-1] * 5
    assert np.isfinite(model.fold_in([0, 1], ridge=ridge)).all()


def test_reports_invalid_fold_in_inputs():
    model = recommender(np.random.default_rng(3).normal(size=(6, 3)))
    for items in ([], [[1], []], {"ann": []}, np.array([], int)):
        with raises(ValueError, match="must hold an item of the new user"):
            model.recommend_new(items)
    empty = Interactions.from_arrays([0], [1], user_ids=["x", "y"], item_ids=[0, 1])
    with raises(ValueError, match="of the new user 'y', got none"):
        model.recommend_new(empty)
    with raises(ValueError, match="Unknown item id 6"):
        model.recommend_new([[1], [2, 6]])
    for ridge in (-1, float("nan"), float("inf")):
        with raises(ValueError, match="`ridge` must lie in"):
            model.fold_in([1], ridge=ridge)
    tiny = recommender(np.random.default_rng(3).normal(size=(6, 3)) * 1e-42)
    for fold in (tiny.fold_in, tiny.recommend_new):
        with raises(ValueError, match=r"within float32, got lengths of at most .* for 1 of 1"):
            fold([1])


def test_fold_in_recovers_trained_user():
    """If a trained user's scores equal the interactions, folding in recovers that user."""
    rng = np.random.default_rng(4)
    item_table = np.eye(8)[rng.integers(0, 8, 60)]  # eight kinds of items
    user_table = (rng.random((40, 8)) < 0.4).astype(float)
    user_table[:, 0] = 1
    observed = user_table @ item_table.T > 0
    # Each user has half of the liked items; the other half ranks first among the unseen ones.
    given = observed & (rng.random(observed.shape) < 0.5)
    given[:, 0] = observed[:, 0]
    given[:, 0] |= ~given.any(axis=1)
    model = recommender(item_table)
    baskets = [np.flatnonzero(row).tolist() for row in given]
    got = model.recommend_new(baskets, 5)
    found = np.take_along_axis(observed, got.items, 1)
    assert found.mean() > 0.9


def test_benchmark_holds_out_stated_fraction():
    log = data.simulate(n_users=250, n_items=200, seed=0, n_exposed=150).interactions
    held_users, given, test = fold_in.hold_out(log, draw=3)
    assert len(np.unique(held_users)) == 200
    assert not (given & test).any()
    np.testing.assert_array_equal(given | test, np.isin(log.users, held_users))
    observed, tested = (
        np.bincount(log.users[x], minlength=250)[held_users] for x in (given | test, test)
    )
    np.testing.assert_array_equal(tested, np.round(0.2 * observed))


def test_benchmark_minimises_stated_loss():
    """At a minimum the gradient is 0, by finite differences of the formula."""
    rng = np.random.default_rng(0)
    items, x = rng.normal(size=(40, 3)), (rng.random((2, 40)) < 0.3).astype(float)

    def loss(w: np.ndarray, row: np.ndarray) -> float:
        scores = items @ w
        pairs = np.logaddexp(0, scores[row == 0] - scores[row > 0][:, None])
        return pairs.mean(axis=1).sum() + 0.05 * w @ w

    for w, row in zip(fold_in.pairwise(items, x, l2=0.1), x, strict=True):
        slopes = [(loss(w + e, row) - loss(w - e, row)) / 2e-5 for e in 1e-5 * np.eye(3)]
        np.testing.assert_allclose(slopes, 0, atol=1e-7)


def test_documented_results_match_csv():
    rows = defaultdict(list)
    for row in read_csv(Path(__file__).parents[2] / "benchmarks" / "results" / "fold_in.csv"):
        rows[row["similarity"], row["method"]].append(float(row["ndcg@20"]))
    page = (Path(__file__).parents[2] / "docs" / "guide" / "serving.md").read_text()
    for text in (page, Recommender.fold_in.__doc__ or ""):
        for similarity in ("inner", "cosine"):
            for method in ("popularity", "trained", "fold_in"):
                assert f"{np.mean(rows[similarity, method]):.3f}" in text, (similarity, method)


@pytest.mark.parametrize("users", [[1, "b"], [("web", 1), ("app", 2)], ["a", "b"], [5, 7], [1.5]])
def test_new_user_names_are_preserved(users):
    log = Interactions.from_arrays(["a", "a", "b"], ["x", "y", "z"])
    model = Recommender.from_tables((np.eye(2, 3), np.eye(3)), log)
    lists = model.recommend_new({user: ["x"] for user in users}, k=1)
    assert list(lists.to_dict()) == users
    assert [row[0] for row in lists.rows()] == users
