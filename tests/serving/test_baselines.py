"""Served baselines: lists and scores against dense ranking, and their files."""

import json

import numpy as np
import pytest
from _helpers.refusals import raises
from safetensors import safe_open

from crl_jax import baselines, serving, train
from crl_jax.baselines import EASE, IALS, ItemKNN, Popularity
from crl_jax.data import Interactions
from crl_jax.serving import BaselineRecommender, Recommender, _rank

N_USERS, N_ITEMS = 12, 9
USERS = np.array([f"u{i}" for i in range(N_USERS)])
ITEMS = np.arange(100, 100 + N_ITEMS)[::-1]
MODELS = [
    Popularity(), ItemKNN(n_neighbours=4), baselines.RP3beta(n_neighbours=5), EASE(l2=7.0),
    baselines.SparseEASE(l2=7.0, n_neighbours=5), IALS(dim=3, n_sweeps=2, seed=4),
    baselines.GFCF(rank=4), baselines.BSPM(rank=4, order=2), baselines.ChebyCF(rank=4, order=3),
]  # fmt: skip
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda of: type(of).__name__)


@pytest.fixture(scope="module")
def logs():
    """Training interactions, without the last user, and a superset of them."""
    present = np.random.default_rng(0).random((N_USERS, N_ITEMS)) < 0.4
    present[-1] = False
    whole = Interactions.from_arrays(*np.nonzero(present), user_ids=USERS, item_ids=ITEMS)
    return whole.select(np.arange(len(whole)) % 4 > 0), whole


def rank_reference(scores, excluded, k):
    """Items of a row by descending score, ties in item order; without the excluded ones."""
    left = [i for i in range(len(scores)) if i not in excluded]
    best = sorted(left, key=lambda i: (-scores[i], i))[:k]
    return [(ITEMS[i], scores[i]) for i in best]


@each_model
def test_recommend_matches_ranked_scores(model, logs):
    log, known = logs
    fitted = model.fit(log)
    served = BaselineRecommender.from_fitted(fitted, known)
    scores = fitted.scores(np.arange(N_USERS))
    found = served.recommend(k=5)
    own = [set(known.items[known.indptr[u] : known.indptr[u + 1]]) for u in range(N_USERS)]
    assert found.to_dict() == {
        user: rank_reference(scores[u], own[u], 5) for u, user in enumerate(USERS.tolist())
    }
    assert found.users[found.is_cold].tolist() == [u for u in USERS if u not in USERS[log.users]]
    some = served.recommend(["u3", "u0"], 2, include_known=True, candidates=ITEMS[:5], exclude=106)
    assert some.to_dict() == {
        f"u{u}": rank_reference(scores[u], {2, 5, 6, 7, 8}, 2) for u in (3, 0)
    }
    pairs = served.score(["u5", "u0", "u5"], [102, 100, 108])
    np.testing.assert_allclose(pairs, scores[[5, 0, 5], [6, 8, 0]], rtol=1e-6)


@each_model
def test_new_user_matches_known_user_with_same_history(model, logs):
    log, _ = logs
    served = BaselineRecommender.from_fitted(model.fit(log))
    histories = {u: ITEMS[log.items[log.indptr[u] : log.indptr[u + 1]]] for u in (2, 4)}
    new, known = served.recommend_new(histories, 4), served.recommend(["u2", "u4"], 4)
    np.testing.assert_array_equal(new.items, known.items)
    np.testing.assert_allclose(new.scores, known.scores, rtol=1e-6)
    assert new.users.tolist() == [2, 4]
    with raises(ValueError, match="Unknown item id 7"):
        served.recommend_new([7])


@each_model
def test_save_load_round_trip(model, logs, tmp_path):
    log, known = logs
    served = BaselineRecommender.from_fitted(model.fit(log), known)
    served.save(tmp_path / "recommender.npz")
    for got in (serving.load(tmp_path), BaselineRecommender.load(tmp_path / "recommender.npz")):
        assert isinstance(got, BaselineRecommender)
        assert (got.fitted.model, repr(got)) == (model, repr(served))
        assert got.known.fingerprint() == known.fingerprint()
        assert got.recommend(k=9).to_dict() == served.recommend(k=9).to_dict()
        assert got.recommend_new([101, 104]).to_dict() == served.recommend_new([101, 104]).to_dict()


def test_load_reports_file_of_other_class(logs, tmp_path):
    log, _ = logs
    BaselineRecommender.from_fitted(Popularity().fit(log)).save(tmp_path / "recommender.npz")
    with raises(ValueError, match=r"npz: expected a recommender, got a fitted baseline: use serv"):
        Recommender.load(tmp_path)
    vectors = np.ones((N_USERS, 2)), np.ones((N_ITEMS, 2))
    Recommender.from_tables(vectors, log).save(tmp_path / "recommender.npz")
    with raises(ValueError, match=r"npz: expected a fitted baseline, got a recommender: use serv"):
        BaselineRecommender.load(tmp_path)
    assert isinstance(serving.load(tmp_path), Recommender)
    with raises(FileNotFoundError, match=r"No recommender in .*x: there is no such"):
        serving.load(tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "x"}, "expected a recommender, got another file of arrays"),
        ({"version": 2}, "expected version 1 of the format, got 2: another release"),
        ({"model": "SVD"}, "expected one of .*IALS.*, got 'SVD'"),
        ({"model": ["EASE"]}, "unhashable type"),
        ({"hyperparams": {"l2": -1}}, "`l2` must lie in"),
        ({"hyperparams": {"rank": 3}}, "unexpected keyword argument 'rank'"),
        ({"train/items": None}, "expected the arrays .*, got "),
        ({"known/items": np.array([1], np.int32)}, "`indptr`"),
        ({"user_ids": USERS[:3]}, "`indptr` must have shape"),
        ({"arrays/weights": None}, "'inverse'"),
        ({"arrays/weights": np.ones((2, 2), np.float32)}, "dimension mismatch|inconsistent|shape"),
        ({"arrays/weights": np.ones((9, 3), np.float32)}, "the arrays .'weights'. are not those"),
        ({"arrays/weights": np.full((9, 9), np.nan, np.float32)}, "NaN or infinity in weights"),
        ({"arrays/weights": np.full((9, 9), "x")}, "expected a complete fitted baseline, got: "),
    ],
)
def test_reports_damaged_files(logs, tmp_path, change, message):
    path = tmp_path / "recommender.npz"
    BaselineRecommender.from_fitted(EASE().fit(logs[0])).save(path)
    tree, meta = train.load_checkpoint(path)
    for name, value in change.items():
        (meta if name in meta else tree)[name] = value
    train.save_checkpoint(path, {n: a for n, a in tree.items() if a is not None}, meta)
    with raises(ValueError, match=r"(?s)recommender\.npz: .*" + message):
        serving.load(tmp_path)


def test_rejects_neighbour_items_out_of_range(logs, tmp_path):
    path = tmp_path / "recommender.npz"
    BaselineRecommender.from_fitted(ItemKNN().fit(logs[0])).save(path)
    tree, meta = train.load_checkpoint(path)
    tree["arrays/items"] = tree["arrays/items"] + 10_000_000
    train.save_checkpoint(path, tree, meta)
    with raises(ValueError, match=r"recommender\.npz: expected a complete fitted baseline, got: "):
        serving.load(path)


def test_rejects_mismatched_ids_and_custom_baselines(logs, tmp_path):
    fitted = Popularity().fit(logs[0])
    other = Interactions.from_arrays([0], [0], user_ids=USERS, item_ids=ITEMS + 1)
    with raises(ValueError, match="`known` must have the item_ids of the training data"):
        BaselineRecommender.from_fitted(fitted, other)

    class Own(Popularity):
        pass

    with raises(ValueError, match="`fitted` must be one of .*Popularity, got Own"):
        BaselineRecommender.from_fitted(Own().fit(logs[0])).save(tmp_path / "x.npz")
    assert not list(tmp_path.iterdir())


def test_export_contains_arrays_and_ids(logs, tmp_path):
    fitted = EASE().fit(logs[0])
    served = BaselineRecommender.from_fitted(fitted)
    served.export(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as stored:
        assert sorted(stored) == ["item_ids", "user_ids", "weights"]
        np.testing.assert_array_equal(stored["weights"], fitted.arrays["weights"])
        np.testing.assert_array_equal(stored["item_ids"], ITEMS)
    served.export(tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("weights"), fitted.arrays["weights"])
        assert json.loads(file.metadata()["user_ids"]) == USERS.tolist()
    with raises(ValueError, match=r"`path` must end in one of \.npz, \.safetensors, got"):
        served.export(tmp_path / "x.parquet")


def test_host_ranking_matches_stable_sort(monkeypatch):
    """Ties, signed zeros, negative scores, exclusion, candidates, blocks, and short lists."""
    monkeypatch.setattr(_rank, "_BLOCKS", (8,))
    rng = np.random.default_rng(0)
    scores = rng.choice(np.array([-2.5, -1, -0.0, 0.0, 1, 3], np.float32), (19, 11))
    excluded = rng.random(scores.shape) < 0.3
    mask = np.arange(11) != 4
    csr = np.cumsum([0, *excluded.sum(axis=1)]), np.nonzero(excluded)[1]
    left = np.where(excluded | ~mask, -np.inf, scores).astype(np.float32)
    want = np.argsort(-left, axis=1, kind="stable")
    want = np.where(np.take_along_axis(left, want, axis=1) > -np.inf, want, -1)
    for k in (1, 4, 11, 13):
        items, best = _rank.best_on_host(lambda of: scores[of].copy(), csr, 11, mask, k)
        np.testing.assert_array_equal(items[:, :11], want[:, :k])
        assert (items[:, 11:] == -1).all()
        rows = np.arange(19)[:, None]
        np.testing.assert_array_equal(best, np.where(items < 0, -np.inf, left[rows, items]))
