"""Baselines against definitions written with dense float64 matrices and loops."""

import pickle

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg, sparse
from scipy.interpolate import BarycentricInterpolator
from scipy.special import xlogy

from crl_jax import baselines, metrics
from crl_jax.baselines import (
    BSPM,
    EASE,
    GFCF,
    IALS,
    ChebyCF,
    ItemKNN,
    Popularity,
    RP3beta,
    SparseEASE,
    _ease,
    _graph_filters,
)
from crl_jax.data import Interactions

SMALL = (
    Popularity(),
    ItemKNN(n_neighbours=4, shrinkage=3.0, power=0.4),
    RP3beta(n_neighbours=5, alpha=1.3, beta=0.6),
    EASE(l2=7.0),
    SparseEASE(l2=7.0, n_neighbours=4),
    IALS(dim=3, n_sweeps=3, l2=0.02, l2_power=0.5),
    GFCF(rank=4, weight=0.5),
    BSPM(order=4, time=1.7, blurred=0.3, rank=4, weight=0.4),
    ChebyCF(order=5, flatness=1.3, rank=4, weight=0.4, power=0.3),
)


def log_of(n_users, n_items, seed=0):
    """Returns random interactions, and their dense matrix; the last user and item have none."""
    dense = np.random.default_rng(seed).random((n_users, n_items)) < 0.3
    dense[-1], dense[:, -1] = False, False
    users, items = np.nonzero(dense)
    log = Interactions.from_arrays(
        users, items, user_ids=np.arange(n_users), item_ids=np.arange(n_items)
    )
    return log, dense.astype(float)


def inverse_of(counts, power):
    return np.where(counts > 0, np.maximum(counts, 1.0) ** -power, 0)


def reference_item_knn(histories, of, x=None):
    x = histories if x is None else x
    n_items, counts = x.shape[1], x.sum(axis=0)
    weights = np.zeros((n_items, n_items))
    for j in range(n_items):
        similarity = np.array([
            0 if i == j else (x[:, i] * x[:, j]).sum()
            / ((max(counts[i], 1) * max(counts[j], 1)) ** of.power + of.shrinkage)
            for i in range(n_items)
        ])  # fmt: skip
        for i in sorted(range(n_items), key=lambda i: -similarity[i])[: of.n_neighbours]:
            weights[i, j] = similarity[i]
    return histories @ weights


def reference_rp3beta(x, of):
    counts, degrees = x.sum(axis=0), x.sum(axis=1)
    n_items = len(counts)
    weights = np.zeros((n_items, n_items))
    for i in range(n_items):
        row = np.zeros(n_items)
        for j in range(n_items):
            if i != j:
                both = [v for v in range(len(x)) if x[v, i] and x[v, j]]
                row[j] = sum(counts[i] ** -of.alpha * degrees[v] ** -of.alpha for v in both)
                row[j] /= max(counts[j], 1) ** of.beta
        for j in sorted(range(n_items), key=lambda j: -row[j])[: of.n_neighbours]:
            weights[i, j] = row[j]
    return x @ weights


def reference_ease(x, of):
    """Ridge regression of each item on all others."""
    weights = np.zeros((x.shape[1], x.shape[1]))
    for j in range(x.shape[1]):
        others = np.arange(x.shape[1]) != j
        rest = x[:, others]
        gram = rest.T @ rest + of.l2 * np.eye(rest.shape[1])
        weights[others, j] = np.linalg.solve(gram, rest.T @ x[:, j])
    return x @ weights


def reference_sparse_ease(x, of):
    """Ridge regression of each item on its neighbours."""
    weights = np.zeros((x.shape[1], x.shape[1]))
    near = reference_item_knn(np.eye(x.shape[1]), ItemKNN(of.n_neighbours), x)
    for j in range(x.shape[1]):
        own = np.flatnonzero(near[:, j])
        gram = x[:, own].T @ x[:, own] + of.l2 * np.eye(len(own))
        weights[own, j] = np.linalg.solve(gram, x[:, own].T @ x[:, j])
    return x @ weights


def reference_ials(x, of):
    def solve(x, fixed):
        found = []
        for row in x:
            penalty = of.l2 * (row.sum() + of.unobserved_weight * len(row)) ** of.l2_power
            weight = np.diag(row + of.unobserved_weight)
            left = fixed.T @ weight @ fixed + penalty * np.eye(of.dim)
            found.append(np.linalg.solve(left, fixed.T @ row))
        return np.array(found)

    users = np.random.default_rng(of.seed).normal(size=(len(x), of.dim))
    users *= of.init_std / of.dim**0.5
    for _ in range(of.n_sweeps):
        items = solve(x.T, users)
        users = solve(x, items)
    return users @ items.T


def normalized(x):
    users, items = x.sum(axis=1), x.sum(axis=0)
    return inverse_of(users, 0.5)[:, None] * x * inverse_of(items, 0.5)


def reference_gfcf(x, of):
    graph, degree = normalized(x), x.sum(axis=0)
    right = np.linalg.svd(graph)[2][: of.rank].T
    ideal = (x * inverse_of(degree, 0.5)) @ right @ right.T * degree**0.5
    return x @ graph.T @ graph + of.weight * ideal


def reference_bspm(x, of):
    """Scores by one step of the classical Runge-Kutta method."""
    graph, degree = normalized(x), x.sum(axis=0)
    right = np.linalg.svd(graph)[2][: of.rank].T
    blurred = x @ graph.T @ graph
    start = blurred + of.weight * (x * inverse_of(degree, 0.5)) @ right @ right.T * degree**0.5

    def slope(y):
        return -y @ graph.T @ graph

    first = slope(start)
    second = slope(start + of.time / 2 * first)
    third = slope(start + of.time / 2 * second)
    fourth = slope(start + of.time * third)
    sharpened = start + of.time / 6 * (first + 2 * second + 2 * third + fourth)
    return (1 - of.blurred) * sharpened + of.blurred * blurred


def reference_chebycf(x, of):
    graph, degree = normalized(x), x.sum(axis=0)
    right = np.linalg.svd(graph)[2][: of.rank].T
    values, axes = np.linalg.eigh(np.eye(x.shape[1]) - 2 * graph.T @ graph)
    nodes = np.cos((2 * np.arange(of.order + 1) + 1) / (2 * of.order + 2) * np.pi)
    plateau = np.where(
        nodes < 0,
        0.5 + 0.5 * np.abs(nodes) ** of.flatness,
        0.5 - 0.5 * np.abs(nodes) ** of.flatness,
    )
    response = BarycentricInterpolator(nodes, plateau)(values)
    kernel = axes * response @ axes.T + of.weight * right @ right.T
    return (x * inverse_of(degree, of.power)) @ kernel * degree**of.power


REFERENCES = {
    Popularity: lambda x, of: np.tile(x.sum(axis=0), (len(x), 1)),
    ItemKNN: reference_item_knn, RP3beta: reference_rp3beta, EASE: reference_ease,
    SparseEASE: reference_sparse_ease, IALS: reference_ials, GFCF: reference_gfcf,
    ChebyCF: reference_chebycf, BSPM: reference_bspm,
}  # fmt: skip


@pytest.mark.parametrize("sizes", [(15, 9), (8, 14)], ids=["more users", "more items"])
@pytest.mark.parametrize("of", SMALL, ids=lambda of: type(of).__name__)
def test_scores_match_definition(of, sizes):
    """An item without interactions may score anything equal for all: it is never recommended."""
    log, x = log_of(*sizes)
    got = of.fit(log).scores(np.arange(len(x)))
    assert got.dtype == np.float32
    want = REFERENCES[type(of)](x, of)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("of", SMALL, ids=lambda of: type(of).__name__)
def test_queried_baseline_can_be_pickled(of):
    log, x = log_of(8, 14)
    fitted, users = of.fit(log), np.arange(len(x))
    want = fitted.scores(users)
    again = pickle.loads(pickle.dumps(fitted))  # noqa: S301
    np.testing.assert_array_equal(again.scores(users), want)


@pytest.mark.parametrize("of", SMALL, ids=lambda of: type(of).__name__)
def test_scores_are_products_of_vectors(of):
    for sizes in ((8, 14), (15, 9)):
        log, x = log_of(*sizes)
        fitted = of.fit(log)
        if not isinstance(of, IALS | EASE):
            with pytest.raises(ValueError, match=f"products, got {type(of).__name__}"):
                fitted.vectors()
            continue
        users, items = fitted.vectors()
        dim = of.dim if isinstance(of, IALS) else min(sizes)
        assert (users.shape, items.shape) == ((sizes[0], dim), (sizes[1], dim))
        want = REFERENCES[type(of)](x, of)
        np.testing.assert_allclose(users @ items.T, want, rtol=1e-4, atol=1e-5)


def test_every_baseline_has_reference():
    exported = {of for of in vars(baselines).values() if isinstance(of, type)}
    assert exported - {baselines.Baseline, baselines.FittedBaseline} == {type(of) for of in SMALL}
    assert set(REFERENCES) == {type(of) for of in SMALL}


@pytest.mark.parametrize("of", SMALL, ids=lambda of: type(of).__name__)
def test_evaluation_matches_dense_scores(of):
    whole, x = log_of(30, 12, seed=1)
    held_out = np.arange(len(whole)) % 3 == 0
    log, test = whole.select(~held_out), whole.select(held_out)
    layout = metrics.eval_layout(log, test)
    fitted = of.fit(log)
    table = jnp.asarray(fitted.scores(np.arange(len(x))))
    found = metrics.evaluate(fitted, None, layout, ks=5)
    want = metrics.evaluate(lambda scores, users: scores[users], table, layout, ks=5)
    for name, values in want.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    lists = metrics.evaluate_lists(fitted.recommend(layout.users, 5)[0], layout, ks=5)
    for name, values in lists.items():
        np.testing.assert_array_equal(values, want[name], err_msg=name)


def test_lists_break_ties_by_lower_item_and_are_padded():
    log = Interactions.from_arrays([0, 0, 1, 1, 2], [0, 1, 1, 2, 3], item_ids=np.arange(5))
    items, scores = Popularity().fit(log).recommend([2, 0], 4)
    np.testing.assert_array_equal(items, [[1, 0, 2, 4], [2, 3, 4, -1]])
    np.testing.assert_array_equal(scores, [[2, 1, 1, 0], [1, 1, 0, -np.inf]])
    items, _ = Popularity().fit(log).recommend([0], 2, exclude=log.select(log.items == 1))
    np.testing.assert_array_equal(items, [[0, 2]])
    with pytest.raises(ValueError, match="`k` must be"):
        Popularity().fit(log).recommend([0], 0)


@pytest.mark.parametrize("sizes", [(15, 9), (8, 14)], ids=["by items", "by users"])
def test_ease_inverts_large_matrices_in_strips(sizes, monkeypatch):
    log, x = log_of(*sizes)
    monkeypatch.setattr(_ease, "_EXACT_SIDE", 2)
    monkeypatch.setattr(_ease, "_STRIP", 3)
    fitted = EASE(l2=7.0).fit(log)
    got = fitted.scores(np.arange(len(x)))
    np.testing.assert_allclose(got, reference_ease(x, EASE(l2=7.0)), rtol=1e-4, atol=1e-5)
    assert all(array.flags.c_contiguous for array in fitted.arrays.values())


def test_sparse_ease_on_all_neighbours_matches_ease():
    log, x = log_of(200, 9)
    users = np.arange(len(x))
    got = SparseEASE(l2=7.0, n_neighbours=8).fit(log).scores(users)
    np.testing.assert_allclose(got, EASE(l2=7.0).fit(log).scores(users), rtol=1e-4, atol=1e-5)


def test_ials_sweeps_lower_loss():
    log, x = log_of(30, 20)
    losses = []
    for n_sweeps in (1, 2, 4, 16):
        of = IALS(dim=4, n_sweeps=n_sweeps, l2=1e-9)
        scores = of.fit(log).scores(np.arange(len(x)))
        losses.append((x * (1 - scores) ** 2 + of.unobserved_weight * scores**2).sum())
    assert losses == sorted(losses, reverse=True)


def test_gfcf_accepts_rank_above_number_of_items():
    """V Vᵀ of all singular vectors is the projection onto the items with interactions."""
    log, x = log_of(15, 9)
    exact = GFCF(rank=100, weight=2.0).fit(log).scores(np.arange(len(x)))
    graph = normalized(x)
    np.testing.assert_allclose(exact, x @ graph.T @ graph + 2 * x, rtol=1e-4, atol=1e-5)


def test_chebycf_interpolates_plateau_at_nodes():
    of = ChebyCF(order=6, flatness=3.0)
    nodes = np.cos((2 * np.arange(7) + 1) / 14 * np.pi)
    want = (1 - np.sign(nodes) * np.exp(xlogy(3, np.abs(nodes)))) / 2
    np.testing.assert_allclose(np.polynomial.chebyshev.chebval(nodes, of.coefficients), want)


def test_item_knn_breaks_ties_by_lower_item():
    """Three items that the same users have: with one neighbour, 1 and 2 take 0, and 0 takes 1."""
    log = Interactions.from_arrays([0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2])
    fitted = ItemKNN(n_neighbours=1, shrinkage=0.0, power=0.5).fit(log)
    scores = fitted.score_histories(sparse.csr_array(np.eye(3, dtype=np.float32)))
    np.testing.assert_allclose(scores, [[0, 1, 1], [1, 0, 0], [0] * 3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EASE(l2=0.0), r"`l2` must lie in \(0.0, inf\), got 0.0"),
        (lambda: ItemKNN(n_neighbours=0), "`n_neighbours` must be"),
        (lambda: IALS(unobserved_weight=np.nan), "`unobserved_weight` must lie in"),
        (lambda: ChebyCF(order=0), "`order` must be"),
    ],
)
def test_rejects_hyperparameters_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("of", SMALL, ids=lambda of: type(of).__name__)
def test_rejects_empty_interactions(of):
    log, _ = log_of(3, 4)
    with pytest.raises(ValueError, match="`train` must have an interaction, got none"):
        of.fit(log.select(np.zeros(len(log), bool)))


def test_ease_rejects_too_large_catalogues(monkeypatch):
    monkeypatch.setattr(_ease, "MAX_SIDE", 8)
    with pytest.raises(ValueError, match="at most 8 users or items for EASE, got 15 and 9"):
        EASE().fit(log_of(15, 9)[0])
    EASE().fit(log_of(15, 8)[0])
    monkeypatch.setattr(_ease, "_MAX_PAIRS", 80)
    with pytest.raises(ValueError, match=r"at most 80 pairs of items of a user .*, got 81"):
        SparseEASE().fit(log_of(15, 9)[0])
    SparseEASE().fit(log_of(15, 8)[0])


@pytest.mark.parametrize(
    "dense",
    [
        linalg.block_diag(np.random.default_rng(0).random((60, 50)) < 0.15, *[np.ones((2, 2))] * 3),
        np.kron(np.eye(3), np.random.default_rng(0).random((15, 12)) < 0.4),
    ],
    ids=["isolated pairs", "three equal parts"],
)
def test_singular_vectors_of_disconnected_graph(dense):
    graph = _graph_filters._normalize(sparse.csr_array(dense.astype(np.float32)))
    rank = 12
    _, values, vectors = np.linalg.svd(graph.toarray().astype(float))
    assert values[rank - 1] > values[rank] + 1e-3  # the subspace is unique
    basis = _graph_filters._leading_vectors(graph, rank)
    want = vectors[:rank].T @ vectors[:rank]
    np.testing.assert_allclose(basis @ basis.T, want, atol=1e-5)


def test_ease_accepts_small_penalty_with_few_users():
    users, items = np.array([0, 1]), np.array([0, 1])
    log = Interactions.from_arrays(users, items, user_ids=np.arange(2), item_ids=np.arange(3))
    fitted = EASE(l2=1e-8).fit(log)
    np.testing.assert_allclose(fitted.scores(np.array([0, 1])), 0, atol=1e-6)
