"""Tests of tables over several datasets and encoders, on small data in the original formats."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _helpers.refusals import raises
from matplotlib.image import imread
from scipy import stats

from crl_jax import data
from experiments.reproduce import main
from experiments.studies import contrastive, cost, kept
from experiments.studies.methods import SAMPLING
from experiments.studies.outcomes import Outcome
from experiments.studies.published import published

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]
SHORT = ("--seeds", "2", "--epochs", "2")


@pytest.fixture
def run(dataset_folder, tmp_path, capsys):
    """Runs a target on the folder; returns its exit status and its output without line breaks."""

    def command(target, *arguments, of=dataset_folder):
        code = main([target, *arguments, "--data", str(of), "--out", str(tmp_path)])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return command


@pytest.fixture
def untrained(monkeypatch):
    """Returns a function after whose call every training fails."""

    def forbid():
        def fail(*_, **__):
            raise AssertionError("trained again")

        monkeypatch.setattr("crl_jax.tasks.fit_ranking", fail)

    return forbid


def read_csv(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def outcomes(folder):
    return [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]


@pytest.fixture
def pretended(monkeypatch):
    """Replaces trainings by random outcomes; returns the list of requested trainings."""
    done = []

    def pretend(method, world, seeds, epochs, **_):
        rng = np.random.default_rng(len(done))
        done.append((Path(world.folder).name, method.recipe.encoder, method.label))
        per_seed = [dict.fromkeys(SAMPLING.metrics, x) for x in rng.random(len(seeds)).tolist()]
        users = rng.random(world.train.n_users)
        users[:2] = np.nan
        return Outcome(method.label, per_seed, users.tolist(), [], {"epochs": epochs})

    monkeypatch.setattr(kept, "train_minibatch", pretend)
    monkeypatch.setattr(cost, "_measure", lambda *_: cost.Speed(0.0, 1.0, 0.0))
    return done


def test_each_dataset_and_encoder_is_a_comparison_of_its_own(run, tmp_path, pretended):
    flags = ("--datasets", "gowalla", "ml-100k", "--seeds", "3", "--epochs", "2")
    code, _ = run("table-6.3", *flags, "--methods", "info_nce", "bcl")
    assert code == 0
    rows = read_csv(tmp_path / "table-6.3-minibatch.csv")
    groups = [
        (dataset, encoder) for dataset in ("gowalla", "ml-100k") for encoder in ("mf", "lightgcn")
    ]
    want = [(*group, method) for group in groups for method in ("info_nce", "bcl")]
    assert pretended == want
    assert [(row["dataset"], row["encoder"], row["method"]) for row in rows] == want
    assert [row["ndcg@20_published"] for row in rows[::2]] == [
        "0.123",
        "0.1231",
        "0.4118",
        "0.3976",
    ]
    kept_as = {
        np.mean([seed["ndcg@20"] for seed in outcome["per_seed"]]): outcome
        for outcome in outcomes(tmp_path)
    }
    for first, other in zip(rows[::2], rows[1::2], strict=True):
        assert float(first["gain"]) == 0
        assert float(other["gain"]) == pytest.approx(
            float(other["ndcg@20"]) - float(first["ndcg@20"])
        )
        # Two rows give one comparison, so its p-value is not adjusted for those of other groups.
        a, b = (kept_as[float(row["ndcg@20"])] for row in (first, other))
        p_users = stats.ttest_rel(b["per_user"][2:], a["per_user"][2:]).pvalue
        assert float(other["p_users"]) == pytest.approx(p_users)
        scores = [[seed["ndcg@20"] for seed in of["per_seed"]] for of in (b, a)]
        assert float(other["p_seeds"]) == pytest.approx(stats.ttest_rel(*scores).pvalue)
    assert (tmp_path / "table-6.3-minibatch.png").stat().st_size > 10_000
    text = (tmp_path / "table-6.3-minibatch.md").read_text()
    assert "of width 32 on ml-100k: Adam, batches of 1,024; for each method a search of 8" in text
    assert "LightGCN of width 64 on gowalla, 2 layers: Adam, batches of 16,384; for" in text


def test_what_another_table_trained_is_not_trained_again(run, pretended):
    flags = ("--datasets", "ml-1m", "--encoders", "lightgcn", "--epochs", "3")
    code, first = run("table-6.3", *flags)
    assert code == 0
    made = [("ml-1m", "lightgcn", method) for method in ("info_nce", "dcl", "hcl", "bcl")]
    assert pretended == made
    # At one second per step: 8 points and 5 seeds, 3 epochs each, one step per epoch.
    assert "ml-1m │ lightgcn │ bcl │ 0:00:39" in first
    code, second = run("table-5.2", *flags)
    assert code == 0
    assert pretended[4:] == [("ml-1m", "lightgcn", method) for method in ("bpr", "dpl")]
    assert "ml-1m │ lightgcn │ hcl │ 0:00:00" in second
    assert "sum │ │ │ 0:01:18" in second
    code, third = run("table-5.2", *flags)
    assert code == 0
    assert len(pretended) == 6
    assert "sum │ │ │ 0:00:00" in third


def test_a_graph_encoder_trains_on_a_large_set(run, tmp_path):
    code, _ = run(
        "table-5.2", "--datasets", "gowalla", "--encoders", "lightgcn", "--methods", "dpl", *SHORT
    )
    assert code == 0
    (row,) = read_csv(tmp_path / "table-5.2-minibatch.csv")
    assert (row["encoder"], row["ndcg@20_published"]) == ("lightgcn", "0.1417")
    (outcome,) = outcomes(tmp_path)
    assert len(outcome["per_seed"]) == 2
    assert set(outcome["chosen"]) == {"weight_decay", "tau_plus", "epochs", "valid_ndcg@20"}
    assert (
        "LightGCN of width 64 on gowalla, 2 layers"
        in (tmp_path / "table-5.2-minibatch.md").read_text()
    )


def test_the_estimate_is_steps_times_what_was_measured(run, tmp_path, untrained):
    flags = ("--datasets", "ml-1m", "--encoders", "mf", "--methods", "dpl", "--estimate")
    code, first = run("table-5.2", *flags, "--seeds", "1", "--epochs", "3000000")
    assert code == 0
    assert not (tmp_path / "runs").exists()
    assert "results" not in first
    speeds = {
        path.name.partition("-")[0]: json.loads(path.read_text())
        for path in (tmp_path / "speeds").iterdir()
    }
    speed, budget = speeds["minibatch"], contrastive.BUDGETS["ml-1m"]["mf"]
    assert speed["validation"] == speeds["scoring"]["seconds"]
    assert speed["step"] > 0
    # Fewer interactions than the batch size: one step per epoch.
    validations = 3_000_000 / budget.eval_every
    search = 8 * (3_000_000 * speed["step"] + validations * speed["validation"])
    want = 2 * speed["start"] + search + 3_000_000 * speed["step"] + speed["validation"]
    assert shown_seconds(first) == pytest.approx(want, abs=1)
    untrained()
    code, more = run("table-5.2", *flags, "--seeds", "11", "--epochs", "3000000")
    assert code == 0
    more_seeds = 10 * (3_000_000 * speed["step"] + speed["validation"])
    assert shown_seconds(more) - shown_seconds(first) == pytest.approx(more_seeds, abs=2)


@pytest.mark.parametrize(("rate", "examples"), [(1e-4, [8192]), (2e-6, [8192, 65_536, 100_000])])
def test_quick_steps_are_timed_on_more_examples(worlds, tmp_path, monkeypatch, rate, examples):
    (world,) = worlds("ml-1m")
    users, items = np.divmod(np.arange(100_000), 500)
    log = data.Interactions.from_arrays(users, items)
    world = dataclasses.replace(world, train=log)
    timed = []

    def fit(method, part, *, graph, epochs, seeds, sweep):
        assert graph is log
        timed.append((len(part.train), len(seeds)))
        # Rounded to milliseconds, like the history. The first epoch includes 5 s of compilation.
        ends = 5 + rate * len(part.train) * np.arange(1, epochs + 1)
        return SimpleNamespace(history=[{"seconds": round(end, 3)} for end in ends])

    monkeypatch.setattr(cost, "fit_minibatch", fit)
    monkeypatch.setattr(cost, "_validation", lambda *_: 0.5)
    method = contrastive.methods("5.2", "mf", "ml-1m", world)[0]
    speed = cost.speed_of(method, world, tmp_path)
    assert [n for n, _ in timed] == examples
    n, runs = timed[-1]
    steps = -(-n // method.minibatch.batch_size)
    assert speed.step == pytest.approx(rate * n / steps / runs, rel=0.02)
    assert speed.start == pytest.approx(5, abs=0.01)
    assert speed.validation == 0.5


def shown_seconds(printed):
    """Returns the sum in the printed table, in seconds."""
    days, _, clock = printed.partition("sum │ │ │ ")[2].partition(" │")[0].rpartition(", ")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days.split()[0]) if days else 0) * 24 + hours) * 3600 + minutes * 60 + seconds


def test_all_interactions_are_cut_anew(worlds, dataset_folder):
    small, middle, large = worlds("ml-100k", "ml-1m", "gowalla")
    for world in (small, middle, large):
        whole = data.union(world.train, world.test)
        assert len(whole) == len(world.train) + len(world.test)
        assert len(world.test) == round(0.2 * len(whole))
        assert world.train.ratings is None
    assert len({len(world.train) for world in (small, middle, large)}) == 1
    given = data.load(dataset_folder / "gowalla")
    assert len(given.train) != len(large.train)


@pytest.mark.usefixtures("pretended")
def test_what_is_missing_is_named(run, tmp_path):
    flags = ("--encoders", "mf", "--methods", "bpr", "--estimate")
    code, printed = run("table-5.2", *flags)
    assert code == 0
    assert "left out, for --data" in printed
    assert "has them not: yelp2018" in printed
    assert all(f"│ {name}" in printed for name in ("ml-100k", "ml-1m", "gowalla"))
    code, printed = run("table-5.2", *flags, of=tmp_path)
    assert code == 2
    assert "with ml-100k, ml-1m, gowalla, yelp2018 in it" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-5.2", "--datasets", "yelp2018"], "a folder of datasets with yelp2018 in it"),
        (["table-5.2", "--datasets", "ml-20m"], "--datasets takes some of ml-100k, ml-1m, gowalla"),
        (["table-5.2", "--encoders", "gcn"], "invalid choice"),
        (["table-5.2", "--methods", "bcl"], '--methods takes some of "bpr", "info_nce", "dcl"'),
        (["table-6.3", "--dataset", "ml-1m"], "say --datasets here"),
        (["table-6.3", "--setting", "published"], "leave out --setting published"),
        (["table-4.2", "--datasets", "ml-1m"], "--datasets is for table-5.2, table-6.3"),
        (["table-4.2", "--encoders", "lightgcn"], "lightgcn needs --setting minibatch"),
        (["table-4.2", "--estimate"], "--estimate is of the minibatch setting"),
        (["table-3.3", "--encoders", "mf"], "--encoders is for table-4.2, table-4.3, table-4.4"),
    ],
)
def test_wrong_flags_are_named(run, tmp_path, arguments, message):
    if message == "invalid choice":
        with raises(SystemExit):
            run(*arguments)
        return
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed
    assert not (tmp_path / "runs").exists()


def test_tables_of_samplers_have_rows_of_lightgcn(run, dataset_folder, tmp_path):
    flags = ("--setting", "minibatch", "--encoders", "mf", "lightgcn", "--methods", "rns")
    code, printed = run(
        "table-4.2", *flags, "--seeds", "1", "--epochs", "2", of=dataset_folder / "ml-100k"
    )
    assert code == 0
    rows = read_csv(tmp_path / "table-4.2-minibatch.csv")
    assert [row["encoder"] for row in rows] == ["mf", "lightgcn"]
    want = [published("4.2", "ml-100k", row["encoder"])["rns"]["ndcg@20"] for row in rows]
    assert [float(row["ndcg@20_published"]) for row in rows] == want
    assert "time at most" not in printed


def test_a_long_title_stays_within_a_narrow_plot(run, tmp_path, pretended):
    flags = ("--datasets", "gowalla", "--encoders", "lightgcn", "--methods", "info_nce", "bcl")
    code, _ = run("table-6.3", *flags, "--seeds", "2", "--epochs", "2")
    assert code == 0
    pixels = imread(tmp_path / "table-6.3-minibatch.png")[..., :3]
    assert np.all(pixels[:, [0, -1]] == 1)
    assert not np.all(pixels == 1)


def test_what_the_numbers_of_dpl_do_is_drawn(run, dataset_folder, tmp_path, pretended):
    code, _ = run("figure-5.3", "--seeds", "2", of=dataset_folder / "ml-100k")
    assert code == 0
    assert (tmp_path / "figure-5.3.png").stat().st_size > 10_000
    rows = read_csv(tmp_path / "figure-5.3.csv")
    values = {"mf": 0, "lightgcn": 0}
    for row in rows:
        values[row["encoder"]] += 1
    assert values == {"mf": 2 * 15, "lightgcn": 2 * 15}
    # The tuned setting of DPL is shown in each panel, but trained only once.
    assert len(pretended) == 2 * (15 - 2)
    scores = {
        (row["parameter"], row["value"]): row["ndcg@20"] for row in rows if row["encoder"] == "mf"
    }
    assert (
        scores["extra positives M", "10"]
        == scores["negatives N", "5"]
        == scores["prior τ⁺", "0.15"]
    )


def test_times_of_an_epoch_are_steps_times_what_was_measured(run, tmp_path, monkeypatch):
    seen = []

    def measure(method, world, _):
        seen.append(method)
        return cost.Speed(0.0, float(len(seen)), 0.0)

    monkeypatch.setattr(cost, "_measure", measure)
    code, _ = run("figure-5.4", "--datasets", "ml-1m")
    assert code == 0
    rows = read_csv(tmp_path / "figure-5.4.csv")
    assert [(row["method"], float(row["seconds"])) for row in rows] == [
        ("bpr", 1), ("dpl", 2), ("bns", 3),
    ]  # fmt: skip
    assert {(m.recipe.encoder, m.minibatch.batch_size, m.points) for m in seen} == {("mf", 1024, 1)}
    assert (tmp_path / "figure-5.4.png").stat().st_size > 5000


def test_what_is_named_twice_is_there_once(run, tmp_path, pretended):
    flags = ("--encoders", "mf", "mf", "--methods", "bpr", "--seeds", "1")
    assert run("table-5.2", "--datasets", "ml-1m", "ml-1m", *flags)[0] == 0
    assert pretended == [("ml-1m", "mf", "bpr")]
    assert len(read_csv(tmp_path / "table-5.2-minibatch.csv")) == 1
