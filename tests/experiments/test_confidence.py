"""Tests of the noisy-positives study: its protocol, evaluation, and commands on small data."""

import csv
import json

import numpy as np
import pytest
from _helpers.commands import reproduction
from _helpers.refusals import raises
from sklearn.metrics import roc_auc_score, roc_curve

from crl_jax import data
from crl_jax.data import Interactions, simulate
from experiments.objectives.pairwise import popular_and_not
from experiments.reproduce import main
from experiments.studies import confidence, kept
from experiments.studies.data import load_world, with_noise
from experiments.studies.methods import Minibatch
from experiments.studies.outcomes import Outcome, judge, pool
from experiments.studies.published import published
from experiments.studies.sampling import TABLES

GRID = dict(Minibatch().axes)

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
    # Caused by the small data, and by the small initial values of minibatch training.
    pytest.mark.filterwarnings("ignore:The distribution of `confidence`"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Dataset with ratings from 1 to 5, split into training and test sets."""
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    rng = np.random.default_rng(0)
    ratings, held_out = rng.integers(1, 6, len(log)), rng.random(len(log)) < 0.2
    path = tmp_path_factory.mktemp("ml-100k")
    for name, part in (("train", ~held_out), ("test", held_out)):
        with (path / f"{name}.csv").open("w") as file:
            file.write("user,item,rating\n")
            for u, i, r in zip(log.users[part], log.items[part], ratings[part], strict=True):
                file.write(f"{u},{i},{r}\n")
    return path


@pytest.fixture
def run(folder, tmp_path, capsys):
    return reproduction(folder, tmp_path, capsys)


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def pairs(log):
    return set(zip(log.users.tolist(), log.items.tolist(), strict=True))


def short(path):
    """Returns the name of a swept hyper-parameter in a stored outcome."""
    return path.rpartition(".")[2]


def test_the_test_set_is_half_of_the_top_rated(folder):
    loaded = data.load(folder)
    world = load_world(loaded, None, str(folder))
    everything = data.union(loaded.train, loaded.test)
    top = int(np.sum(everything.ratings == 5))
    assert set(world.test.ratings.tolist()) == {5}
    assert len(world.test) == top // 2
    assert not pairs(world.train) & pairs(world.test)
    assert pairs(world.train) | pairs(world.test) == pairs(everything)


def test_a_test_part_of_its_own_is_taken_from_a_rating_up(folder):
    loaded = data.load(folder)
    world = load_world(loaded, 3.0, str(folder))
    assert pairs(world.train) == pairs(loaded.train)
    assert pairs(world.test) == pairs(loaded.test.select(loaded.test.ratings >= 3))
    assert 0 < len(world.test) < len(loaded.test)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_injected_positives_are_new_pairs(folder, rate):
    world = load_world(data.load(folder), None, str(folder))
    noisy = with_noise(world, rate)
    added = pairs(noisy.train) - pairs(world.train)
    assert len(added) == round(rate * len(world.train)) == len(noisy.train) - len(world.train)
    assert not added & pairs(world.test)
    assert pairs(noisy.test) == pairs(world.test)
    if rate:
        assert pairs(noisy.masked) == pairs(world.train)
    again = with_noise(world, rate)
    assert again.train.fingerprint() == noisy.train.fingerprint()


def test_more_noise_than_there_are_pairs_is_refused(folder):
    world = load_world(data.load(folder), None, str(folder))
    with raises(ValueError, match="`rate` must leave pairs"):
        with_noise(world, 100.0)


@pytest.mark.parametrize("levels", [3, 1000])
def test_the_judge_is_the_roc(levels):
    rng = np.random.default_rng(levels)
    good = rng.random(500) < 0.8
    values = rng.integers(0, levels, 500) + good * levels / 5
    auc, curve = judge(values, good)
    assert auc == pytest.approx(roc_auc_score(good, values))
    false, true, _ = roc_curve(good, values, drop_intermediate=False)
    np.testing.assert_allclose(curve, np.interp(np.linspace(0, 1, 101), false, true))


def test_without_two_kinds_there_is_nothing_to_judge():
    auc, curve = judge(np.arange(3.0), np.ones(3, bool))
    assert np.isnan(auc)
    assert np.isnan(curve).all()


def test_tables_have_the_rows_they_had():
    names = ["prior", "bprac", "bprac, unscaled", "bprac, smoothed law", "posterior"]
    assert [m.label for m in confidence.Study().tables()["3.2"]] == names


def test_quality_of_the_confidence_is_judged_by_the_ratings(run, tmp_path, folder, monkeypatch):
    rows = confidence.Study().rows()
    two = {"3.2": (rows["prior"], rows["bprac"])}
    monkeypatch.setattr(confidence.Study, "tables", lambda self: two)
    code, printed = run("table-3.2", "--seeds", "2", "--epochs", "2", "--dataset", "ml-100k")
    assert code == 0
    assert "0.6524" in printed
    rows = {row["method"]: row for row in read_csv(tmp_path / "table-3.2-published.csv")}
    assert list(rows) == ["prior", "bprac"]
    # The prior on its own requires no training.
    log = load_world(data.load(folder), None, str(folder)).train
    popularity = log.item_counts[log.items]
    want = roc_auc_score(log.ratings > 1, popularity)
    assert float(rows["prior"]["confidence_auc"]) == pytest.approx(want, abs=1e-6)
    code, _ = run("figure-3.4", "--seeds", "2", "--epochs", "2")
    assert code == 0
    curves = read_csv(tmp_path / "figure-3.4.csv")
    assert len(curves) == 101 * len(rows)
    assert (tmp_path / "figure-3.4.png").stat().st_size > 5000


def test_a_table_is_written_with_all_its_metrics(run, tmp_path):
    chosen = ("bpr", "mpr", "bprac, unscaled")
    code, printed = run(
        "table-3.3", "--seeds", "1", "--epochs", "1", "--dataset", "ml-100k", "--methods", *chosen
    )
    assert code == 0
    assert "0.3859" in printed
    rows = read_csv(tmp_path / "table-3.3-published.csv")
    assert [row["method"] for row in rows] == [*chosen]
    assert all(0 <= float(row[name]) <= 1 for row in rows for name in ("ndcg@10", "auc"))
    assert all(float(row["hit_precision@5"]) >= float(row["precision@5"]) for row in rows)


def test_every_loss_of_the_study_takes_its_numbers():
    """Traces each loss with the inputs of training; distinct losses have distinct programs."""
    rows = {**confidence.Study().rows(), **{m.label: m for ms in TABLES.values() for m in ms}}
    by_loss = {}
    for label, method in rows.items():
        by_loss.setdefault(tuple(kept._computed(method)), set()).add(label)
    told_apart = [labels for labels in by_loss.values() if len(labels) == 1]
    assert {"gbpr", "mpr", "dpl", "dpl+hard"} <= set().union(*told_apart)
    assert {"bpr", "bprac", "rns", "bns"} <= max(by_loss.values(), key=len)
    minibatch = [m.label for m in rows.values() if m.batches]
    assert minibatch == ["truncated bce", "truncated bpr"]


def test_an_ablation_on_several_splits(run, tmp_path, folder):
    methods = ("bpr at that rate", "rating")
    code, printed = run(
        "table-3.3", "--ablation", "--splits", "2", "--seeds", "2", "--epochs", "2",
        "--methods", *methods,
    )  # fmt: skip
    assert code == 0
    assert "are put together, and half of the interactions with the top rating" in printed
    rows = {row["method"]: row for row in read_csv(tmp_path / "table-3.3-ablation-2-splits.csv")}
    assert list(rows) == list(methods)
    kept = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    assert len(kept) == 4  # one training per method and split, with both seeds
    for name in methods:
        splits = [[m["ndcg@10"] for m in o["per_seed"]] for o in kept if o["label"] == name]
        means = np.mean(splits, axis=1)
        assert float(rows[name]["ndcg@10"]) == pytest.approx(means.mean())
        assert float(rows[name]["ndcg@10_std"]) == pytest.approx(means.std(ddof=1))
    assert "2 splits of 2 seeds each" in (tmp_path / "table-3.3-ablation-2-splits.md").read_text()


def test_splits_are_pooled_user_by_user():
    def outcome(score, users):
        return Outcome("a", [{"ndcg@10": score}] * 2, users, [], {})

    nan = float("nan")
    both = pool([outcome(0.1, [0.2, nan, 0.4, nan]), outcome(0.3, [0.4, 0.6, nan, nan])])
    np.testing.assert_allclose(both.per_user, [0.3, 0.6, 0.4, nan])
    np.testing.assert_allclose(both.units("ndcg@10"), [0.1, 0.3])
    np.testing.assert_allclose(outcome(0.1, []).units("ndcg@10"), [0.1, 0.1])


def test_the_length_is_that_of_the_published_number_of_triplets(folder):
    world = load_world(data.load(folder), None, str(folder))
    n_users, n = world.train.n_users, len(world.train)
    epochs = confidence.Study().rows()["bpr"].epochs(world)
    assert abs(epochs * n - 10 * 1000 * n_users) <= 5 * n


def test_the_scale_of_the_law_is_that_of_the_initial_values():
    of = confidence.Study(0.2)
    assert of.law.scale == 0.2
    assert {round(m.recipe.deviation**2, 9) for m in (*of.rows().values(), *of.ablation())} == {0.2}


def test_methods_search_numbers_of_their_own(run, tmp_path):
    chosen = ("truncated bce",)
    code, _ = run(
        "table-3.3", "--setting", "minibatch", "--seeds", "1", "--epochs", "5",
        "--methods", *chosen,
    )  # fmt: skip
    assert code == 0
    kept = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    methods = confidence.Study().rows()
    for outcome in kept:
        axis = methods[outcome["label"]].axis
        own = {axis[0]} if axis else set()
        assert set(outcome["chosen"]) == {
            *map(short, GRID),
            *map(short, own),
            "epochs",
            "valid_ndcg@20",
        }
        if axis:
            assert any(np.isclose(outcome["chosen"][short(axis[0])], axis[1]))


@pytest.mark.parametrize("target", ["figure-3.2", "figure-3.3"])
def test_laws_are_drawn_with_their_numbers(run, tmp_path, target):
    code, _ = run(target)
    assert code == 0
    rows = read_csv(tmp_path / f"{target}.csv")
    for dim in (8, 27):
        density = [float(r["density"]) for r in rows if (r["dim"], r["scale"]) == (str(dim), "0.2")]
        assert np.sum(density) * 30 / 600 == pytest.approx(1, abs=1e-3)
    assert (tmp_path / f"{target}.png").stat().st_size > 5000


def test_noise_and_convergence_are_drawn_with_their_numbers(run, tmp_path, monkeypatch):
    monkeypatch.setattr(confidence, "NOISE_RATES", (0.0, 0.3))
    monkeypatch.setattr(confidence, "ROBUST", ("bprac",))
    monkeypatch.setattr(confidence, "CONVERGING", ("gbpr",))
    code, _ = run("figure-3.5", "--seeds", "2", "--epochs", "1")
    assert code == 0
    rows = read_csv(tmp_path / "figure-3.5.csv")
    scores = {(r["method"], r["rate"], r["seed"]): r["ndcg@10"] for r in rows}
    assert {key[:2] for key in scores} == {("bprac", rate) for rate in ("0.0", "0.3")}
    clean, noisy = ([scores["bprac", rate, seed] for seed in "01"] for rate in ("0.0", "0.3"))
    assert clean != noisy
    code, _ = run("figure-3.6", "--seeds", "2", "--epochs", "2")
    assert code == 0
    rows = read_csv(tmp_path / "figure-3.6.csv")
    assert len(rows) == 2
    assert all(0 < float(row["auc"]) < 1 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["table-4.2", "--test-rating", "3"],
            "--test-rating is for table-3.2, table-3.3, figure-3.2",
        ),
        (["table-3.3", "--test-rating", "9"], "no test interaction is rated as high"),
        (["figure-3.6", "--setting", "minibatch"], "figure-3.6 is of the published setting"),
        (["table-3.3", "--methods", "truncated bce"], '--methods takes some of "bpr", "gbpr"'),
        (
            ["table-4.2", "--splits", "2"],
            "--splits is for table-3.2, table-3.3: leave it out of table-4.2",
        ),
        (["table-4.2", "--law-scale", "1"], "--law-scale is for table-3.2, table-3.3, figure-3.2"),
        (
            ["figure-3.5", "--splits", "2"],
            "--splits is for table-3.2, table-3.3: leave it out of figure-3.5",
        ),
        (["table-3.3", "--splits", "0"], "--splits must be a whole number in [1, "),
        (["table-3.3", "--splits", "2", "--test-rating", "3"], "--splits cuts the data anew"),
        (["table-3.3", "--law-scale", "-1"], "--law-scale must be a number above 0, got -1"),
        (["table-3.2", "--ablation"], "--ablation is for table-3.3: leave it out of table-3.2"),
        (["table-3.3", "--ablation", "--setting", "minibatch"], "--ablation is of the published"),
    ],
)
def test_wrong_flags_are_named(run, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed


def test_data_without_ratings_are_refused(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("user,item\n1,2\n1,3\n2,3\n")
    path = str(tmp_path / "log.csv")
    assert main(["table-3.3", "--data", path, "--out", str(tmp_path / "o")]) == 2
    assert "must have ratings" in " ".join(capsys.readouterr().err.split())
    assert main(["table-3.3", "--data", path, "--test-rating", "3", "--out", str(tmp_path)]) == 2
    assert "needs a test part with ratings" in " ".join(capsys.readouterr().err.split())


def test_training_ratings_are_asked_for_before_training(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("user,item\n0,0\n0,1\n1,0\n1,2\n")
    (tmp_path / "test.csv").write_text("user,item,rating\n0,2,5\n1,1,4\n")
    arguments = ["--data", str(tmp_path), "--test-rating", "3", "--out", str(tmp_path / "o")]
    for target in ("table-3.2", "figure-3.4"):
        assert main([target, *arguments]) == 2
        assert "needs training ratings" in " ".join(capsys.readouterr().err.split())


def test_the_likely_negatives_are_popular_and_the_others_not():
    counts = np.array([30, 20, 10, 1])
    items = np.repeat(np.arange(4), counts)
    log = Interactions.from_arrays(
        np.concatenate([np.arange(n) for n in counts]), items,
        user_ids=np.arange(40), item_ids=np.arange(4),
    )  # fmt: skip
    likely, unlikely = popular_and_not(log).samplers
    np.testing.assert_allclose(likely.weights, counts**0.75, rtol=1e-6)
    np.testing.assert_allclose(unlikely.weights, 1 / (1 + counts), rtol=1e-6)


def test_published_numbers_are_found_for_every_row():
    known = published("3.3", "ml-100k", "mf")
    ours = {"prior", "bprac, smoothed law", "posterior"}
    rows = confidence.Study().rows().values()
    assert {m.published or m.label for m in rows} - set(known) == ours
    assert known["bprac"]["ndcg@10"] == 0.3859
    assert known["bprac"]["hit_precision@10"] == 0.5127
    assert published("3.2", "ml-100k", "mf") == {"bprac": {"confidence_auc": 0.6524}}
