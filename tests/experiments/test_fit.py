"""Tests of `recommend` runs that fit a baseline: metrics, files, lists, searches and errors."""

import csv
import json
import shutil

import jax
import numpy as np
import polars
import pytest
from _helpers import list_metrics
from _helpers.studies import prepare, read, refused

from crl_jax import baselines, serving
from experiments.recommend import main
from experiments.recommend._study import Recommend
from experiments.recommend.fitted import MODELS

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def run(ratings, out, *flags):
    with jax.numpy_dtype_promotion("standard"):
        assert main(["--data", str(ratings), *flags, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def ease(ratings, tmp_path_factory, quick_compiles):
    """Run directory of EASE; tests must not modify it."""
    flags = "--model", "ease", "--model-l2", "20"
    return run(ratings, tmp_path_factory.mktemp("ease") / "run", *flags)


@pytest.fixture(scope="module")
def problem(ratings):
    return prepare(Recommend(), ["--data", str(ratings)])[1]


def ndcg(fitted, known, held_out):
    """NDCG@20 of a fitted baseline, the mean over users with held-out items."""
    scores, values = fitted.scores(np.arange(known.n_users)), []
    for user in np.unique(held_out.users):
        excluded, relevant = (log.items[log.users == user] for log in (known, held_out))
        values.append(list_metrics.ndcg(scores[user], excluded, relevant))
    return np.mean(values)


def test_run_evaluates_and_saves_baseline(ease, problem):
    fitted = baselines.EASE(l2=20.0).fit(problem.known)
    result = read(ease, "metrics.json")
    assert result["ndcg@20"] == pytest.approx(ndcg(fitted, problem.known, problem.test), rel=1e-5)
    assert result["chosen"] == {"point": {}}
    assert result["trained_on"]["scored_model"] == ["train", "valid"]
    assert result["seconds"] > 0
    assert [seed["ndcg@20"] for seed in read(ease, "metrics_by_seed.json")] == [result["ndcg@20"]]
    with (ease / "baselines.csv").open(newline="", encoding="utf-8") as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["popularity", "item-kNN"]
    config = read(ease, "config.json")
    assert config["encoding"]["model"] == "ease"
    assert config["encoding"]["model_l2"] == 20
    assert not (ease / "curves.png").exists()
    model = serving.load(ease)
    assert isinstance(model, serving.BaselineRecommender)
    (array,), (want,) = (of.arrays.values() for of in (model.fitted, fitted))
    np.testing.assert_allclose(array, want, rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="got a fitted baseline: use serving"):
        serving.Recommender.load(ease)


@pytest.mark.parametrize("include_test_items", [False, True])
def test_topk_lists_match_baseline_scores(ease, problem, tmp_path, include_test_items):
    flags = ["--include-test-items"] if include_test_items else []
    path = tmp_path / "lists.csv"
    command = ["topk", "--run", str(ease), "--all", "--k", "3", "--out", str(path), *flags]
    assert main(command) == 0
    fitted = baselines.EASE(l2=20.0).fit(problem.known)
    scores = fitted.scores(np.arange(problem.known.n_users)).astype(np.float64)
    for part in (problem.known, problem.test)[: 1 if include_test_items else 2]:
        scores[part.users, part.items] = -np.inf
    table = polars.read_csv(path)
    for index, user in enumerate(problem.known.user_ids.tolist()):
        want = problem.known.item_ids[np.argsort(-scores[index], kind="stable")[:3]]
        own = table.filter(polars.col("user") == user)
        assert own["item"].to_list() == want.tolist()
    if not include_test_items:
        served = serving.load(ease).recommend(k=3).to_polars()
        assert served["item"].to_list() == table["item"].to_list()


def test_topk_prints_items_and_scores(ease, problem, capsys):
    assert main(["topk", "--run", str(ease), "--user", "u3", "--k", "2"]) == 0
    shown = capsys.readouterr().out
    for _, _, item, score in serving.load(ease).recommend("u3", 2).rows():
        assert item in shown
        assert f"{score:.4f}" in shown


def test_reports_damaged_model_files(ease, tmp_path, capsys):
    folder = shutil.copytree(ease, tmp_path / "run")
    model, fitted = folder / "checkpoint" / "model.npz", folder / "checkpoint" / "seed-0.npz"
    model.write_bytes(model.read_bytes()[:300])
    error = refused(main, ["topk", "--run", str(folder), "--user", "u3"], capsys)
    assert "model.npz: expected a complete checkpoint" in error
    shutil.copy(ease / "checkpoint" / "model.npz", model)
    fitted.write_bytes(fitted.read_bytes()[:300])
    error = refused(main, ["topk", "--run", str(folder), "--user", "u3"], capsys)
    assert "seed-0.npz: expected a complete checkpoint" in error


@pytest.mark.parametrize(
    ("model", "flags", "name", "values", "make"),
    [
        ("ease", [], "model_l2", [0.5, 5, 500], lambda n: baselines.EASE(l2=n)),
        (
            "item-knn", ["--model-shrinkage", "2"], "model_n_neighbours", [2, 30],
            lambda n: baselines.ItemKNN(n_neighbours=n, shrinkage=2.0),
        ),
    ],
)  # fmt: skip
def test_sweep_selects_on_validation_data(
    model, flags, name, values, make, ratings, problem, tmp_path, capsys
):
    axis = f"{name}={','.join(map(str, values))}"
    folder = run(ratings, tmp_path / "run", "--model", model, *flags, "--sweep", axis)
    want = [ndcg(make(value).fit(problem.train), problem.train, problem.valid) for value in values]
    with (folder / "sweep.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row[name]) for row in rows] == values
    np.testing.assert_allclose([float(row["valid_ndcg@20"]) for row in rows], want, rtol=1e-5)
    best = values[int(np.argmax(want))]
    result = read(folder, "metrics.json")
    assert result["chosen"]["point"] == {name: best}
    scored = ndcg(make(best).fit(problem.known), problem.known, problem.test)
    assert result["ndcg@20"] == pytest.approx(scored, rel=1e-5)
    shown = capsys.readouterr().out
    assert "best epoch" not in shown
    assert f"chosen on validation data: --{name.replace('_', '-')} {best:g}, NDCG@20 " in shown


def test_seeds_fit_separate_models(ratings, problem, tmp_path):
    flags = ["--model", "ials", "--model-dim", "4", "--model-n-sweeps", "1", "--seeds", "2"]
    folder = run(ratings, tmp_path / "run", *flags, "--seed", "7", "--final-training", "all")
    by_seed = [result["ndcg@20"] for result in read(folder, "metrics_by_seed.json")]
    estimators = [baselines.IALS(dim=4, n_sweeps=1, seed=seed) for seed in (7, 8)]
    want = [ndcg(each.fit(problem.known), problem.known, problem.test) for each in estimators]
    np.testing.assert_allclose(by_seed, want, rtol=1e-5)
    everything = problem.union(("train", "valid", "test"))
    assert read(folder, "metrics.json")["trained_on"]["saved_model"] == ["train", "valid", "test"]
    for index, each in enumerate(estimators):
        path = tmp_path / "lists.csv"
        command = ["topk", "--run", str(folder), "--all", "--k", "1", "--out", str(path)]
        assert main([*command, "--seed-index", str(index)]) == 0
        items, _ = each.fit(everything).recommend(np.arange(everything.n_users), 1)
        assert polars.read_csv(path)["item"].to_list() == everything.item_ids[items[:, 0]].tolist()


def test_resume_refits_interrupted_run(ease, tmp_path, capsys):
    folder = shutil.copytree(ease, tmp_path / "run")
    (folder / "metrics.json").unlink()
    assert main(["--resume", str(folder)]) == 0
    result, want = read(folder, "metrics.json"), read(ease, "metrics.json")
    assert {**result, "seconds": 0} == {**want, "seconds": 0}
    assert main(["--resume", str(folder)]) == 0
    assert "is finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model-l2", "3"], "--model trained has no --model-l2; it takes no numbers."),
        (["--sweep", "model_l2=3,4"], "--model trained has no --model-l2"),
        (["--model", "gf-cf", "--model-l2", "3"], "--model gf-cf has no --model-l2; it takes"),
        (["--model", "ease", "--model-l2", "0"], "--model-l2 must be a number above 0"),
        (["--model", "ease", "--sweep", "model_l2=0,1"], "--sweep model_l2 must be a number above"),
        (
            ["--model", "ease", "--loss", "dpl", "--tau-plus", "0.1", "--lr", "0.5"],
            "--model ease trains nothing: omit --loss dpl, --tau-plus 0.1, --lr 0.5.",
        ),
        (["--model", "ease", "--sampler", "dns"], "trains nothing: omit --sampler dns."),
        (["--model", "ease", "--encoder", "lightgcn"], "omit --encoder lightgcn."),
        (["--model", "ease", "--contrast", "simgcl"], "omit --contrast simgcl."),
        (["--model", "ease", "--sweep", "lr=1,2"], "trains nothing: omit --sweep lr."),
        (
            ["--model", "ease", "--recipe", "ml-100k-dpl"],
            "--model ease trains nothing: omit --loss",
        ),
        (["--model", "ease", "--tune", "2"], "trains nothing: omit --tune 2."),
        (["--model", "ease", "--search", "halving"], "trains nothing: omit --search halving."),
        (["--model", "ease", "--seeds", "2"], "--model ease has no seed: omit --seeds 2."),
        (
            ["--model", "ease", "--sweep", "model_l2=1,2", "--search-seeds", "3"],
            "--model ease has no seed: omit --search-seeds 3.",
        ),
        (["--model", "ease", "--mesh", "data=1"], "one process on the host: omit --mesh data=1."),
        (
            ["--sweep", "epochs=1,8", "--search", "halving"],
            "halving decides on the epochs; omit it",
        ),
        (["--sweep", "epochs=1,8", "--tune", "1"], "halving decides on the epochs; omit it"),
        (
            ["--model", "ease", "--valid-fraction", "0", "--sweep", "model_l2=1,2"],
            "--valid-fraction 0 leaves no data",
        ),
    ],
)
def test_rejects_incompatible_flags(flags, message, tmp_path, capsys):
    error = refused(main, [*flags, "--out", str(tmp_path / "run")], capsys)
    assert message in error
    assert not (tmp_path / "run").exists()


def test_every_baseline_is_a_model_choice():
    exported = {of for of in vars(baselines).values() if isinstance(of, type)}
    models = exported - {baselines.Baseline, baselines.FittedBaseline}
    assert {entry.source for entry in MODELS.values()} == {None, *models}


def test_config_without_model_defaults_to_trained(ease, tmp_path):
    """A run directory from before the flag existed can be read."""
    config = read(ease, "config.json")
    config["encoding"] = {
        name: value for name, value in config["encoding"].items() if not name.startswith("model")
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    got = Recommend.schema.from_json(config, tmp_path / "config.json")
    assert (got.encoding.model, got.encoding.model_l2) == ("trained", None)
