"""Tests of the commands that reproduce tables and figures, on data that trains in seconds."""

import io
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.commands import reproduction
from _helpers.refusals import raises
from _helpers.reproduction import OCCUPATIONS, outcome, read_csv, stored, write_dataset
from scipy import stats

from crl_jax import data, losses, models, samplers, tasks
from crl_jax.data import Interactions, simulate
from experiments._rundir import lock_file
from experiments.recommend._occupations import occupations
from experiments.reproduce import chapter_4, command, main, store, training
from experiments.reproduce.command import TARGETS, show_targets
from experiments.reproduce.methods import SAMPLING, Method, Problem
from experiments.reproduce.outcomes import pool, roc_curve
from experiments.reproduce.tables import choose, compare, published
from experiments.reproduce.targets import Options

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]
SHORT = ("--seeds", "2", "--epochs", "2")


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
def problem():
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    return Problem(log, log, "")


def test_table_shows_published_results_and_reuses_trainings(run, out, monkeypatch):
    arguments = ["table-4.2", *SHORT, "--dataset", "ml-100k"]
    arguments += ["--methods", "rns", "bns", "rns"]  # each once
    code, printed = run(*arguments)
    assert code == 0
    assert "0.3962" in printed
    assert "0.4176" in printed
    assert (out / "table-4.2-published.png").stat().st_size > 5000
    text = (out / "table-4.2-published.md").read_text()
    assert "2 seeds" in text
    assert "one triplet per step" in text
    rows = {row["method"]: row for row in read_csv(out / "table-4.2-published.csv")}
    assert list(rows) == ["rns", "bns"]
    for name, row in rows.items():
        trained = stored(out)[name]
        values = [seed["ndcg@20"] for seed in trained["per_seed"]]
        assert float(row["ndcg@20"]) == pytest.approx(np.mean(values))
        assert float(row["ndcg@20_std"]) == pytest.approx(np.std(values, ddof=1))
        assert [entry["epoch"] for entry in trained["history"]] == [1, 2]
        assert all(0 <= rate <= 1 for entry in trained["history"] for rate in entry["tnr"])

    def fail(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("crl_jax.tasks.fit_ranking", fail)
    code, again = run(*arguments)
    assert code == 0
    assert "rns: compiling" in printed
    assert "compiling" not in again
    assert again.split("Table")[-1] == printed.split("Table")[-1]


def test_lightgcn_supports_published_setting(folder, tmp_path, capsys):
    """AOBPR ranks the whole catalogue by propagated embeddings, in batches of Adam."""
    flags = ("--encoders", "lightgcn", "--methods", "aobpr", "--seeds", "1", "--epochs", "5")
    assert reproduction(folder, tmp_path, capsys)("table-4.2", *flags)[0] == 0
    (row,) = read_csv(tmp_path / "table-4.2-published.csv")
    assert (row["encoder"], row["method"]) == ("lightgcn", "aobpr")
    text = (tmp_path / "table-4.2-published.md").read_text()
    assert ", 1 layer: Adam, batches of 128, learning rate 0.01, a tenth of it after" in text


def test_published_settings_depend_on_encoder_and_dataset(problem):
    options = Options("table-4.2", Path(), setting="published")
    for dataset, batch_size in (("ml-100k", 128), ("ml-1m", 1024)):
        rows = TARGETS["table-4.2"].make.methods(options, "lightgcn", dataset, problem)
        assert {m.label for m in rows} == {m.label for m in chapter_4.TABLES["4.2"]}
        assert {m.recipe.batch_size for m in rows} == {batch_size}
        assert {m.recipe.weight_decay for m in rows} == {1e-5}
    assert {m.recipe.batch_size for m in chapter_4.TABLES["4.2"]} == {1}
    progress = jnp.linspace(0, 1, 100, endpoint=False)
    got = training._decay_in_fifths(progress + 0.005, 0.1)
    np.testing.assert_allclose(got, np.repeat([1, 0.1, 0.01, 1e-3, 1e-4], 20), rtol=1e-5)


def test_hard_dpl_uses_published_prior_of_dataset(problem):
    options = Options("table-5.3", Path(), setting="minibatch")
    for dataset, tau_plus in (("ml-100k", 0.3), ("ml-1m", 0.25)):
        rows = TARGETS["table-5.3"].make.methods(options, "mf", dataset, problem)
        tau = {m.label: m.hyperparams.get("tau_plus") for m in rows}
        assert tau == {"bpr": None, "bns": None, "dpl": 0.15, "dpl+hard": tau_plus}
    assert {m.minibatch.batch_size for m in rows} == {2048}
    assert {m.points for m in rows} == {8}


def test_figures_write_data_as_csv(run, out, monkeypatch):
    """Uses the trainings of the table above: its BNS has the default λ and size."""
    monkeypatch.setattr(chapter_4, "QUALITY", (chapter_4.RNS, chapter_4.BNS))
    monkeypatch.setattr(chapter_4, "LAMBDAS", {5.0: chapter_4.LAMBDAS[5.0]})
    monkeypatch.setattr(chapter_4, "SIZES", {5: chapter_4.SIZES[5]})
    for target in ("figure-4.2", "figure-4.4", "figure-4.5"):
        assert run(target, *SHORT)[0] == 0
        assert (out / f"{target}.png").stat().st_size > 5000
    last = [row for row in read_csv(out / "figure-4.2.csv") if row["epoch"] == "2"]
    counted = sum(int(row["true_negatives"]) + int(row["false_negatives"]) for row in last)
    assert 0 < counted < 20 * 40
    rows = read_csv(out / "figure-4.4.csv")
    for name, trained in stored(out).items():
        for quality in ("tnr", "inf", "risk"):
            own = [float(row[quality]) for row in rows if row["method"] == name]
            means = [np.mean(entry[quality]) for entry in trained["history"]]
            assert own == pytest.approx(means)
    ours = [seed["ndcg@20"] for seed in stored(out)["bns"]["per_seed"]]
    rows = read_csv(out / "figure-4.5.csv")
    assert [(row["parameter"], row["value"]) for row in rows[::2]] == [
        ("risk_lambda", "5.0"), ("size", "5"),
    ]  # fmt: skip
    assert [float(row["ndcg@20"]) for row in rows] == pytest.approx([*ours, *ours])


def test_score_histogram_separates_true_and_false_negatives():
    ids = {"user_ids": np.arange(2), "item_ids": np.arange(3)}
    train = Interactions.from_arrays([0, 1], [0, 1], **ids)
    test = Interactions.from_arrays([0], [2], **ids)
    params = {
        "users": np.eye(2, dtype=np.float32),
        "items": np.array([[9, 0.1], [0.6, 9], [-5, 5]], np.float32),
    }
    hook = chapter_4.score_histogram(Problem(train, test, ""), np.array([0.0, 0.5, 1.0]))
    encoder = models.MatrixFactorization(2, 3, 2)
    task = tasks.Ranking.from_interactions(train, encoder=encoder, loss=losses.bpr)
    counts = hook.metrics(task, params, None)
    assert counts["false_negatives"].tolist() == [1, 0]  # -5 is below the lowest bin edge
    assert counts["true_negatives"].tolist() == [1, 2]  # 0.1; 0.6 and 5 (clipped)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-4.2", "--seeds", "0"], "--seeds must be a whole number in [1, 10000], got 0"),
        (["table-4.2", "--epochs", "0"], "--epochs must be a whole number in [1, 2147483647]"),
        (["table-3.2", "--test-rating", "nan"], "--test-rating must be a number that is finite"),
        (["table-4.2", "--methods", "best"], '--methods takes some of "rns", "pns"'),
        (["table-5.3", "--setting", "published"], "--setting published"),
        (["figure-4.4", "--setting", "minibatch"], "--setting minibatch"),
        (["figure-4.4", "--methods", "rns"], "--methods is for table-3.2, table-3.3, table-4.2"),
        (["table-4.2", "--datasets", "ml-1m"], "--datasets is for table-5.2"),
        (["table-4.2", "--dataset", "ml-100K"], "--dataset takes one of cifar10, cifar100"),
        (["table-4.2", "--out", ""], "--out must not be an empty text"),
        (["table-4.1", "--seeds", "3"], "table-4.1 trains nothing: omit --seeds."),
        (["table-3.1", "--epochs", "3"], "table-3.1 trains nothing: omit --epochs."),
        (["table-4.2", "--estimate"], "--estimate requires --setting minibatch"),
        (["table-3.2", "--estimate"], "--estimate requires --setting minibatch"),
        (["figure-3.4", "--estimate"], "--estimate is for table-3.2, table-3.3, table-4.2"),
        (["table-3.3", "--encoders", "mf"], "--encoders is for table-4.2, table-4.3, table-4.4"),
        (["table-4.2", "--test-rating", "3"], "--test-rating is for table-3.2, table-3.3"),
        (["table-3.3", "--test-rating", "9"], "no test interaction"),
        (["table-3.3", "--methods", "truncated bce"], '--methods takes some of "bpr", "gbpr"'),
        (["figure-3.5", "--splits", "2"], "--splits is for table-3.2, table-3.3"),
        (["table-3.3", "--splits", "0"], "--splits must be a whole number in [1, "),
        (["table-3.3", "--splits", "2", "--test-rating", "3"], "--splits"),
        (
            ["table-3.3", "--distribution-scale", "-1"],
            "--distribution-scale must be a number above 0, got -1",
        ),
        (["table-3.2", "--ablation"], "--ablation is for table-3.3"),
        (["table-3.3", "--ablation", "--setting", "minibatch"], "--ablation"),
        (["table-6.4", "--datasets", "stl11"], "--datasets takes some of cifar10, stl10"),
        (["table-6.4", "--encoders", "mf"], "--encoders is for"),
        (["table-6.4"], "has none of the folders cifar10"),
        (["--list", "targets", "4"], "--list targets takes no further words."),
    ],
)
def test_rejects_invalid_flags(run, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed


def test_target_is_locked_by_one_process(run, out):
    with lock_file(out / ".table-4.2.lock", busy="free"):
        code, printed = run("table-4.2", *SHORT)
    assert code == 2
    assert "another process is making table-4.2" in printed


def test_rejects_folder_without_split(tmp_path, capsys):
    (tmp_path / "u.data").write_text("1\t2\t3\t4\n1\t3\t3\t4\n")
    assert main(["table-4.2", "--data", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert "must hold a training and a test part" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "o").exists()


def test_target_list_shows_result_files(tmp_path, capsys):
    (tmp_path / "one").mkdir()
    for name in ("table-4.2-minibatch.csv", "table-4.2-minibatch.md", "table-4.25.csv"):
        (tmp_path / "one" / name).write_text("")
    show_targets(tmp_path)
    _, *blocks = capsys.readouterr().out.rstrip().split("\n\n")
    block_of = dict(zip(TARGETS, blocks, strict=True))
    for name, block in block_of.items():
        first, *_ = block.splitlines()
        assert first == f"{name}  {TARGETS[name].title}"
    assert block_of["table-4.2"].endswith("results:\n    one/table-4.2-minibatch.csv")
    assert "cost.csv" in block_of["table-4.2"]
    assert block_of["table-4.3"].endswith("results: none")
    assert "time: not measured" in block_of["table-4.4"]
    assert "--estimate" in block_of["table-5.2"]
    show_targets(tmp_path / "installed")
    assert "results:" not in capsys.readouterr().out


def test_target_list_fits_narrow_terminal_without_unicode(monkeypatch):
    """Paths of committed results fit without line breaks."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    for name, value in (("COLUMNS", "60"), ("TTY_COMPATIBLE", "1"), ("FORCE_COLOR", "1")):
        monkeypatch.setenv(name, value)
    assert main(["--list", "targets"]) == 0
    lines = written.getvalue().decode("cp1252").splitlines()
    assert 50 < max(map(len, lines)) <= 60
    assert "figure-4.5  the lambda of the risk and the number of" in lines
    assert not any("\x1b" in line for line in lines)
    results = Path(command.__file__).parents[2] / "benchmarks/results"
    assert (results / "samplers/table-4.2-published.csv").is_file()
    assert "    samplers/table-4.2-published.csv" in lines


def test_closed_pipe_exits_without_traceback(monkeypatch, capfd):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed, raises(SystemExit) as exit_info:
        monkeypatch.setattr(sys, "stdout", closed)
        main(["--list"])
    assert exit_info.value.code == 1
    assert capfd.readouterr().err == ""


def growing_drop_rate(progress, numbers):
    return {**numbers, "drop_rate": progress * numbers["drop_rate"]}


def test_training_key_depends_on_loss_and_schedule(problem, tmp_path):
    def times(factor):
        return lambda pos, neg, **rest: factor * losses.bpr(pos, neg, **rest)

    truncated = {"loss": losses.truncated_bpr, "hyperparams": {"drop_rate": 0.1}}
    methods = [
        Method("a", loss=times(1.0)),
        Method("a", loss=times(2.0)),
        Method("c", **truncated),
        Method("c", **truncated, schedule=growing_drop_rate),
        Method("c", **truncated, schedule=lambda _, numbers: numbers),
    ]
    paths = [
        store.ranking_path(method, problem, "published", (0,), 1, tmp_path)
        for method in (*methods, Method("b", loss=times(1.0)))
    ]
    assert len(set(paths)) == len(methods)
    assert paths[0] == paths[-1]  # the same training under another label


def test_concurrent_commands_share_training(tmp_path):
    running, concurrency = [], []

    def train(checkpoints):
        running.append(1)
        (checkpoints / "run.npz").write_text("half")
        time.sleep(0.1)
        concurrency.append(len(running))
        running.pop()
        return outcome("a", [0.5])

    def run_once(label):
        return store.run_once(tmp_path / "runs" / "key.json", label, train)

    with ThreadPoolExecutor(3) as executor:
        results = list(executor.map(run_once, "abc"))
    assert concurrency == [1]
    assert run_once("z").label == "z"
    assert results[0].per_seed == results[1].per_seed == results[2].per_seed
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["key.json"]


def test_occupations_are_found_by_id_and_by_first_appearance(folder):
    numbers = {name: n for n, name in enumerate(sorted(OCCUPATIONS))}
    split = data.load(folder)
    lines = (folder / "u.data").read_text().splitlines()
    first_seen = list(dict.fromkeys(line.split()[0] for line in lines))
    want = [numbers[OCCUPATIONS[(int(first_seen[n]) - 100) % 3]] for n in split.train.user_ids]
    np.testing.assert_array_equal(occupations(folder, split.train), want)
    log = data.read(folder / "u.data")
    want = [numbers[OCCUPATIONS[(user - 100) % 3]] for user in log.user_ids]
    np.testing.assert_array_equal(occupations(folder, log), want)
    np.testing.assert_array_equal(occupations(folder / "u.data", log), want)


def test_invalid_user_files_are_reported_with_line(tmp_path):
    log = Interactions.from_arrays([7], [9])
    with raises(ValueError, match=r"occupations need u\.user, and there is no"):
        occupations(tmp_path, log)
    (tmp_path / "u.user").write_text("7|30|M|writer|0\n8|30|M\n")
    with raises(ValueError, match=r"u\.user:2: expected user\|age"):
        occupations(tmp_path, log)
    (tmp_path / "u.user").write_text("7|30|M|writer|0\n")
    (tmp_path / "u.data").write_text("7\t9\t1\n")
    with raises(ValueError, match=r"u\.data:1: expected user, item"):
        occupations(tmp_path, log)
    (tmp_path / "u.data").write_text("7\t10\t1\t1\n")
    with raises(ValueError, match="does not hold the interactions"):
        occupations(tmp_path, log)


def test_comparisons_are_paired_and_adjusted():
    rng = np.random.default_rng(0)
    base, users = rng.normal(0.4, 0.01, 5), rng.random(50)
    better, worse = base + rng.normal(0.01, 0.004, 5), base - rng.normal(0.001, 0.004, 5)
    shifted = users + rng.normal(0.02, 0.05, 50)
    outcomes = [
        outcome("a", base, users),
        outcome("b", better, shifted),
        outcome("c", worse, users),
    ]
    rows = compare(outcomes, [{}, {"ndcg@20": 0.5}, {}], SAMPLING.reported)
    assert math.isnan(rows[0].p_units)
    p = [stats.ttest_rel(other, base).pvalue for other in (better, worse)]
    want = [min(p) * 2, max(min(p) * 2, max(p))]
    got = sorted([rows[1].p_units, rows[2].p_units])
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert rows[2].p_cases == 1.0
    assert rows[1].p_cases == pytest.approx(2 * stats.ttest_rel(shifted, users).pvalue)
    assert rows[1].gain == pytest.approx(np.mean(better) - np.mean(base))


def test_pool_averages_splits_per_user():
    nan = float("nan")
    parts = [outcome("a", [0.1, 0.1], [0.2, nan, 0.4, nan])]
    np.testing.assert_allclose(parts[0].units("ndcg@10"), [0.1, 0.1])
    both = pool([*parts, outcome("a", [0.3, 0.3], [0.4, 0.6, nan, nan])])
    np.testing.assert_allclose(both.per_user, [0.3, 0.6, 0.4, nan])
    np.testing.assert_allclose(both.units("ndcg@10"), [0.1, 0.3])


@pytest.mark.parametrize("levels", [3, 1000])
def test_roc_curve_matches_scikit_learn(levels):
    from sklearn import metrics

    rng = np.random.default_rng(levels)
    good = rng.random(500) < 0.8
    values = (rng.integers(0, levels, 500) + good * levels / 5).astype(np.float32)
    auc, curve = roc_curve(values, good)
    assert auc == pytest.approx(metrics.roc_auc_score(good, values), rel=1e-12)
    false, true, _ = metrics.roc_curve(good, values, drop_intermediate=False)
    np.testing.assert_allclose(curve, np.interp(np.linspace(0, 1, 101), false, true))
    auc, curve = roc_curve(np.arange(3.0), np.ones(3, bool))  # one class
    assert np.isnan([auc, *curve]).all()


def test_published_results_exist_for_every_row_of_every_table():
    for number, methods in chapter_4.TABLES.items():
        known = published(number, "ml-100k", "mf")
        assert {m.published or m.label for m in methods} <= set(known)
    assert published("4.2", "ml-100k", "mf")["bns"]["ndcg@20"] == 0.4176
    assert published("4.2", "elsewhere", "mf") == {}


def test_samplers_have_published_settings(folder, problem):
    problem = Problem(problem.train, problem.test, str(folder))
    methods = (*chapter_4.TABLES["4.2"], *chapter_4.TABLES["4.3"][:4])
    by_label = {method.label: method.sampler(problem) for method in methods}
    assert by_label["dns"] == samplers.DNS(2)
    assert (by_label["bns"].candidates, by_label["bns"].ecdf_samples) == (5, None)
    assert by_label["bns"].risk_lambda == 5.0
    risk = [getattr(by_label["bns-1"], f"risk_lambda{end}") for end in ("", "_slope", "_min")]
    assert risk == [10, 0.1, 2]
    assert isinstance(by_label["bns-2"].first, samplers.RNS)
    info_nce = chapter_4.TABLES["4.4"][-1]
    assert (info_nce.loss, info_nce.n_neg) == (losses.info_nce, 2)


def test_choose_quotes_method_names_in_error():
    rows = {"a, fast": 1, "a, slow": 2}
    assert choose(rows, ("a, slow", "a, fast")) == [2, 1]
    with raises(ValueError, match='some of "a, fast", "a, slow", got "a"'):
        choose(rows, ("a",))
