"""Full-catalogue evaluation against loops over users and items, ranx and scikit-learn."""

import dataclasses
import warnings
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from _helpers.refusals import raises
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from crl_jax.data import Interactions
from crl_jax.metrics import (
    EvalLayout,
    _eval_layout,
    _evaluate,
    eval_layout,
    evaluate,
    evaluate_lists,
    recommend,
    summarize,
)

pytestmark = pytest.mark.usefixtures("quick_compiles")


@dataclasses.dataclass(frozen=True)
class Csr:
    indptr: np.ndarray
    items: np.ndarray
    n_users: int
    n_items: int

    @classmethod
    def from_dense(cls, dense):
        indptr = np.append(0, np.cumsum(dense.sum(1)))
        return cls(indptr, np.nonzero(dense)[1].astype(np.int32), *dense.shape)


def table(params, users):
    """Encoder whose parameters are the scores themselves."""
    return params[users]


def factors(params, users):
    return jnp.matmul(params["user"][users], params["item"].T, precision="highest")


def random_case(seed, n_users=60, n_items=90, density=0.15):
    rng = np.random.default_rng(seed)
    known = rng.random((n_users, n_items)) < density
    wanted = (rng.random((n_users, n_items)) < density) & ~known
    return known, wanted, rng.normal(size=(n_users, n_items)).astype(np.float32)


@dataclasses.dataclass(frozen=True)
class Case:
    known: np.ndarray
    wanted: np.ndarray
    scores: np.ndarray
    layout: EvalLayout


@pytest.fixture(scope="module")
def case():
    """Evaluation layout of most tests, so that they share its compiled program."""
    known, wanted, scores = random_case(0)
    for array in (known, wanted, scores):
        array.setflags(write=False)
    return Case(known, wanted, scores, eval_layout(Csr.from_dense(known), Csr.from_dense(wanted)))


def random_factors(seed, n_users, n_items, width=16, models=()):
    ku, ki = jax.random.split(jax.random.key(seed))
    return {
        "user": jax.random.normal(ku, (*models, n_users, width)),
        "item": jax.random.normal(ki, (*models, n_items, width)),
    }


def reference(scores, masked, tested, k):
    """Reference: loops over users and items that follow every rule of the documentation."""
    rows, shown, diverged = [], set(), False
    for s, m, t in zip(scores.astype(np.float64), masked, tested & ~masked, strict=True):
        if not t.any():
            continue
        candidates = [i for i in range(s.size) if not m[i]]
        if any(np.isnan(s[i]) for i in candidates):
            rows.append([np.nan] * 9)
            diverged = True
            continue
        ranked = sorted((i for i in candidates if s[i] > -np.inf), key=lambda i: (-s[i], i))[:k]
        shown |= set(ranked)
        hits, n = [bool(t[i]) for i in ranked], int(t.sum())
        n_hits = sum(hits)
        gain = sum(h / np.log2(r + 2) for r, h in enumerate(hits))
        ideal = sum(1 / np.log2(r + 2) for r in range(min(k, n)))
        precisions = [sum(hits[: r + 1]) / (r + 1) for r in range(len(hits))]
        precision_sum = sum(p for p, h in zip(precisions, hits, strict=True) if h)
        best_sum = sum(max(precisions[r:]) for r, h in enumerate(hits) if h)
        pairs = [(s[i], s[j]) for i in candidates if t[i] for j in candidates if not t[j]]
        wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a, b in pairs)
        rows.append(
            [
                n_hits / k,
                n_hits / n,
                2 * n_hits / (k + n),
                gain / ideal,
                precision_sum / min(k, n),
                best_sum / max(n_hits, 1),
                1 / (hits.index(True) + 1) if n_hits else 0.0,
                float(n_hits > 0),
                wins / len(pairs) if pairs else 0.5,
            ]
        )
    names = ["precision", "recall", "f1", "ndcg", "map", "hit_precision", "mrr", "hit_rate"]
    columns = np.array(rows).T
    values = {f"{name}@{k}": c for name, c in zip(names, columns[:8], strict=True)}
    coverage = np.nan if diverged else len(shown) / scores.shape[1]
    return values | {"auc": columns[8], f"coverage@{k}": coverage}


def check(got, want):
    assert set(want) <= set(got)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-6, atol=2e-7, err_msg=name)


# Each case compiles; so one of them mixes users of all kinds.
@pytest.mark.filterwarnings("ignore:.*pairs of `test` are:UserWarning")
@pytest.mark.parametrize(
    ("k", "block_size", "diverged", "exposed"),
    [(1, 9, False, None), (13, 1, True, None), (20, 100, False, None), (3, 9, True, 0.6)],
)
def test_matches_reference_on_ragged_data_ties_and_nonfinite_scores(
    k, block_size, diverged, exposed
):
    rng = np.random.default_rng(k)
    shape = (61, 13)
    # Densities vary by user, so that some users have no item and some have all of them.
    known, wanted, model_state = (
        rng.random(shape) < rng.choice([0.0, 0.1, 0.5, 1.0], (shape[0], 1), p=p)
        for p in ((0.4, 0.3, 0.2, 0.1), (0.1, 0.4, 0.3, 0.2), (0.4, 0.4, 0.2, 0.0))
    )
    known[0], model_state[0], wanted[0, 3] = False, False, True  # at least one user to evaluate
    known[:, 10:] = True  # items masked for all users do not count as covered
    levels = rng.choice([1, 2, 5, 1000], (shape[0], 1))
    scores = (rng.integers(0, levels, shape) - levels // 2).astype(np.float32)
    kinds = np.float32([np.inf, -np.inf, -0.0] + [np.nan] * diverged)
    nonfinite = rng.random(shape) < rng.choice([0.0, 0.1, 0.9], (shape[0], 1))
    scores[nonfinite] = rng.choice(kinds, nonfinite.sum())
    masked, candidates = known | model_state, None
    if exposed is not None:  # excludes some wanted items, and includes some masked ones
        listed = rng.random(shape) < exposed
        masked, candidates = masked | ~listed, Csr.from_dense(listed)
    layout = eval_layout(
        Csr.from_dense(known), Csr.from_dense(wanted), exclude=[Csr.from_dense(model_state)],
        block_size=block_size, candidates=candidates,
    )  # fmt: skip
    np.testing.assert_array_equal(layout.n_candidates, (~masked).sum(1)[layout.users])
    np.testing.assert_array_equal(layout.users, np.nonzero((wanted & ~masked).any(1))[0])
    got = evaluate(table, jnp.asarray(scores), layout, ks=(k,))
    check(got, reference(scores, masked, wanted, k))


@pytest.mark.parametrize("listed", [False, True])
def test_large_catalogue_and_long_histories(listed):
    # Top-k uses its algorithm for long rows, and the pairs need more than one scatter.
    known, wanted, scores = random_case(1, n_users=12, n_items=5000, density=0.002)
    known[0], wanted[0] = np.arange(5000) >= 100, np.arange(5000) < 30
    candidates, masked = None, known
    if listed:  # user 0 has 100, user 1 has 4,990
        exposed = wanted | (np.arange(5000) < np.where(np.arange(12) == 1, 4990, 100)[:, None])
        candidates, masked = Csr.from_dense(exposed), known | ~exposed
    layout = eval_layout(
        Csr.from_dense(known), Csr.from_dense(wanted), block_size=16, candidates=candidates
    )
    got = evaluate(table, jnp.asarray(scores), layout, ks=(3, 10))
    check(got, reference(scores, masked, wanted, 10))


def ranx_values(qrels, run, names):
    # Its sources hold invalid escape sequences, and Numba warns about its casts.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import numba

        numba.config.DISABLE_JIT = True  # compiling each metric takes seconds
        import ranx

        return ranx.evaluate(ranx.Qrels(qrels), ranx.Run(run), names, return_mean=False)


def test_agrees_with_ranx_and_scikit_learn(case):
    known, wanted, scores = case.known, case.wanted, case.scores
    got = evaluate(table, jnp.asarray(scores), case.layout)
    users = [u for u in range(len(scores)) if wanted[u].any()]
    qrels = {f"u{u:03}": {f"i{i}": 1 for i in np.nonzero(wanted[u])[0]} for u in users}
    run = {
        f"u{u:03}": {f"i{i}": float(scores[u, i]) for i in np.nonzero(~known[u])[0]} for u in users
    }
    names = ("precision", "recall", "f1", "ndcg", "map", "mrr", "hit_rate")
    want = ranx_values(qrels, run, [f"{name}@20" for name in names])
    # Its average precision is divided by all relevant items.
    n = wanted.sum(1)[users]
    want["map@20"] *= n / np.minimum(20, n)
    for name, values in want.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, err_msg=name)
    aucs = [roc_auc_score(wanted[u][~known[u]], scores[u][~known[u]]) for u in users]
    np.testing.assert_allclose(got["auc"], aucs, rtol=1e-6)


@pytest.mark.usefixtures("all_optimisations")
def test_block_size_does_not_change_metrics():
    known, wanted, _ = random_case(2, n_users=203, n_items=4500)
    params = random_factors(0, 203, 4500, width=64)
    small, large = (
        evaluate(
            factors,
            params,
            eval_layout(Csr.from_dense(known), Csr.from_dense(wanted), block_size=size),
            ks=(5, 20),
        )
        for size in (1, 1000)
    )
    jax.tree.map(np.testing.assert_array_equal, small, large)


def test_block_size_decreases_with_catalogue_size():
    def rows(n_items):
        none = Csr(np.zeros(301, int), np.empty(0, np.int32), 300, n_items)
        one = Csr(np.arange(301), np.full(300, n_items - 1, np.int32), 300, n_items)
        return eval_layout(none, one).blocks.users.shape[1]

    assert [rows(n) for n in (1000, 10**6, 10**7)] == [256, 64, 8]


@pytest.mark.usefixtures("all_optimisations")
def test_block_size_does_not_change_recommendations():
    known, _, _ = random_case(2, n_users=203)
    params = random_factors(0, 203, 90, width=64)
    small, large = (
        recommend(factors, params, range(203), Csr.from_dense(known), k=20, block_size=size)
        for size in (1, 1000)
    )
    jax.tree.map(np.testing.assert_array_equal, small, large)


def test_ignores_masked_nan_and_propagates_others(case):
    known, layout = case.known, case.layout
    clean = evaluate(table, jnp.asarray(case.scores), layout)
    got = evaluate(table, jnp.asarray(np.where(known, np.nan, case.scores)), layout)
    jax.tree.map(np.testing.assert_array_equal, got, clean)
    user, scores = int(layout.users[5]), case.scores.copy()
    scores[user, np.nonzero(~known[user])[0][-1]] = np.nan
    got = evaluate(table, jnp.asarray(scores), layout)
    for name, value in got.items():
        assert np.isnan(summarize(got)[name])
        if value.ndim:
            np.testing.assert_array_equal(np.isnan(value), np.arange(layout.n_evaluated) == 5)


def test_vmap_over_models_matches_loop(case):
    params = random_factors(1, *case.known.shape, models=(3,))
    got = jax.jit(jax.vmap(lambda p: evaluate(factors, p, case.layout)))(params)
    for model in range(3):
        want = evaluate(factors, jax.tree.map(lambda x, m=model: x[m], params), case.layout)
        jax.tree.map(
            partial(np.testing.assert_allclose, rtol=1e-6),
            jax.tree.map(lambda x, m=model: x[m], got),
            want,
        )


def test_new_parameters_do_not_recompile_and_layout_is_jit_argument(case):
    scores, layout = jnp.asarray(case.scores), case.layout
    traces = []

    def score_fn(params, users):
        traces.append(None)
        return params[users]

    got = [evaluate(score_fn, scale * scores, layout) for scale in (1.0, 2.0, -1.0)]
    assert len(traces) == 1
    jax.tree.map(np.testing.assert_array_equal, got[0], got[1])
    jitted = jax.jit(partial(evaluate, table))(scores, layout)
    jax.tree.map(np.testing.assert_array_equal, jitted, got[0])


@pytest.mark.usefixtures("all_optimisations")
def test_memory_grows_with_block_size_and_not_with_users():
    def temporary(n_users, block_size):
        n_items = 8192
        known, wanted, _ = random_case(8, n_users, n_items, density=0.003)
        layout = eval_layout(Csr.from_dense(known), Csr.from_dense(wanted), block_size=block_size)
        params = random_factors(0, n_users, n_items)
        fn = jax.jit(lambda p, layout: evaluate(factors, p, layout, ks=(5,)))
        analysis = fn.lower(params, layout).compile().memory_analysis()
        if analysis is None:
            pytest.skip("this backend does not report memory")
        return analysis.temp_size_in_bytes

    scores = 4 * 8192  # bytes of one user's scores
    small, many_users = temporary(64, 32), temporary(512, 32)
    assert many_users - small < 448 * 600  # a few values per user and rank
    assert 32 * scores < small < 3 * 32 * scores + 2**20


def test_recommend_matches_sorting():
    known, _, scores = random_case(9, n_users=12, n_items=20)
    known[4], known[5, 2:] = True, True  # nothing left; two items left
    scores = np.round(scores)  # ties
    users = np.array([5, 0, 4, 11, 5])
    items, values = recommend(table, jnp.asarray(scores), users, Csr.from_dense(known), k=30)
    assert items.dtype == jnp.int32
    assert items.shape == values.shape == (5, 30)
    for row, u in enumerate(users):
        want = sorted(np.nonzero(~known[u])[0], key=lambda i: (-scores[u, i], i))
        padding = 30 - len(want)
        np.testing.assert_array_equal(items[row], [*want, *[-1] * padding])
        np.testing.assert_array_equal(values[row], [*scores[u, want], *[-np.inf] * padding])


@given(count=st.integers(0, 1 << 40))
def test_group_counts_are_rounded_up_by_at_most_an_eighth(count):
    rounded = _eval_layout._round_up(count)
    assert max(count, 1) <= rounded <= max(count * 9 / 8, 1)
    assert _eval_layout._round_up(rounded) == rounded
    assert (
        rounded >> max(0, rounded.bit_length() - 4) << max(0, rounded.bit_length() - 4) == rounded
    )


def test_recommend_reuses_program_for_same_number_of_users():
    n_users, n_items = 272, 600
    known = np.zeros((n_users, n_items), bool)
    known[:, ::20] = True
    known[:16, ::2] = known[136:160, ::2] = True  # more than a group in two blocks, and in three
    params = jnp.asarray(np.random.default_rng(0).normal(size=known.shape), jnp.float32)
    before = _evaluate._recommend._cache_size()
    for users in (np.arange(136), np.arange(136, 272)):
        items, _ = recommend(table, params, users, Csr.from_dense(known), k=20, block_size=8)
        want = np.argsort(np.where(known[users], np.inf, -params[users]), axis=1)[:, :20]
        np.testing.assert_array_equal(items, want)
    assert _evaluate._recommend._cache_size() == before + 1


def test_recommend_returns_nan_for_diverged_user():
    items, values = recommend(
        table, jnp.full((2, 6), jnp.nan), [1], Csr.from_dense(np.eye(2, 6, dtype=bool)), k=4
    )
    np.testing.assert_array_equal(items, [[-1] * 4])
    assert np.isnan(values).all()


def test_summarize_averages_in_float64():
    values = {"auc": jnp.full(1_000_003, 0.1), "coverage@5": jnp.float32(0.25)}
    got = summarize(values)
    assert got == {"auc": pytest.approx(np.float32(0.1), rel=1e-12), "coverage@5": 0.25}
    assert all(type(v) is float for v in got.values())
    with raises(ValueError, match="one by one"):
        summarize({"auc": jnp.zeros((2, 3))})


def test_rejects_invalid_arguments():
    known, wanted, scores = random_case(10, n_users=8, n_items=20)
    train, test, params = Csr.from_dense(known), Csr.from_dense(wanted), jnp.asarray(scores)
    with raises(ValueError, match=r"`test` must have the 8 users and 20 items"):
        eval_layout(train, Csr.from_dense(wanted[:, :-1]))
    with raises(ValueError, match=r"`exclude` must have the 8 users"):
        eval_layout(train, test, exclude=[Csr.from_dense(wanted[:-1])])
    with raises(ValueError, match="`test` must hold a pair"):
        eval_layout(train, train)
    with raises(ValueError, match="`test` must hold a pair .*, and is in `candidates`"):
        eval_layout(train, test, candidates=train)
    with raises(ValueError, match="`candidates` must have the 8 users"):
        eval_layout(train, test, candidates=Csr.from_dense(wanted[:-1]))
    with raises(ValueError, match="`block_size` must be at least 1, got 0"):
        eval_layout(train, test, block_size=0)
    layout = eval_layout(train, test)
    for ks, condition in (
        ((), "hold one or more cutoffs"), ((5, 0), "be at least 1, got 0"),
        ((2.0,), "be a whole number, got 2.0"), (2.5, "be a whole number, got 2.5"),
        ("5", "be a whole number, got '5'"),
    ):  # fmt: skip
        with raises(ValueError, match=f"`ks` must {condition}"):
            evaluate(table, params, layout, ks=ks)
    with raises(ValueError, match=r"score_fn\(params, users\)"):
        evaluate(table, params[:, :-1], layout)
    with raises(ValueError, match="`exclude` must be a sequence of datasets, got Csr"):
        eval_layout(train, test, exclude=test)
    for k, condition in ((0, "at least 1, got 0"), (2.5, "a whole number, got 2.5")):
        with raises(ValueError, match=f"`k` must be {condition}"):
            recommend(table, params, [0], train, k=k)
    for users in ([0.5, 1], [True], [[0, 1]]):
        with raises(ValueError, match=r"`users` must be integers \[n_users\], got"):
            recommend(table, params, users, train, k=2)
    for users in ([], [8], [-1]):
        with raises(ValueError, match=r"`users` must hold ids in \[0, 8\)"):
            recommend(table, params, users, train, k=2)


def test_evaluate_lists_matches_evaluate(case):
    want = evaluate(table, jnp.asarray(case.scores), case.layout)
    users = np.asarray(case.layout.users)
    lists, _ = recommend(table, jnp.asarray(case.scores), users, Csr.from_dense(case.known), k=20)
    got = evaluate_lists(lists, case.layout)
    assert got.keys() == want.keys() - {"auc"}
    for name, values in got.items():
        np.testing.assert_array_equal(values, want[name])
    first = np.asarray(lists)[:, :5]
    short = evaluate_lists(first, case.layout, ks=20)  # shorter than the cutoff
    hits = 5 * evaluate_lists(first, case.layout, ks=5)["precision@5"]
    np.testing.assert_array_equal(np.float32(20) * short["precision@20"], np.round(hits))


@pytest.mark.usefixtures("all_optimisations")
@pytest.mark.parametrize(("n_users", "n"), [(1, 4), (20, 4)])
def test_ndcg_of_ideal_lists_is_exactly_1(n_users, n):
    users, items = np.arange(n_users), np.arange(30)
    ids = {"user_ids": users, "item_ids": items}
    train = Interactions.from_arrays(users, np.full(n_users, 29), **ids)
    test = Interactions.from_arrays(users.repeat(n), np.tile(items[:n], n_users), **ids)
    layout, scores = eval_layout(train, test), jnp.tile(-jnp.arange(30.0), (n_users, 1))
    lists = evaluate_lists(np.tile(items[:20], (n_users, 1)), layout, ks=(5, 10, 20))
    scored = evaluate(lambda table, index: table[index], scores, layout, ks=(5, 10, 20))
    for k in (5, 10, 20):
        np.testing.assert_array_equal(lists[f"ndcg@{k}"], 1)
        np.testing.assert_array_equal(scored[f"ndcg@{k}"], 1)


def test_evaluate_lists_rejects_invalid_lists(case):
    lists = np.tile(np.arange(4), (case.layout.n_evaluated, 1))
    bad = {
        "one list for each": lists[1:],
        "item indices": lists + 0.5,
        "-1 as padding, got int64 from 87 to 90": lists + 87,
        "from -2 to 1": lists - 2,
        "once per list": np.where(lists == 3, 0, lists),
    }
    for message, items in bad.items():
        with raises(ValueError, match=message):
            evaluate_lists(items, case.layout)
    padded = np.where(lists > 1, -1, lists)
    assert evaluate_lists(padded, case.layout, ks=2)["coverage@2"] == np.float32(2 / 90)


def test_rejects_interactions_with_other_ids():
    known, wanted, _ = random_case(3, n_users=6, n_items=9)
    ids = {"user_ids": np.arange(6), "item_ids": np.arange(9)}
    train, test = (Interactions.from_arrays(*np.nonzero(x), **ids) for x in (known, wanted))
    eval_layout(train, test)
    for name, values in ids.items():
        other = dataclasses.replace(test, **{name: values[::-1]})
        with raises(ValueError, match=f"`test` must have the `{name}` of `train`"):
            eval_layout(train, other)
        with raises(ValueError, match=f"`exclude` must have the `{name}` of `train`"):
            eval_layout(train, test, exclude=[other])


def test_rejects_arrays_instead_of_interactions():
    known, wanted, _ = random_case(3, n_users=6, n_items=9)
    for x in (scipy.sparse.csr_array(known), known, (known, wanted)):
        with raises(ValueError, match="`train` must be Interactions, got"):
            eval_layout(x, Csr.from_dense(wanted))
        with raises(ValueError, match="`test` must be Interactions, got"):
            eval_layout(Csr.from_dense(known), x)


def test_warns_about_test_pairs_that_are_not_evaluated():
    known, wanted, _ = random_case(3, n_users=6, n_items=9)
    n = int(np.sum(known | wanted))
    with pytest.warns(UserWarning, match=f"{known.sum()} of {n} pairs of `test` are also in"):
        eval_layout(Csr.from_dense(known), Csr.from_dense(known | wanted))
    listed = np.where(np.arange(9) < 5, known | wanted, False)
    n_lost = n - int(np.sum(listed & ~known))
    with pytest.warns(UserWarning, match=f"{n_lost} of {n} pairs of `test` are not in `cand"):
        eval_layout(
            Csr.from_dense(known), Csr.from_dense(known | wanted), candidates=Csr.from_dense(listed)
        )


class UserItemTables(NamedTuple):
    users: jax.Array
    items: jax.Array


def dot_scores(params, users):
    return jnp.matmul(params.users[users], params.items.T, precision="highest")


@pytest.mark.parametrize("n_users", [3, 59, 61])
def test_rejects_tables_with_wrong_number_of_users(case, n_users):
    tables = UserItemTables(jnp.ones((n_users, 2)), jnp.ones((90, 2)))
    with raises(ValueError, match=r"each of the 60 users, got"):
        evaluate(dot_scores, tables, case.layout)
    with raises(ValueError, match=r"each of the 60 users, got"):
        recommend(dot_scores, tables, [0], Csr.from_dense(case.known), k=1)
    with raises(ValueError, match="`params` must be accepted by `score_fn`, got tuple"):
        evaluate(dot_scores, (jnp.ones((60, 2)), jnp.ones((90, 2))), case.layout)


def test_single_cutoff_may_be_an_integer(case):
    scores = jnp.asarray(case.scores)
    got, want = (evaluate(table, scores, case.layout, ks=ks, auc=False) for ks in (5, (5,)))
    jax.tree.map(np.testing.assert_array_equal, got, want)
