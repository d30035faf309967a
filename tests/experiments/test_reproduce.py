"""Tests of the commands that reproduce tables and figures, on data that trains in seconds."""

import csv
import json
import math
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from _helpers.commands import reproduction
from _helpers.refusals import raises
from scipy import stats

from crl_jax import data, losses, models, samplers, tasks
from crl_jax.data import Interactions, simulate
from experiments._locks import hold
from experiments._occupations import occupations
from experiments.reproduce import main
from experiments.studies import kept, sampling
from experiments.studies.comparisons import choose
from experiments.studies.methods import SAMPLING, Method, Minibatch, World
from experiments.studies.outcomes import Outcome
from experiments.studies.published import published
from experiments.studies.tables import compare

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

GRID = dict(Minibatch().axes)
OCCUPATIONS = ["writer", "artist", "other"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A log with its original ids, and a split of it with ids numbered by first appearance."""
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    order = np.random.default_rng(0).permutation(len(log))
    users, items = log.users[order], log.items[order]
    path = tmp_path_factory.mktemp("ml-100k")
    with (path / "u.data").open("w") as file:
        for u, i in zip(users, items, strict=True):
            file.write(f"{100 + u}\t{500 + i}\t4\t88\n")
    with (path / "u.user").open("w") as file:
        for u in range(20):
            file.write(f"{100 + u}|30|M|{OCCUPATIONS[u % 3]}|00000\n")
    number_u = {u: n for n, u in enumerate(dict.fromkeys(users.tolist()))}
    number_i = {i: n for n, i in enumerate(dict.fromkeys(items.tolist()))}
    held_out = np.random.default_rng(1).random(len(users)) < 0.2
    for name, part in (("train", ~held_out), ("test", held_out)):
        with (path / f"{name}.csv").open("w") as file:
            file.write("user,item,rating\n")
            for u, i in zip(users[part].tolist(), items[part].tolist(), strict=True):
                file.write(f"{number_u[u]},{number_i[i]},4\n")
    return path


@pytest.fixture
def run(folder, tmp_path, capsys):
    return reproduction(folder, tmp_path, capsys)


def short(path):
    """Returns the name of a swept hyper-parameter in a stored outcome."""
    return path.rpartition(".")[2]


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_a_table_shows_ours_beside_the_published_and_is_not_trained_twice(
    run, tmp_path, monkeypatch
):
    arguments = [
        "table-4.2", "--seeds", "2", "--epochs", "2", "--dataset", "ml-100k",
        "--methods", "rns", "bns",
    ]  # fmt: skip
    code, printed = run(*arguments)
    assert code == 0
    assert "0.3962" in printed
    assert "0.4176" in printed
    written = {end: tmp_path / f"table-4.2-published.{end}" for end in ("md", "csv", "png")}
    assert written["png"].stat().st_size > 5000
    text = written["md"].read_text()
    assert "2 seeds" in text
    assert "one triplet a step" in text
    with written["csv"].open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert list(rows) == ["rns", "bns"]
    runs = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    kept = {outcome["label"]: outcome for outcome in runs}
    for name, row in rows.items():
        values = [seed["ndcg@20"] for seed in kept[name]["per_seed"]]
        assert float(row["ndcg@20"]) == pytest.approx(np.mean(values))
        assert float(row["ndcg@20_std"]) == pytest.approx(np.std(values, ddof=1))
        assert [entry["epoch"] for entry in kept[name]["history"]] == [1, 2]
        assert all(0 <= rate <= 1 for entry in kept[name]["history"] for rate in entry["tnr"])

    def fail(*_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr("crl_jax.tasks.fit_ranking", fail)
    code, again = run(*arguments)
    assert code == 0
    assert "rns: compiling" in printed
    assert "compiling" not in again
    assert again.split("Table")[-1] == printed.split("Table")[-1]


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_minibatches_are_searched_alike(run, tmp_path):
    code, _ = run(
        "table-5.3", "--setting", "minibatch", "--seeds", "2", "--epochs", "5",
        "--methods", "dpl+hard",
    )  # fmt: skip
    assert code == 0
    for path in (tmp_path / "runs").iterdir():
        chosen = json.loads(path.read_text())["chosen"]
        assert set(chosen) == {*map(short, GRID), "epochs", "valid_ndcg@20"}
        assert all(chosen[name] == pytest.approx(v, rel=1) for name, v in chosen.items())
        assert all(min(abs(chosen[short(n)] - np.array(v))) < 1e-8 for n, v in GRID.items())


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
@pytest.mark.parametrize("target", ["figure-4.2", "figure-4.4", "figure-4.5"])
def test_figures_come_with_their_numbers(run, tmp_path, monkeypatch, target):
    monkeypatch.setattr(sampling, "QUALITY", (sampling.RNS, sampling.POSTERIOR))
    monkeypatch.setattr(sampling, "LAMBDAS", sampling.LAMBDAS[:1])
    monkeypatch.setattr(sampling, "SIZES", sampling.SIZES[:1])
    cut = {name: methods[:1] for name, methods in sampling.LAMBDA_OR_SIZE.items()}
    monkeypatch.setattr(sampling, "LAMBDA_OR_SIZE", cut)
    code, _ = run(target, "--seeds", "1", "--epochs", "2")
    assert code == 0
    assert (tmp_path / f"{target}.png").stat().st_size > 5000
    with (tmp_path / f"{target}.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows
    if target == "figure-4.2":
        pairs = 20 * 40
        counted = sum(
            int(row["true_negatives"]) + int(row["false_negatives"])
            for row in rows
            if row["epoch"] == "2"
        )
        assert 0 < counted < pairs
    if target == "figure-4.4":
        assert {row["method"] for row in rows} == {"rns", "posterior only"}


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_scores_are_counted_by_what_they_are_of():
    train = Interactions.from_arrays([0, 1], [0, 1], user_ids=np.arange(2), item_ids=np.arange(3))
    test = Interactions.from_arrays([0], [2], user_ids=np.arange(2), item_ids=np.arange(3))
    params = {
        "users": np.eye(2, dtype=np.float32),
        "items": np.array([[9, 0.1], [0.6, 9], [-5, 5]], np.float32),
    }
    hook = sampling.score_histogram(World(train, test, ""), np.array([0.0, 0.5, 1.0]))
    task = tasks.Ranking.from_interactions(
        train, encoder=models.MatrixFactorization(2, 3, 2), loss=losses.bpr
    )
    counts = hook.metrics(task, params, None)
    assert counts["false_negatives"].tolist() == [1, 0]  # -5 is below the lowest bin edge
    assert counts["true_negatives"].tolist() == [1, 2]  # 0.1; 0.6 and 5 (clipped)


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["table-4.2", "--seeds", "0"], "--seeds must be a whole number in [1, 10000], got 0"),
        (
            ["table-4.2", "--epochs", "0"],
            "--epochs must be a whole number in [1, 2147483647], got 0",
        ),
        (["table-3.2", "--test-rating", "nan"], "--test-rating must be a number that is finite"),
        (["table-4.2", "--methods", "best"], '--methods takes some of "rns", "pns"'),
        (["table-5.3", "--setting", "published"], "is of the minibatch setting: leave out"),
        (["figure-4.4", "--setting", "minibatch"], "is of the published setting"),
        (["figure-4.4", "--methods", "rns"], "--methods is for table-3.2, table-3.3, table-4.2"),
    ],
)
def test_wrong_flags_are_named(run, arguments, message):
    code, printed = run(*arguments)
    assert code == 2
    assert message in printed


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_a_target_is_made_by_one_process_at_a_time(run, tmp_path):
    with hold(tmp_path / ".table-4.2.lock", busy="free"):
        code, printed = run("table-4.2", "--seeds", "1", "--epochs", "1")
    assert code == 2
    assert "another process is making table-4.2" in printed


def test_a_changed_formula_is_not_taken_for_what_it_was(tmp_path, monkeypatch):
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    world, trained = World(log, log, ""), []

    def train(method, *_, **__):
        trained.append(method)
        return outcome(method.label, [0.5], [0.5])

    def times(factor):
        return lambda pos, neg, **rest: factor * losses.bpr(pos, neg, **rest)

    def later(progress, numbers):
        return {**numbers, "drop_rate": progress * numbers["drop_rate"]}

    truncated = {"loss": losses.truncated_bpr, "hyperparams": {"drop_rate": 0.1}}
    methods = [
        Method("a", loss=times(1.0)),
        Method("b", loss=times(1.0)),  # the same training under another label
        Method("a", loss=times(2.0)),
        Method("c", **truncated),
        Method("c", **truncated, schedule=later),
        Method("c", **truncated, schedule=lambda _, numbers: numbers),
    ]
    monkeypatch.setattr(kept, "train_published", train)
    for method in methods:
        kept.run_once(method, world, "published", (0,), 1, tmp_path / "runs", lambda: print)
    assert trained == [methods[0], *methods[2:]]


def test_a_shared_training_is_waited_for_and_not_done_twice(tmp_path, monkeypatch):
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    world, at_work, most = World(log, log, ""), [], []

    def train(method, *_, checkpoint, **__):
        at_work.append(method.label)
        checkpoint.write_text("half")
        time.sleep(0.1)
        most.append(len(at_work))
        at_work.pop()
        return outcome(method.label, [0.5], [0.5])

    monkeypatch.setattr(kept, "train_published", train)

    def run_once(_):
        return kept.run_once(
            sampling.RNS, world, "published", (0,), 1, tmp_path / "runs", lambda: print
        )

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(run_once, range(3)))
    assert most == [1]
    assert made[0] == made[1] == made[2]
    assert [path.suffix for path in (tmp_path / "runs").iterdir()] == [".json"]


def test_a_folder_without_a_split_is_refused(tmp_path, capsys):
    (tmp_path / "u.data").write_text("1\t2\t3\t4\n1\t3\t3\t4\n")
    assert main(["table-4.2", "--data", str(tmp_path), "--out", str(tmp_path / "o")]) == 2
    assert "must hold a training and a test part" in " ".join(capsys.readouterr().err.split())


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
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


def test_broken_files_of_users_are_named_with_the_line(tmp_path):
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


def outcome(label, scores, users):
    per_seed = [dict.fromkeys(SAMPLING.metrics, score) for score in scores]
    return Outcome(label, per_seed, users, [], {})


def test_comparisons_are_paired_and_adjusted():
    rng = np.random.default_rng(0)
    base, users = rng.normal(0.4, 0.01, 5), rng.random(50)
    better, worse = base + rng.normal(0.01, 0.004, 5), base - rng.normal(0.001, 0.004, 5)
    shifted = users + rng.normal(0.02, 0.05, 50)
    rows = compare(
        [
            outcome("a", base, users.tolist()),
            outcome("b", better, shifted.tolist()),
            outcome("c", worse, users.tolist()),
        ],
        [{}, {"ndcg@20": 0.5}, {}],
        SAMPLING.reported,
    )
    assert math.isnan(rows[0].p_units)
    p = [stats.ttest_rel(other, base).pvalue for other in (better, worse)]
    want = [min(p) * 2, max(min(p) * 2, max(p))]
    got = sorted([rows[1].p_units, rows[2].p_units])
    np.testing.assert_allclose(got, want, rtol=1e-9)
    assert rows[2].p_cases == 1.0
    assert rows[1].p_cases == pytest.approx(2 * stats.ttest_rel(shifted, users).pvalue)
    assert rows[1].gain == pytest.approx(np.mean(better) - np.mean(base))


def test_published_numbers_are_found_for_every_row_of_every_table():
    for number, methods in sampling.TABLES.items():
        known = published(number, "ml-100k", "mf")
        assert {m.published or m.label for m in methods} <= set(known) | {"bns, eCDF of 64"}
    assert published("4.2", "ml-100k", "mf")["bns"]["ndcg@20"] == 0.4176
    assert published("4.2", "elsewhere", "mf") == {}


def test_the_study_compares_what_it_says(folder):
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    world = World(log, log, str(folder))
    made = {
        m.label: m.sampler(world) for m in (*sampling.TABLES["4.2"], *sampling.TABLES["4.3"][:4])
    }
    assert made["dns"] == samplers.DNS(2)
    assert made["bns"].candidates == 5
    assert made["bns"].ecdf_samples is None
    assert made["bns"].risk_lambda == 5.0
    assert [getattr(made["bns-1"], f"risk_lambda{end}") for end in ("", "_slope", "_min")] == [
        10, 0.1, 2,
    ]  # fmt: skip
    assert isinstance(made["bns-2"].first, samplers.RNS)
    info_nce = sampling.TABLES["4.4"][-1]
    assert (info_nce.loss, info_nce.n_neg) == (losses.info_nce, 2)


def test_names_of_methods_are_quoted_for_they_hold_commas():
    methods = (Method("a, fast"), Method("a, slow"))
    with raises(ValueError, match='some of "a, fast", "a, slow", got "a"'):
        choose(methods, ("a",))
