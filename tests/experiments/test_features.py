"""Tests of side features on the command line: files, cold items, saved recommender, errors."""

import csv
import json

import numpy as np
import pytest
from _helpers.commands import QUICK
from _helpers.files import write
from _helpers.refusals import raises

from crl_jax import data
from crl_jax.serving import Recommender
from experiments.recommend import _features, main
from experiments.recommend._config import Config
from experiments.recommend._options import DataOptions
from experiments.recommend._problem import load_problem

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),  # users of cold items only
]


@pytest.fixture
def files(tmp_path):
    """Features of the items i0 to i69, of which i60 and above are not in the log, and of users."""
    rng = np.random.default_rng(0)
    genres = ["|".join(rng.choice(list("abcd"), size, replace=False)) for size in [1, 2] * 35]
    rows = [f"i{i},{1990 + i % 20},{genre}\n" for i, genre in enumerate(genres)]
    items = write(tmp_path / "items.csv", "item,year,genres\n" + "".join(rows))
    rows = [f"u{u}\t{'xy'[u % 2]}\n" for u in range(50)]
    users = write(tmp_path / "ml.user", "user_id:token\tjob:token\n" + "".join(rows))
    return ["--encoder", "features", "--item-features", str(items), "--user-features", str(users)]


def test_evaluates_cold_items_and_serves_new_items(files, ratings, tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--data", str(ratings), *files, "--cold-items", "0.2", *QUICK]
    flags += ["--user-id-dropout", "0.1", "--final-training", "train", "--out", str(out)]
    assert main(flags) == 0
    screen = capsys.readouterr().out
    assert "of 11 cold items" in screen
    with (out / "cold_baselines.csv").open(newline="", encoding="utf-8") as file:
        rows = {row["model"]: row for row in csv.DictReader(file)}
    assert [*rows] == ["random", "popularity", "popularity by features", "content kNN"]
    assert f"{float(rows['content kNN']['cold_ndcg@20']):.4f}" in screen
    assert float(rows["popularity"]["cold_all_ndcg@5"]) == 0
    results = json.loads((out / "metrics.json").read_text())
    for name in ("ndcg@20", "cold_ndcg@20", "cold_all_ndcg@20", "cold_auc", "cold_all_auc"):
        assert 0 < results[name] < 1
    assert results["cold_recall@20"] == pytest.approx(1)  # of 11 items
    assert not any("coverage" in name for name in results if name.startswith("cold"))
    model = Recommender.load(out)
    assert model.known.n_items == 45
    table = data.read_features(files[3])
    wider = model.with_items(table)
    assert wider.known.n_items == 70
    user_table = data.read_features(files[5])
    assert len(wider.recommend_from_features(user_table, "u3", k=5).items[0]) == 5
    assert main(["topk", "--run", str(out), "--user", "u7"]) == 0


def test_cold_item_precision_matches_numpy(files, ratings):
    problem = load_problem(DataOptions(str(ratings), cold_items=0.25))
    encoding = Config().encoding
    encoding = type(encoding)(encoder="features", item_features=files[3], min_category_count=2)
    ids, path = problem.known.item_ids, files[3]
    schema, table = _features.read_side("item", path, ids, 2)
    rng = np.random.default_rng(0)
    params = {
        "dense": rng.standard_normal((schema.n_dense, 3)).astype("f4"),
        "categories": rng.standard_normal((schema.n_categories, 3)).astype("f4"),
    }
    users = rng.standard_normal((problem.known.n_users, 3)).astype("f4")
    items = rng.standard_normal((problem.known.n_items, 3)).astype("f4")
    learned = _features.FeatureTables(users, items, None, params)
    got = _features.cold_metrics(encoding, problem, learned, (5,))
    features = schema.transform(table, problem.cold.item_ids)
    new = np.zeros((len(features), 3))
    for row, (x, own, weights) in enumerate(
        zip(features.dense, features.categories, features.weights, strict=True)
    ):
        new[row] = x @ params["dense"]
        for category, weight in zip(own, weights, strict=True):
            new[row] += weight * params["categories"][category] if category >= 0 else 0
    interacted = np.zeros((len(users), len(new)), bool)
    interacted[problem.cold.users, problem.cold.items] = True
    for prefix, candidates in (("cold", new), ("cold_all", np.concatenate([items, new]))):
        scores, relevant = users @ candidates.T, interacted
        if prefix == "cold_all":
            scores[problem.known.users, problem.known.items] = -np.inf
            relevant = np.concatenate(
                [np.zeros((len(users), len(items)), bool), interacted], axis=1
            )
        top = np.argsort(-scores, axis=1)[:, :5]
        hits = np.take_along_axis(relevant, top, 1).sum(axis=1)
        mask = relevant.any(axis=1)
        want = (hits[mask] / 5).mean()
        assert got[f"{prefix}_precision@5"] == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--encoder features", "--encoder features needs --item-features or --user-features"),
        ("--cold-items 0.2", "--cold-items 0.2 needs vectors of items that are not in training"),
        (
            "--cold-items 0.2 --encoder features --user-features FILE",
            "--cold-items 0.2 needs vectors of items",
        ),
        ("--item-features FILE", "--encoder mf has no --item-features"),
        (
            "--cold-items 1 --encoder features --item-features FILE",
            "--cold-items must be a number in (0, 1), got 1",
        ),
        (
            "--encoder features --item-features FILE --optimizer-mode rows",
            "--optimizer-mode rows",
        ),
    ],
)
def test_rejects_incompatible_flags(flags, message, files, ratings, capsys):
    arguments = flags.replace("FILE", files[3]).split()
    assert main(["--data", str(ratings), *QUICK, *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", "").split())


def test_rejects_feature_file_with_missing_items(files, ratings, tmp_path, capsys):
    path = write(tmp_path / "few.csv", "item,genre\ni1,a\ni2,a\n")
    flags = ["--encoder", "features", "--item-features", str(path)]
    assert main(["--data", str(ratings), *QUICK, *flags, "--out", str(tmp_path / "run")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "few.csv: expected a row for each of 56 ids, got none for 54 of them" in error
    assert not (tmp_path / "run").exists()  # a retry with the same flags starts from scratch


def test_rejects_cold_items_with_given_test_part(tmp_path):
    write(tmp_path / "train.csv", "user,item\n1,a\n2,b\n")
    write(tmp_path / "test.csv", "user,item\n1,b\n2,a\n")
    with raises(ValueError, match="has a test part: name a --split"):
        load_problem(DataOptions(str(tmp_path), cold_items=0.5))
