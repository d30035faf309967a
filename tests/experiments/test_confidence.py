"""Tests of chapter 3, noisy positives: protocol, evaluation, and commands on small data."""

import json
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.commands import reproduction
from _helpers.refusals import raises
from _helpers.reproduction import read_csv, write_dataset
from sklearn.metrics import roc_auc_score

from crl_jax import data, models, train
from crl_jax.data import Interactions
from experiments.recommend.objectives import popularity_mixture
from experiments.reproduce import chapter_3, cost, main, store
from experiments.reproduce.chapter_4 import TABLES
from experiments.reproduce.data import load_problem, with_noise
from experiments.reproduce.methods import Minibatch, Problem
from experiments.reproduce.tables import published

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
    # Caused by the small data, and by the small initial values of minibatch training.
    pytest.mark.filterwarnings("ignore:The distribution of `confidence`"),
]
SHORT = ("--seeds", "2", "--epochs", "2")
ROWS = chapter_3.methods()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("ml-100k"))


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Output folder of all tests, which share its trainings."""
    return tmp_path_factory.mktemp("out")


@pytest.fixture
def run(folder, out, capsys):
    return reproduction(folder, out, capsys)


@pytest.fixture
def problem(folder):
    return load_problem(data.load(folder), None, str(folder))


def pairs(log):
    return set(zip(log.users.tolist(), log.items.tolist(), strict=True))


def test_test_part_is_half_of_top_ratings(folder, problem):
    loaded = data.load(folder)
    everything = data.union(loaded.train, loaded.test)
    top = int(np.sum(everything.ratings == 5))
    assert set(problem.test.ratings.tolist()) == {5}
    assert len(problem.test) == top // 2
    assert not pairs(problem.train) & pairs(problem.test)
    assert pairs(problem.train) | pairs(problem.test) == pairs(everything)


def test_given_test_part_is_filtered_by_minimum_rating(folder):
    loaded = data.load(folder)
    problem = load_problem(loaded, 3.0, str(folder))
    assert pairs(problem.train) == pairs(loaded.train)
    assert pairs(problem.test) == pairs(loaded.test.select(loaded.test.ratings >= 3))
    assert 0 < len(problem.test) < len(loaded.test)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_injected_positives_are_new_pairs(problem, rate):
    noisy = with_noise(problem, rate)
    added = pairs(noisy.train) - pairs(problem.train)
    assert len(added) == round(rate * len(problem.train)) == len(noisy.train) - len(problem.train)
    assert not added & pairs(problem.test)
    assert pairs(noisy.test) == pairs(problem.test)
    if rate:
        assert pairs(noisy.masked) == pairs(problem.train)
    assert with_noise(problem, rate).train.fingerprint() == noisy.train.fingerprint()


def test_rejects_more_noise_than_free_pairs(problem):
    with raises(ValueError, match="`rate` must leave pairs"):
        with_noise(problem, 100.0)


@pytest.mark.slow
def test_confidence_is_evaluated_against_ratings(run, out, problem, monkeypatch):
    monkeypatch.setattr(chapter_3, "ESTIMATES", ("prior", "bprac"))
    code, printed = run("table-3.2", *SHORT, "--dataset", "ml-100k")
    assert code == 0
    assert "0.6524" in printed
    assert "half of the interactions with the top rating are the test part" in printed
    rows = {row["method"]: row for row in read_csv(out / "table-3.2-published.csv")}
    assert list(rows) == ["prior", "bprac"]
    # The prior on its own requires no training.
    popularity = problem.train.item_counts[problem.train.items]
    want = roc_auc_score(problem.train.ratings > 1, popularity)
    assert float(rows["prior"]["confidence_auc"]) == pytest.approx(want, abs=1e-6)
    assert run("figure-3.4", *SHORT)[0] == 0
    curves = read_csv(out / "figure-3.4.csv")
    assert len(curves) == 101 * len(rows)
    height = [float(x["true_positive_rate"]) for x in curves if x["method"] == "prior"]
    assert np.trapezoid(height, dx=0.01) == pytest.approx(want, abs=0.01)
    assert (out / "figure-3.4.png").stat().st_size > 5000


@pytest.mark.parametrize("table", ["table-3.2", "table-3.3"])
def test_estimates_training_time_of_table(folder, tmp_path, table, monkeypatch, capsys):
    """Each measured epoch includes an EM round of the confidence, so that the time is a bound."""
    rounds = {}

    def fit(method, part, *, epochs, hooks, **_):
        estimator = method.estimator(part)
        rounds[method.label] = None if estimator is None else estimator.every
        history = [{"seconds": float(n)} for n in range(1, epochs + 1)]
        loop = train.TrainingLoop(None, epochs, history, float(epochs))
        for hook in hooks:
            for _ in loop.history:
                hook.on_report(loop)
        return loop

    monkeypatch.setattr(cost, "fit_minibatch", fit)
    monkeypatch.setattr(cost, "_validation", lambda *_: 0.5)
    run = reproduction(folder, tmp_path, capsys)
    code, printed = run(table, "--setting", "minibatch", "--estimate", "--seeds", "3")
    assert code == 0
    assert "time at most" in printed
    assert not (tmp_path / f"{table}-minibatch.csv").exists()
    names = chapter_3.ESTIMATES if table == "table-3.2" else ROWS
    assert list(rounds) == [*names]
    assert rounds == {name: 1 if ROWS[name].confidence else None for name in names}


def test_writes_table_with_all_metrics(run, out):
    chosen = ("prior", "mpr", "bprac")
    code, printed = run("table-3.3", *SHORT, "--dataset", "ml-100k", "--methods", *chosen)
    assert code == 0
    assert "0.3859" in printed
    rows = read_csv(out / "table-3.3-published.csv")
    assert [row["method"] for row in rows] == [*chosen]
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("ndcg@10", "auc"))
    assert all(float(row["hit_precision@5"]) >= float(row["precision@5"]) for row in rows)


def test_every_loss_accepts_its_hyperparameters():
    """Traces each loss with the inputs of training; distinct losses have distinct programs."""
    methods = {**ROWS, **{m.label: m for ms in TABLES.values() for m in ms}}
    by_loss = {}
    for label, method in methods.items():
        by_loss.setdefault(tuple(store.computation_hashes(method)), set()).add(label)
    distinct = [labels for labels in by_loss.values() if len(labels) == 1]
    assert {"gbpr", "mpr", "dpl", "dpl+hard"} <= set().union(*distinct)
    assert {"bpr", "bprac", "rns", "bns"} <= max(by_loss.values(), key=len)
    minibatch = [m.label for m in methods.values() if m.batches]
    assert minibatch == ["truncated bce", "truncated bpr"]


def test_ablation_averages_over_splits(run, out):
    flags = ("--ablation", "--splits", "2", *SHORT, "--methods", "bpr at that rate")
    before = set((out / "runs").glob("*"))
    assert run("table-3.3", *flags)[0] == 0
    (row,) = read_csv(out / "table-3.3-ablation-2-splits.csv")
    trained = set((out / "runs").glob("*")) - before
    splits = [json.loads(path.read_text())["per_seed"] for path in trained]
    assert len(splits) == 2  # one training per split, with both seeds
    means = np.mean([[seed["ndcg@10"] for seed in seeds] for seeds in splits], axis=1)
    assert float(row["ndcg@10"]) == pytest.approx(means.mean())
    assert float(row["ndcg@10_std"]) == pytest.approx(means.std(ddof=1))
    assert "2 splits of 2 seeds each" in (out / "table-3.3-ablation-2-splits.md").read_text()


@pytest.mark.slow
def test_methods_search_their_own_hyperparameter(run, out):
    flags = ("--setting", "minibatch", "--seeds", "1", "--epochs", "5")
    assert run("table-3.3", *flags, "--methods", "truncated bce")[0] == 0
    (path,) = (out / "runs").glob("minibatch-*.json")
    chosen = json.loads(path.read_text())["chosen"]
    axes = {name.rpartition(".")[2]: values for name, values in Minibatch().axes}
    axes["drop_rate"] = (0.02, 0.05, 0.1, 0.2)
    assert set(chosen) == {*axes, "epochs", "valid_ndcg@20"}
    assert all(np.isclose(chosen[name], values).any() for name, values in axes.items())


def test_training_length_matches_published_number_of_triplets(problem):
    n_users, n = problem.train.n_users, len(problem.train)
    assert abs(ROWS["bpr"].epochs(problem) * n - 10 * 1000 * n_users) <= 5 * n


def test_distribution_variance_matches_initial_variance(problem):
    rows = (*chapter_3.methods(0.2).values(), *chapter_3.ablation(0.2))
    assert {round(method.recipe.deviation**2, 9) for method in rows} == {0.2}
    distributions = {m.label: m.estimator(problem).distribution for m in rows if m.confidence}
    fixed = {name for name, dist in distributions.items() if getattr(dist, "scale", None) == 0.2}
    assert fixed == {
        n for n in distributions if "density" in n or n in ("bprac", "bprac, unscaled")
    }


@pytest.mark.parametrize("target", ["figure-3.2", "figure-3.3"])
def test_score_distributions_are_densities(run, out, target):
    assert run(target)[0] == 0
    rows = read_csv(out / f"{target}.csv")
    for dim in (8, 27):
        density = [float(r["density"]) for r in rows if (r["dim"], r["scale"]) == (str(dim), "0.2")]
        assert np.sum(density) * 30 / 600 == pytest.approx(1, abs=1e-3)
    assert (out / f"{target}.png").stat().st_size > 5000


@pytest.mark.slow
def test_noise_and_convergence_figures_write_their_data(run, out, monkeypatch):
    monkeypatch.setattr(chapter_3, "NOISE_RATES", (0.0, 0.3))
    monkeypatch.setattr(chapter_3, "ROBUST", ("bprac",))
    monkeypatch.setattr(chapter_3, "CONVERGING", ("gbpr",))
    assert run("figure-3.5", *SHORT)[0] == 0
    scores = {(r["rate"], r["seed"]): r["ndcg@10"] for r in read_csv(out / "figure-3.5.csv")}
    assert list(scores) == [(rate, seed) for rate in ("0.0", "0.3") for seed in "01"]
    assert [scores["0.0", seed] for seed in "01"] != [scores["0.3", seed] for seed in "01"]
    assert run("figure-3.6", *SHORT)[0] == 0
    rows = read_csv(out / "figure-3.6.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(0 < float(row["auc"]) < 1 for row in rows)
    monkeypatch.setattr(chapter_3, "RULES", ("bprac",))
    assert run("lemma-3.2", *SHORT)[0] == 0
    rows = read_csv(out / "lemma-3.2.csv")
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert all(float(row["log_posterior"]) < 0 for row in rows)


def test_likelihood_and_constant_match_formulas():
    """Lemma 3.2, in float64; the constant of its proof is the density of the scores."""
    ids = {"user_ids": np.arange(3), "item_ids": np.arange(5)}
    log = data.Interactions.from_arrays([0, 0, 1, 1, 2], [0, 1, 1, 2, 3], **ids)
    rng = np.random.default_rng(0)
    users, items = (rng.normal(scale=0.6, size=(n, 27)).astype(np.float32) for n in (3, 5))
    hook = chapter_3.track_likelihood(Problem(log, log, "here"), 0.6)
    (user, pos, neg), prior, distribution = hook.metrics.args
    seen = set(zip(log.users, log.items, strict=True))
    assert not seen & set(zip(np.asarray(user), np.asarray(neg), strict=True))
    tables = models.Tables(jnp.asarray(users), jnp.asarray(items))
    task = SimpleNamespace(serving=SimpleNamespace(serving_tables=lambda params: params))
    got = hook.metrics(task, tables, None)
    u, i, j = (np.float64(x) for x in (users[user], items[pos], items[neg]))
    scores = (u * i).sum(-1)
    squares = (u**2).sum(-1) + (i**2).sum(-1) + (j**2).sum(-1)
    each = -np.log1p(np.exp((u * j).sum(-1) - scores)) - 0.01 / 2 * squares
    np.testing.assert_allclose(got["log_posterior"], each.mean(), rtol=1e-5)
    density = np.asarray(distribution.pdf(jnp.asarray(scores, jnp.float32)), np.float64)
    below = np.asarray(distribution.cdf(jnp.asarray(scores, jnp.float32)), np.float64)
    share = np.asarray(prior, np.float64)
    constant = 2 * density * (below * share + (1 - below) * (1 - share))
    low, middle, high = np.quantile(constant, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(got["ratio_low"], low / middle, rtol=1e-4)
    np.testing.assert_allclose(got["ratio_high"], high / middle, rtol=1e-4)
    assert got["ratio_low"] < 0.95 < 1.05 < got["ratio_high"]


def test_rejects_data_without_ratings(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("user,item\n1,2\n1,3\n2,3\n")
    path = str(tmp_path / "log.csv")
    assert main(["table-3.3", "--data", path, "--out", str(tmp_path / "o")]) == 2
    assert "has no ratings" in " ".join(capsys.readouterr().err.split())
    assert main(["table-3.3", "--data", path, "--test-rating", "3", "--out", str(tmp_path)]) == 2
    assert "needs a test part with ratings" in " ".join(capsys.readouterr().err.split())


def test_rejects_missing_training_ratings(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("user,item\n0,0\n0,1\n1,0\n1,2\n")
    (tmp_path / "test.csv").write_text("user,item,rating\n0,2,5\n1,1,4\n")
    arguments = ["--data", str(tmp_path), "--test-rating", "3", "--out", str(tmp_path / "o")]
    for target in ("table-3.2", "figure-3.4"):
        assert main([target, *arguments]) == 2
        assert "needs training ratings" in " ".join(capsys.readouterr().err.split())


def test_likely_negatives_are_popular_and_unlikely_are_not():
    counts = np.array([30, 20, 10, 1])
    items = np.repeat(np.arange(4), counts)
    log = Interactions.from_arrays(
        np.concatenate([np.arange(n) for n in counts]), items,
        user_ids=np.arange(40), item_ids=np.arange(4),
    )  # fmt: skip
    likely, unlikely = popularity_mixture(log).samplers
    np.testing.assert_allclose(likely.weights, counts**0.75, rtol=1e-6)
    np.testing.assert_allclose(unlikely.weights, 1 / (1 + counts), rtol=1e-6)


def test_published_results_exist_for_every_row():
    known = published("3.3", "ml-100k", "mf")
    ours = {"prior", "bprac, smoothed law", "posterior"}
    assert {m.published or m.label for m in ROWS.values()} - set(known) == ours
    assert known["bprac"]["ndcg@10"] == 0.3859
    assert known["bprac"]["hit_precision@10"] == 0.5127
    assert published("3.2", "ml-100k", "mf") == {"bprac": {"confidence_auc": 0.6524}}
