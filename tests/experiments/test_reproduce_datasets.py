"""Tests of tables over several datasets and encoders, of searches and of time estimates."""

import dataclasses
import itertools
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _helpers.killing import Killed
from _helpers.refusals import raises
from _helpers.reproduction import outcome, read_csv
from matplotlib.image import imread
from scipy import stats

from crl_jax import data, train
from experiments.reproduce import chapter_4, contrastive, cost, main, store, targets, training
from experiments.reproduce.comparisons import with_sweep
from experiments.reproduce.methods import Method, Minibatch
from experiments.reproduce.tables import published

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]


@pytest.fixture
def run(dataset_folder, tmp_path, capsys):
    """Runs a target on the folder; returns its exit status and its output without line breaks."""

    def command(target, *arguments, of=dataset_folder):
        code = main([target, *arguments, "--data", str(of), "--out", str(tmp_path)])
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return command


def outcomes(folder):
    return [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]


@pytest.fixture
def pretended(monkeypatch):
    """Replaces trainings by random outcomes; returns the list of requested trainings."""
    done = []

    def pretend(method, problem, seeds, epochs, **_):
        rng = np.random.default_rng(len(done))
        done.append((Path(problem.folder).name, method.recipe.encoder, method.label))
        scores, users = rng.random(len(seeds)).tolist(), rng.random(problem.train.n_users)
        users[:2] = np.nan
        return outcome(method.label, scores, users.tolist(), epochs=epochs)

    monkeypatch.setattr(targets, "train_minibatch", pretend)
    monkeypatch.setattr(cost, "_measure", lambda *_: cost.Speed(0.0, 1.0, 0.0))
    return done


def test_each_dataset_and_encoder_is_compared_separately(run, tmp_path, pretended):
    """Datasets and encoders that are named twice are used once."""
    flags = ("--datasets", "gowalla", "ml-100k", "gowalla", "--seeds", "3", "--epochs", "2")
    encoders = ("--encoders", "mf", "lightgcn", "mf")
    code, _ = run("table-6.3", *flags, *encoders, "--methods", "info_nce", "bcl")
    assert code == 0
    rows = read_csv(tmp_path / "table-6.3-minibatch.csv")
    groups = [(name, encoder) for name in ("gowalla", "ml-100k") for encoder in ("mf", "lightgcn")]
    want = [(*group, method) for group in groups for method in ("info_nce", "bcl")]
    assert pretended == want
    assert [(row["dataset"], row["encoder"], row["method"]) for row in rows] == want
    known = [row["ndcg@20_published"] for row in rows[::2]]
    assert known == ["0.123", "0.1231", "0.4118", "0.3976"]
    stored = {
        np.mean([seed["ndcg@20"] for seed in each["per_seed"]]): each for each in outcomes(tmp_path)
    }
    for first, other in zip(rows[::2], rows[1::2], strict=True):
        assert float(first["gain"]) == 0
        gain = float(other["ndcg@20"]) - float(first["ndcg@20"])
        assert float(other["gain"]) == pytest.approx(gain)
        # Two rows give one comparison, so its p-value is not adjusted for those of other groups.
        a, b = (stored[float(row["ndcg@20"])] for row in (first, other))
        p_users = stats.ttest_rel(b["per_user"][2:], a["per_user"][2:]).pvalue
        assert float(other["p_users"]) == pytest.approx(p_users)
        scores = [[seed["ndcg@20"] for seed in of["per_seed"]] for of in (b, a)]
        assert float(other["p_seeds"]) == pytest.approx(stats.ttest_rel(*scores).pvalue)
    text = (tmp_path / "table-6.3-minibatch.md").read_text()
    assert "of width 32 on ml-100k: Adam, batches of 1,024; for each method a search of 8" in text
    assert "LightGCN of width 64 on gowalla, 2 layers: Adam, batches of 16,384; for" in text
    pixels = imread(tmp_path / "table-6.3-minibatch.png")[..., :3]  # the long title is wrapped
    assert np.all(pixels[:, [0, -1]] == 1)
    assert not np.all(pixels == 1)


def test_tables_share_trainings(run, pretended):
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


def test_sweep_applies_to_all_methods_or_one():
    bpr, dpl = Method("bpr"), chapter_4.DPL
    odd = dataclasses.replace(bpr, label="oracle, |M| = 5", axis=("temperature", (1.0, 2.0)))
    sweep = ("dpl.lr=3e-3", "lr=1e-3,5e-3", "tau_plus=0.1,0.2", "oracle, |M| = 5.temperature=4")
    swept = with_sweep([bpr, dpl, odd], sweep)
    rates, hyper = ("optimizer.learning_rate", "task.hyperparams.")
    assert [method.axes for method in swept] == [
        bpr.axes | {rates: (1e-3, 5e-3)},
        dpl.axes | {rates: (3e-3,), f"{hyper}tau_plus": (0.1, 0.2)},
        odd.axes | {rates: (1e-3, 5e-3), f"{hyper}temperature": (4.0,)},
    ]
    assert [method.points for method in swept] == [8, 8, 8]
    assert with_sweep([bpr, dpl], ["dpl.lr=1"])[0] is bpr


@pytest.mark.parametrize(
    ("sweep", "message"),
    [
        (["lr"], "must be NAME=NUMBER,NUMBER,… or METHOD.NAME=NUMBER"),
        (["lr=1,x"], "got 'lr=1,x'"),
        (["bpr.lr=1,1"], "with distinct finite numbers"),
        (["tau_plus=nan"], "with distinct finite numbers"),
        (["lr=-1"], "--sweep lr must not be negative, got 'lr=-1'"),
        (["dpl.lr=1", "dpl.lr=2"], "--sweep dpl.lr is given twice"),
        (["bcl.lr=1"], 'takes a method among "bpr", "dpl", got "bcl"'),
        (["tau=1"], "takes one of lr, weight_decay, init_scale, .*tau_plus.*, got 'tau'"),
        (["bpr.tau_plus=0.1"], "takes one of lr, .*, got 'tau_plus'"),
    ],
)
def test_rejects_invalid_sweep(sweep, message):
    with raises(ValueError, match=message):
        with_sweep([Method("bpr"), chapter_4.DPL], sweep)


def test_swept_methods_are_trained_again(run, tmp_path, pretended):
    flags = ("--datasets", "ml-1m", "--encoders", "mf", "--methods", "bpr", "dpl")
    assert run("table-5.2", *flags)[0] == 0
    code, printed = run("table-5.2", *flags, "--sweep", "dpl.tau_plus=0.1,0.2,0.3")
    assert code == 0
    assert [method for *_, method in pretended] == ["bpr", "dpl", "dpl"]
    text = (tmp_path / "table-5.2-minibatch.md").read_text()
    assert "set by hand: dpl.tau_plus=0.1,0.2,0.3." in text
    code, printed = run("table-4.2", "--sweep", "lr=1")
    assert (code, "--sweep requires --setting minibatch" in printed) == (2, True)


def test_sampler_tables_include_lightgcn_rows(run, dataset_folder, tmp_path, pretended):
    flags = ("--setting", "minibatch", "--encoders", "mf", "lightgcn", "--methods", "rns")
    code, printed = run("table-4.2", *flags, "--seeds", "1", of=dataset_folder / "ml-100k")
    assert code == 0
    assert pretended == [("ml-100k", encoder, "rns") for encoder in ("mf", "lightgcn")]
    rows = read_csv(tmp_path / "table-4.2-minibatch.csv")
    want = [published("4.2", "ml-100k", row["encoder"])["rns"]["ndcg@20"] for row in rows]
    assert [float(row["ndcg@20_published"]) for row in rows] == want
    assert "time at most" not in printed


def test_figure_plots_dpl_hyperparameters(run, dataset_folder, tmp_path, pretended):
    assert run("figure-5.3", "--seeds", "2", of=dataset_folder / "ml-100k")[0] == 0
    assert (tmp_path / "figure-5.3.png").stat().st_size > 10_000
    rows = read_csv(tmp_path / "figure-5.3.csv")
    assert [row["encoder"] for row in rows] == ["mf"] * 2 * 16 + ["lightgcn"] * 2 * 16
    # The tuned setting of DPL is shown in each panel, but trained only once.
    assert len(pretended) == 2 * (16 - 2)
    assert [row["value"] for row in rows[:12:2]] == ["0", "1", "3", "5", "10", "15"]
    of = {(row["parameter"], row["value"]): row["ndcg@20"] for row in rows[:32]}
    tuned = of["extra positives M", "10"], of["negatives N", "5"], of["prior τ⁺", "0.15"]
    assert len(set(tuned)) == 1


@pytest.mark.slow
def test_lightgcn_trains_with_sequential_search(run, tmp_path):
    """Uses a real search that trains one run after the other."""
    flags = ("--datasets", "gowalla", "--encoders", "lightgcn", "--methods", "dpl")
    assert run("table-5.2", *flags, "--seeds", "2", "--epochs", "1")[0] == 0
    (row,) = read_csv(tmp_path / "table-5.2-minibatch.csv")
    assert (row["encoder"], row["ndcg@20_published"]) == ("lightgcn", "0.1417")
    (trained,) = outcomes(tmp_path)
    assert len(trained["per_seed"]) == 2
    assert set(trained["chosen"]) == {"weight_decay", "tau_plus", "epochs", "valid_ndcg@20"}


def seconds_of(printed):
    """Returns the sum in the printed table, in seconds."""
    days, _, clock = printed.partition("sum │ │ │ ")[2].partition(" │")[0].rpartition(", ")
    hours, minutes, seconds = map(int, clock.split(":"))
    return ((int(days.split()[0]) if days else 0) * 24 + hours) * 3600 + minutes * 60 + seconds


def test_estimate_is_steps_times_measured_time(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cost, "_train", lambda *_: (3.0, 0.5, 0.25, 0.125))
    flags = ("--datasets", "ml-1m", "--encoders", "mf", "--methods", "dpl", "--estimate")
    code, first = run("table-5.2", *flags, "--seeds", "1", "--epochs", "3000")
    assert code == 0
    assert not (tmp_path / "runs").exists()
    assert "results" not in first
    speeds = {
        path.name.partition("-")[0]: json.loads(path.read_text())
        for path in (tmp_path / "speeds").iterdir()
    }
    validation = speeds["scoring"]["seconds"]
    known = {"start": 3.0, "step": 0.25, "cpu_step": 0.125}
    assert speeds["minibatch"] == {**known, "validation": validation}
    assert validation > 0
    # Fewer interactions than the batch size: one step per epoch.
    n_validations = 3000 / contrastive.BUDGETS["ml-1m"]["mf"].minibatch.eval_every
    search = 8 * (3000 * 0.25 + n_validations * validation)
    assert seconds_of(first) == pytest.approx(2 * 3 + search + 3000 * 0.25 + validation, abs=1)
    code, more = run("table-5.2", *flags, "--seeds", "11", "--epochs", "3000")
    assert code == 0
    more_seeds = 10 * (3000 * 0.25 + validation)
    assert seconds_of(more) - seconds_of(first) == pytest.approx(more_seeds, abs=2)


@pytest.mark.parametrize(("rate", "examples"), [(1e-4, [8192]), (2e-6, [8192, 65_536, 100_000])])
def test_fast_steps_are_measured_on_more_examples(problems, tmp_path, monkeypatch, rate, examples):
    (problem,) = problems("ml-1m")
    log = data.Interactions.from_arrays(*np.divmod(np.arange(100_000), 500))
    problem = dataclasses.replace(problem, train=log)
    timed = []

    def fit(method, part, *, graph, epochs, seeds, sweep, hooks):
        assert graph is log
        clock = itertools.count(step=rate * len(part.train) / 2)
        monkeypatch.setattr(cost.time, "process_time", lambda: next(clock))
        for _ in range(epochs):
            hooks[0]({})
        timed.append((len(part.train), len(seeds)))
        # Rounded to milliseconds, like the history. The first epoch includes 5 s of compilation.
        ends = 5 + rate * len(part.train) * np.arange(1, epochs + 1)
        return SimpleNamespace(history=[{"seconds": round(end, 3)} for end in ends])

    monkeypatch.setattr(cost.train, "Progress", lambda report: report)
    monkeypatch.setattr(cost, "fit_minibatch", fit)
    monkeypatch.setattr(cost, "_validation", lambda *_: 0.5)
    method = contrastive.methods("5.2", "mf", "ml-1m", problem)[0]
    speed = cost.measure_speed(method, problem, tmp_path)
    assert [n for n, _ in timed] == examples
    n, runs = timed[-1]
    steps = -(-n // method.minibatch.batch_size)
    assert speed.step == pytest.approx(rate * n / steps / runs, rel=0.02)
    assert speed.cpu_step == pytest.approx(rate * n / steps / runs / 2, rel=1e-6)
    assert speed.start == pytest.approx(5, abs=0.01)
    assert speed.validation == 0.5


@pytest.fixture
def measured(monkeypatch):
    """Records the methods that are timed; the n-th takes n seconds per step."""
    methods = []

    def measure(method, *_):
        methods.append(method)
        return cost.Speed(0.0, float(len(methods)), 0.0, 0.5 * len(methods))

    monkeypatch.setattr(cost, "_measure", measure)
    return methods


def test_epoch_time_is_steps_times_measured_time(run, tmp_path, measured):
    assert run("figure-5.4", "--datasets", "ml-1m")[0] == 0
    rows = read_csv(tmp_path / "figure-5.4.csv")
    times = [(row["method"], float(row["seconds"])) for row in rows]
    assert [float(row["cpu_seconds"]) for row in rows] == [0.5, 1, 1.5, 2]
    assert times == [("bpr", 1), ("dpl", 2), ("bns, eCDF of the batch", 3), ("bns", 4)]
    sizes = {(m.recipe.encoder, m.minibatch.batch_size, m.points) for m in measured}
    assert sizes == {("mf", 1024, 1)}
    assert (tmp_path / "figure-5.4.png").stat().st_size > 5000


def test_dpl_time_is_measured_per_size(run, dataset_folder, tmp_path, measured):
    assert run("section-5.4", of=dataset_folder / "ml-1m")[0] == 0
    _, *timed = rows = read_csv(tmp_path / "section-5.4.csv")
    assert [float(row["cpu_seconds"]) for row in rows] == [0.5 * (i + 1) for i in range(len(rows))]
    sizes = [("extra positives M", m.n_pos) for m in measured[1:6]]
    sizes += [("negatives N", m.n_neg) for m in measured[6:]]
    assert [(row["parameter"], int(row["size"])) for row in timed] == sizes
    assert {m.n_neg for m in measured[1:6]} == {5}
    assert {m.n_pos for m in measured[6:]} == {10}
    assert (tmp_path / "section-5.4.png").stat().st_size > 5000


def test_chapter_3_rejects_data_without_ratings(run, dataset_folder):
    for target in ("table-3.2", "table-3.3", "figure-3.4"):
        code, printed = run(target, of=dataset_folder / "ml-1m")
        assert code == 2
        assert "ml-1m has no ratings" in printed
        assert "movielens:1m" in printed


def test_sampler_tables_split_data_without_test_part(run, dataset_folder, tmp_path, pretended):
    flags = ("--setting", "minibatch", "--methods", "rns", "--seeds", "2")
    code, printed = run("table-4.2", *flags, of=dataset_folder / "ml-1m")
    assert code == 0
    assert "A random fifth of the interactions" in printed
    assert pretended == [("ml-1m", "mf", "rns")]
    text = (tmp_path / "table-4.2-minibatch.md").read_text()
    assert "on ml-1m: Adam, batches of 2,048; for each method a search of 8 points" in text


def test_all_interactions_are_split_again(problems, dataset_folder):
    small, middle, large = problems("ml-100k", "ml-1m", "gowalla")
    for problem in (small, middle, large):
        whole = data.union(problem.train, problem.test)
        assert len(whole) == len(problem.train) + len(problem.test)
        assert len(problem.test) == round(0.2 * len(whole))
        assert problem.train.ratings is None
    assert len({len(problem.train) for problem in (small, middle, large)}) == 1
    given = data.load(dataset_folder / "gowalla")
    assert len(given.train) != len(large.train)


@pytest.mark.usefixtures("pretended")
def test_reports_missing_datasets(run, tmp_path):
    flags = ("--encoders", "mf", "--methods", "bpr", "--estimate")
    code, printed = run("table-5.2", *flags)
    assert code == 0
    assert "yelp2018" in printed.partition("table")[0]
    assert all(f"│ {name}" in printed for name in ("ml-100k", "ml-1m", "gowalla"))
    code, printed = run("table-5.2", *flags, of=tmp_path)
    assert code == 2
    assert "with ml-100k, ml-1m, yahoo-r3, gowalla, yelp2018 in it" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-5.2", "--datasets", "yelp2018"], "a folder of datasets with yelp2018 in it"),
        (
            ["table-5.2", "--datasets", "ml-20m"],
            "--datasets takes some of ml-100k, ml-1m, yahoo-r3",
        ),
        (["table-5.2", "--methods", "bcl"], '--methods takes some of "bpr", "info_nce", "dcl"'),
        (["table-6.3", "--dataset", "ml-1m"], "--datasets"),
        (["table-6.3", "--setting", "published"], "--setting published"),
    ],
)
def test_rejects_invalid_flags(run, tmp_path, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed
    assert not (tmp_path / "runs").exists()


def test_every_loss_has_the_same_number_of_points(problems):
    (problem,) = problems("ml-1m")
    for dataset, budgets in contrastive.BUDGETS.items():
        for encoder in budgets:
            for number, rows in contrastive.TABLES.items():
                made = contrastive.methods(number, encoder, dataset, problem)
                assert [m.label for m in made] == list(rows)
                points = 4 if dataset in ("gowalla", "yelp2018") else 8
                assert {m.points for m in made} == {points}
                assert set(rows) <= set(published(number, dataset, encoder))


def axes_of(method):
    return {name.partition(".")[2]: np.array(values) for name, values in method.minibatch.axes}


@pytest.mark.parametrize(
    ("dataset", "faster", "l2"), [("ml-100k", 1, 1), ("ml-1m", 4, 1), ("gowalla", 8, 1 / 3)]
)
def test_table_l2_is_inverse_to_table_length(problems, dataset, faster, l2):
    (problem,) = problems("ml-1m")
    of = {made.label: made for made in contrastive.methods("5.2", "mf", dataset, problem)}
    l2 *= (943 + 1682) / (problem.train.n_users + problem.train.n_items)
    bpr, dpl, weaker = axes_of(of["bpr"]), axes_of(of["dpl"]), 1 if dataset == "ml-100k" else 3
    np.testing.assert_allclose(bpr["weight_decay"], np.array([1e-5, 3e-5]) * l2)
    np.testing.assert_allclose(bpr["learning_rate"], np.array([1e-3, 2e-3]) * faster)
    np.testing.assert_allclose(dpl["weight_decay"], np.array([1e-5, 2e-5]) * l2 / weaker)
    np.testing.assert_allclose(of["dpl"].minibatch.learning_rate, 1e-3 * faster)


def test_row_l2_does_not_depend_on_number_of_rows(problems):
    (problem,) = problems("ml-1m")
    bpr, *_ = contrastive.methods("5.2", "lightgcn", "gowalla", problem)
    axes = axes_of(bpr)
    assert list(axes) == ["weight_decay"]
    np.testing.assert_allclose(axes["weight_decay"], [2e-4, 4e-4, 6e-4, 1e-3])
    np.testing.assert_allclose(bpr.minibatch.learning_rate, 6e-2)


def test_key_contains_only_changed_settings(problems):
    (problem,) = problems("ml-100k")
    assert store.changed_settings(chapter_4.RNS, problem) == []
    other = Method("a", minibatch=Minibatch(batch_size=2048))
    assert "2048" in str(store.changed_settings(other, problem))
    # The number of epochs is a separate component of the key.
    longer = Method("a", minibatch=Minibatch(batch_size=2048, epochs=7))
    assert store.changed_settings(other, problem) == store.changed_settings(longer, problem)


@pytest.mark.slow
def test_sequential_search_matches_parallel_and_resumes_after_kill(problems, tmp_path):
    """Its first point diverges and is skipped."""
    (problem,) = problems("ml-100k")
    axes = (("optimizer.learning_rate", (1e30, 1e-2)),)
    parallel = Minibatch(axes[:0], learning_rate=1e-2, batch_size=64, eval_every=1)
    sequential = dataclasses.replace(parallel, axes=axes, at_once=False)
    want = training.train_minibatch(Method("a", minibatch=parallel), problem, (0, 1), 3)
    seen, again = [], []

    def killed(entry):
        seen.append(entry)
        if len(seen) == 5:
            raise Killed

    method, checkpoint = Method("a", minibatch=sequential), tmp_path / "a.npz"
    with raises(Killed):
        training.train_minibatch(method, problem, (0, 1), 3, checkpoint=checkpoint, on_epoch=killed)
    got = training.train_minibatch(
        method, problem, (0, 1), 3, checkpoint=checkpoint, on_epoch=again.append
    )
    # The finished point is not trained again: its entries are identical, including the times.
    assert again[1:4] == seen[1:4]
    assert again[0] | {"seconds": None} == seen[0] | {"seconds": None}
    assert got.chosen.pop("learning_rate") == pytest.approx(1e-2)
    assert got.chosen == pytest.approx(want.chosen, rel=1e-4)
    for ours, theirs in zip(got.per_seed, want.per_seed, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    saved = {path.name for path in tmp_path.iterdir()}
    assert saved - {"a.search.0.npz"} == {"a.search.1.npz", "a.0.npz", "a.1.npz"}
    never = dataclasses.replace(sequential, axes=(("optimizer.learning_rate", (1e30,)),))
    with raises(train.TrainingDiverged):
        training.train_minibatch(Method("a", minibatch=never), problem, (0,), 3)
