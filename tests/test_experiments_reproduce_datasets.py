"""Tables over several datasets and encoders, on small data in the formats of the large."""

import csv
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console
from scipy import stats

from crl_jax import data, train
from crl_jax.data import simulate
from experiments.reproduce import main
from experiments.studies import contrastive, cost, kept, sampling, training
from experiments.studies.data import load_datasets
from experiments.studies.methods import SAMPLING, Method, Minibatch, World
from experiments.studies.outcomes import Outcome
from experiments.studies.published import published
from experiments.studies.targets import Options

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]
SHORT = ("--seeds", "2", "--epochs", "2")


def as_lists(path, log, chosen):
    with path.open("w") as file:
        for user in np.unique(log.users[chosen]):
            items = log.items[chosen & (log.users == user)]
            file.write(" ".join(map(str, (user, *items))) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three of the four datasets: parts with ratings, all pairs in one file, parts in lists."""
    path = tmp_path_factory.mktemp("datasets")
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    held_out = np.random.default_rng(1).random(len(log)) < 0.3
    for name in ("ml-100k", "ml-1m", "gowalla"):
        (path / name).mkdir()
    for name, part in (("train", ~held_out), ("test", held_out)):
        as_lists(path / "gowalla" / f"{name}.txt", log, part)
        with (path / "ml-100k" / f"{name}.csv").open("w") as file:
            file.write("user,item,rating\n")
            for u, i in zip(log.users[part], log.items[part], strict=True):
                file.write(f"{u},{i},4\n")
    as_lists(path / "ml-1m" / "pairs.txt", log, np.ones(len(log), bool))
    (path / "ml-1m" / "movies.dat").write_text("1::Toy Story (1995)::Animation\n")
    return path


@pytest.fixture
def run(folder, tmp_path, capsys):
    """Runs a target on the folder; its status and what it printed, without line breaks."""

    def command(target, *arguments, of=folder):
        code = main([target, *arguments, "--data", str(of), "--out", str(tmp_path)])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return command


@pytest.fixture
def untrained(monkeypatch):
    """Fails where anything is trained from now on."""

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


def worlds(folder, *names):
    options = Options("table-5.2", folder, datasets=names)
    return load_datasets(options, Console(quiet=True))


@pytest.fixture
def pretended(monkeypatch):
    """Trainings are not done: their outcomes are drawn. Returns what would have been trained."""
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
        # Two rows are one comparison, which is not adjusted for those of other groups.
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
    # A step takes a second: 8 points and 5 seeds of 3 epochs, each of one step.
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


def test_the_estimate_is_steps_times_what_was_measured(run, tmp_path, folder, untrained):
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
    # Fewer interactions than a batch: one step an epoch.
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
def test_quick_steps_are_timed_on_more_examples(folder, tmp_path, monkeypatch, rate, examples):
    (world,) = worlds(folder, "ml-1m")
    users, items = np.divmod(np.arange(100_000), 500)
    log = data.Interactions.from_arrays(users, items)
    world = dataclasses.replace(world, train=log)
    timed = []

    def fit(method, part, *, graph, epochs, seeds, sweep):
        assert graph is log
        timed.append((len(part.train), len(seeds)))
        # As the history has it: milliseconds. The first epoch compiles for 5 seconds.
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
    """The sum in the table."""
    days, _, clock = printed.partition("sum │ │ │ ")[2].partition(" │")[0].rpartition(", ")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days.split()[0]) if days else 0) * 24 + hours) * 3600 + minutes * 60 + seconds


def test_all_interactions_are_cut_anew(folder):
    small, middle, large = worlds(folder, "ml-100k", "ml-1m", "gowalla")
    for world in (small, middle, large):
        whole = data.union(world.train, world.test)
        assert len(whole) == len(world.train) + len(world.test)
        assert len(world.test) == round(0.2 * len(whole))
        assert world.train.ratings is None
    assert len({len(world.train) for world in (small, middle, large)}) == 1
    given = data.load(folder / "gowalla")
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
        with pytest.raises(SystemExit):
            run(*arguments)
        return
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed
    assert not (tmp_path / "runs").exists()


def test_tables_of_samplers_have_rows_of_lightgcn(run, folder, tmp_path):
    flags = ("--setting", "minibatch", "--encoders", "mf", "lightgcn", "--methods", "rns")
    code, printed = run("table-4.2", *flags, "--seeds", "1", "--epochs", "2", of=folder / "ml-100k")
    assert code == 0
    rows = read_csv(tmp_path / "table-4.2-minibatch.csv")
    assert [row["encoder"] for row in rows] == ["mf", "lightgcn"]
    want = [published("4.2", "ml-100k", row["encoder"])["rns"]["ndcg@20"] for row in rows]
    assert [float(row["ndcg@20_published"]) for row in rows] == want
    assert "time at most" not in printed


def test_a_point_that_diverges_is_passed_over(folder):
    (world,) = worlds(folder, "ml-100k")
    axes = (("learning_rate", (1e30, 1e-2)),)
    minibatch = Minibatch(axes, batch_size=64, eval_every=1, at_once=False)
    done = training.train_minibatch(Method("a", minibatch=minibatch), world, (0,), 2)
    assert done.chosen["learning_rate"] == pytest.approx(1e-2)
    never = dataclasses.replace(minibatch, axes=(("learning_rate", (1e30, 2e30)),))
    with pytest.raises(train.TrainingDiverged):
        training.train_minibatch(Method("a", minibatch=never), world, (0,), 2)


def test_a_long_title_stays_within_a_narrow_plot(run, tmp_path, pretended):
    flags = ("--datasets", "gowalla", "--encoders", "lightgcn", "--methods", "info_nce", "bcl")
    code, _ = run("table-6.3", *flags, "--seeds", "2", "--epochs", "2")
    assert code == 0
    pixels = imread(tmp_path / "table-6.3-minibatch.png")[..., :3]
    assert np.all(pixels[:, [0, -1]] == 1)
    assert not np.all(pixels == 1)


def test_what_the_numbers_of_dpl_do_is_drawn(run, folder, tmp_path, pretended):
    code, _ = run("figure-5.3", "--seeds", "2", of=folder / "ml-100k")
    assert code == 0
    assert (tmp_path / "figure-5.3.png").stat().st_size > 10_000
    rows = read_csv(tmp_path / "figure-5.3.csv")
    values = {"mf": 0, "lightgcn": 0}
    for row in rows:
        values[row["encoder"]] += 1
    assert values == {"mf": 2 * 15, "lightgcn": 2 * 15}
    # What DPL was tuned to stands in each panel and is trained once.
    assert len(pretended) == 2 * (15 - 2)
    scores = {
        (row["parameter"], row["value"]): row["ndcg@20"] for row in rows if row["encoder"] == "mf"
    }
    assert (
        scores["extra positives M", "10"]
        == scores["negatives N", "5"]
        == scores["prior τ⁺", "0.15"]
    )


def test_times_of_an_epoch_are_steps_times_what_was_measured(run, folder, tmp_path, monkeypatch):
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


def test_every_loss_of_a_comparison_has_as_many_points(folder):
    (world,) = worlds(folder, "ml-1m")
    for dataset, budgets in contrastive.BUDGETS.items():
        for encoder in budgets:
            for number, rows in contrastive.TABLES.items():
                made = contrastive.methods(number, encoder, dataset, world)
                assert [m.label for m in made] == list(rows)
                points = 4 if dataset in ("gowalla", "yelp2018") else 8
                assert {m.points for m in made} == {points}
                assert set(rows) <= set(published(number, dataset, encoder))


def test_what_is_named_twice_is_there_once(run, folder, tmp_path, pretended):
    flags = ("--encoders", "mf", "mf", "--methods", "bpr", "--seeds", "1")
    assert run("table-5.2", "--datasets", "ml-1m", "ml-1m", *flags)[0] == 0
    assert pretended == [("ml-1m", "mf", "bpr")]
    assert len(read_csv(tmp_path / "table-5.2-minibatch.csv")) == 1


@pytest.mark.parametrize(
    ("dataset", "faster", "l2"), [("ml-100k", 1, 1), ("ml-1m", 4, 1), ("gowalla", 8, 1 / 3)]
)
def test_l2_on_tables_falls_with_their_length(folder, dataset, faster, l2):
    (world,) = worlds(folder, "ml-1m")
    of = {made.label: made for made in contrastive.methods("5.2", "mf", dataset, world)}
    l2 *= (943 + 1682) / (world.train.n_users + world.train.n_items)
    axes = {name: np.array(values) for name, values in of["bpr"].minibatch.axes}
    np.testing.assert_allclose(axes["weight_decay"], np.array([1e-5, 3e-5]) * l2)
    np.testing.assert_allclose(axes["learning_rate"], np.array([1e-3, 2e-3]) * faster)
    weaker = 1 if dataset == "ml-100k" else 3
    axes = {name: np.array(values) for name, values in of["dpl"].minibatch.axes}
    np.testing.assert_allclose(axes["weight_decay"], np.array([1e-5, 2e-5]) * l2 / weaker)
    np.testing.assert_allclose(of["dpl"].minibatch.learning_rate, 1e-3 * faster)


def test_l2_on_rows_does_not_depend_on_their_number(folder):
    (world,) = worlds(folder, "ml-1m")
    bpr, *_ = contrastive.methods("5.2", "lightgcn", "gowalla", world)
    axes = {name: np.array(values) for name, values in bpr.minibatch.axes}
    assert list(axes) == ["weight_decay"]
    np.testing.assert_allclose(axes["weight_decay"], [1e-4, 2e-4, 3e-4, 5e-4])
    np.testing.assert_allclose(bpr.minibatch.learning_rate, 3e-2)


def test_what_was_kept_is_found_whatever_searches_there_are():
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    world = World(log, log, "")
    assert kept._further(sampling.RNS, world) == []
    other = Method("a", minibatch=Minibatch(batch_size=2048))
    assert "2048" in str(kept._further(other, world))
    # How long it trains stands in the name by itself.
    longer = dataclasses.replace(other, minibatch=Minibatch(batch_size=2048, epochs=7))
    assert kept._further(other, world) == kept._further(longer, world)


class Killed(Exception):
    """In place of a signal."""


def test_in_turn_is_as_at_once_and_goes_on_after_a_kill(folder, tmp_path):
    (world,) = worlds(folder, "ml-100k")
    axes = (("learning_rate", (1e-3, 1e-2)),)
    at_once = Method("a", minibatch=Minibatch(axes, batch_size=64, eval_every=1))
    in_turn = dataclasses.replace(
        at_once, minibatch=dataclasses.replace(at_once.minibatch, at_once=False)
    )
    want = training.train_minibatch(at_once, world, (0, 1), 4)
    seen = []

    def killed(entry):
        seen.append(entry)
        if len(seen) == 6:
            raise Killed

    checkpoint = tmp_path / "a.npz"
    with pytest.raises(Killed):
        training.train_minibatch(in_turn, world, (0, 1), 4, checkpoint=checkpoint, on_epoch=killed)
    again = []
    got = training.train_minibatch(
        in_turn, world, (0, 1), 4, checkpoint=checkpoint, on_epoch=again.append
    )
    # The first point is not trained again: its entries are the same to the millisecond.
    assert again[:4] == seen[:4]
    assert got.chosen == pytest.approx(want.chosen, rel=1e-4)
    for ours, theirs in zip(got.per_seed, want.per_seed, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.search.0.npz", "a.search.1.npz", "a.0.npz", "a.1.npz",
    }  # fmt: skip
