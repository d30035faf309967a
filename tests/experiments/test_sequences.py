"""The sequences command: splits, runs, resumption, serving, and invalid flags."""

import csv
import shlex
import shutil
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.pages import DOCS
from _helpers.refusals import raises
from _helpers.studies import (
    commands_of,
    files_of,
    finish,
    flags_of,
    history,
    kill,
    prepare,
    read,
    refused,
    resume,
    said_of_runs,
    task_of,
)

from crl_jax import data, losses, tasks
from experiments._program import flag
from experiments._study_command import configure
from experiments.sequences import main
from experiments.sequences._config import SCHEMA
from experiments.sequences._recommend import RecommendOptions, known_histories, load_task
from experiments.sequences._study import KS, NAMES, Sequences, compute_tables, rank
from experiments.sequences.losses import LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

PAGE = (DOCS / "modalities" / "sequences.md").read_text()
SMALL = shlex.split(
    "--width 8 --n-layers 1 --window 6 --epochs 2 --batch-size 200 --checkpoint-seconds 0"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("sequences") / "run"
    return finish(main, out, [*SMALL, "--loss", "softmax", "--sweep", "lr=1e-3,1e-2"])


def test_run_writes_documented_files(folder):
    assert files_of(folder) == said_of_runs(PAGE)
    lines = history(folder)
    assert [(x["phase"], x["run"], x["epoch"]) for x in lines] == [
        ("search", 0, 1), ("search", 0, 2), ("search", 1, 1), ("search", 1, 2), ("final", 0, 1),
        ("final", 0, 2),
    ]  # fmt: skip
    assert all({"loss", "valid_ndcg@10", "valid_recall@10"} <= x.keys() for x in lines)
    found = read(folder, "metrics.json")
    assert found.keys() - {"chosen", "seconds"} == NAMES.keys()
    assert found["ndcg@10"] > found["popularity_ndcg@10"]


def test_killed_run_resumes_bit_identically(folder, tmp_path, monkeypatch):
    killed = tmp_path / "killed"
    arguments = [*SMALL, "--loss", "softmax", "--sweep", "lr=1e-3,1e-2", "--out", str(killed)]
    kill(main, arguments, monkeypatch, lambda checkpoint, _: checkpoint._path.name[:5] == "final")
    assert not (killed / "metrics.json").exists()
    resume(main, killed, monkeypatch)
    assert history(killed) == history(folder)
    assert read(killed, "metrics_by_seed.json") == read(folder, "metrics_by_seed.json")
    with np.load(folder / "encoder.npz") as a, np.load(killed / "encoder.npz") as b:
        for name in {*a.files} - {"header"}:
            np.testing.assert_array_equal(a[name], b[name])


def test_early_stopping_evaluates_the_best_epoch(tmp_path):
    """A learning rate that diverges from the first epoch on; the run is not finished."""
    flags = [*SMALL, "--epochs", "9", "--patience", "2", "--lr", "1", "--weight-decay", "0"]
    run = finish(main, tmp_path / "run", flags)
    scores = [line["valid_ndcg@10"] for line in history(run)]
    best = int(np.argmax(scores))
    assert len(scores) == best + 3 < 9
    _, problem = prepare(Sequences(), flags)
    task, variables, _ = load_task(run)
    histories, _ = problem.held_out("valid")
    found = rank(compute_tables(task, *variables, histories), problem.layout("valid", True))
    np.testing.assert_allclose(np.mean(found["ndcg@10"]), scores[best], rtol=1e-5)


def test_diverged_point_is_skipped(tmp_path):
    run = finish(main, tmp_path / "run", [*SMALL, "--sweep", "lr=1e-3,1e30"])
    with (run / "sweep.csv").open() as file:
        good, diverged = csv.DictReader(file)
    assert (good["chosen"], diverged["chosen"]) == ("1", "0")
    assert diverged["valid_ndcg@10"] == "nan"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "got a damaged file"), (b"PK\3\4", "got a damaged file"), (None, "is missing")],
)
def test_rejects_damaged_item_ids(folder, tmp_path, content, message):
    run = shutil.copytree(folder, tmp_path / "run")
    (run / "items.npz").unlink()
    if content is not None:
        (run / "items.npz").write_bytes(content)
    with raises(ValueError, match=rf"items\.npz.* {message}"):
        load_task(run)


def test_metrics_match_numpy_ranks(folder):
    """Ranks the item after each history among all items, with and without those of the history."""
    _, problem = prepare(Sequences(), SMALL)
    task, variables, item_ids = load_task(folder)
    np.testing.assert_array_equal(item_ids, problem.log.item_ids)
    histories, targets = problem.held_out("test")
    tables = compute_tables(task, *variables, histories)
    scores = np.asarray(tables.users, np.float64) @ np.asarray(tables.items, np.float64).T
    for exclude_seen in (True, False):
        own = scores.copy()
        if exclude_seen:
            users, columns = np.nonzero(histories >= 0)
            own[users, histories[users, columns]] = -np.inf
        ranks = 1 + (own > np.take_along_axis(own, targets[:, None], axis=1)).sum(axis=1)
        found = rank(tables, problem.layout("test", exclude_seen))
        for k in KS:
            hit = ranks <= k
            for name, want in (("recall", hit), ("ndcg", hit / np.log2(1 + ranks)),
                               ("mrr", hit / ranks)):  # fmt: skip
                np.testing.assert_allclose(found[f"{name}@{k}"], want, rtol=1e-5)
    popularity = np.bincount(problem.split.train[problem.split.train >= 0], minlength=200)
    np.testing.assert_array_equal(problem.popularity, popularity)


@pytest.mark.filterwarnings("default:2 interactions with unknown items")
@pytest.mark.filterwarnings("default:1 users without known items")
def test_new_users_receive_their_next_items(folder, tmp_path, capsys):
    """Users and an item that the run does not know, from a file of text ids."""
    task, variables, item_ids = load_task(folder)
    log = data.simulate_sequences(n_users=3, seed=9)
    rows = zip(log.users, log.item_ids[log.items], log.timestamps, strict=True)
    source, out = tmp_path / "new.csv", tmp_path / "folder" / "out.csv"
    events = [("user", "item", "timestamp"), *((f"new{u}", i, t) for u, i, t in rows)]
    events += [("new0", 4711, 99), ("nobody", 4711, 99)]
    with source.open("w", newline="") as file:
        csv.writer(file).writerows(events)
    arguments = ["--run", folder, "--data", source, "--k", "4", "--out", out]
    assert main(["recommend", *map(str, arguments)]) == 0
    printed = capsys.readouterr()
    assert "2 interactions with unknown items are ignored" in printed.err
    assert "1 users without known items get no recommendations" in printed.err
    assert "12 items for 3 users" in " ".join(printed.out.split())
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    histories = data.item_sequences(log)
    scores, items = task.top_k(*variables, jnp.asarray(histories), 4)
    assert [row["user"] for row in found] == [f"new{u}" for u in range(3) for _ in range(4)]
    assert [int(row["item"]) for row in found] == item_ids[np.asarray(items)].ravel().tolist()
    assert [row["rank"] for row in found] == list("1234") * 3
    np.testing.assert_allclose(
        [float(row["score"]) for row in found], np.ravel(scores), rtol=1e-4, atol=1e-5
    )
    assert not {int(row["item"]) for row in found if row["user"] == "new1"} & {*histories[1]}
    assert "items are left" not in printed.out
    everything = ["--run", folder, "--data", source, "--k", len(item_ids), "--out", out]
    assert main(["recommend", *map(str, everything)]) == 0
    message = f"fewer than {len(item_ids)} items are left for 3 of them"
    assert message in " ".join(capsys.readouterr().out.split())


def test_recommends_for_simulated_users_of_run(folder, tmp_path):
    out = tmp_path / "out.csv"
    assert (
        main(["recommend", *map(str, ["--run", folder, "--data", "simulated", "--out", out])]) == 0
    )
    with out.open(newline="") as file:
        users = {row["user"] for row in csv.DictReader(file)}
    assert users == {str(user) for user in data.simulate_sequences().user_ids}


@pytest.mark.parametrize("flags", [["--run", "x"], ["--data", "x"]])
def test_recommend_requires_run_and_data(flags):
    with pytest.raises(SystemExit):
        main(["recommend", *flags])


@pytest.mark.parametrize("name", LOSSES)
def test_step_of_every_loss_traces(name):
    prepare(Sequences(), [*SMALL, "--loss", name])


def test_loss_flags_configure_task():
    def make_task(*flags):
        study = Sequences()
        return task_of(study, *prepare(study, [*SMALL, *flags]))

    task = make_task()
    assert isinstance(task, tasks.NextItem)
    assert (task.loss_fn, task.negatives, task.n_neg) == (losses.bce, "unseen", 1)
    task = make_task("--loss", "gbce", "--n-neg", "50", "--calibration", "0.5", "--dropout", "0")
    assert task.hyperparams == {
        "calibration": 0.5, "temperature": 1.0, "sampling_rate": pytest.approx(50 / 199)
    }  # fmt: skip
    assert (task.negatives, task.n_neg, task.network.build.dropout) == ("any", 50, 0)
    assert make_task("--loss", "gbce", "--negatives", "all").hyperparams["sampling_rate"] == 1
    task = make_task("--loss", "softmax", "--temperature", "0.5", "--tile", "7")
    assert (task.loss_fn, task.negatives, task.tile) == (losses.info_nce, "all", 7)
    assert make_task("--loss", "dpl").hyperparams["tau_plus"] == 0.01


def test_file_interactions_become_sequences(tmp_path):
    path = tmp_path / "log.csv"
    lines = [f"{u},{i},{5 if i != 3 else 1},{9 - i}" for u in range(6) for i in range(8)]
    path.write_text("user,item,rating,timestamp\n" + "\n".join([*lines, "9,0,5,1", "9,1,5,2"]))
    flags = [*SMALL, "--batch-size", "2", "--data", str(path), "--min-rating", "2"]
    config, problem = prepare(Sequences(), flags)
    assert config.source.data == str(path)
    np.testing.assert_array_equal(problem.split.train[0], [7, 6, 5, 4, 2])  # without item 3
    np.testing.assert_array_equal(problem.split.train[6], [-1, -1, -1, 0, 1])
    assert len(problem.split.users) == 6
    _, problem = prepare(Sequences(), [*flags, "--core", "3"])
    assert (problem.log.n_users, problem.n_ties) == (6, 0)
    description = [*Sequences().describe_data(config, problem)]
    assert not any("timestamp" in line for line in description)


def test_nanosecond_timestamps_are_not_tied(tmp_path):
    """Neighbours differ by less than the precision of float64."""
    times = [1_700_000_000_000_000_000 + t for t in (0, 1, 2, 2, 3)]
    rows = [f"1,{item},{time}" for item, time in enumerate(times)]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["user,item,timestamp", *rows]))
    _, problem = prepare(Sequences(), [*SMALL, "--batch-size", "1", "--data", str(path)])
    assert problem.n_ties == 2


@pytest.mark.parametrize("ids", [[1, 2, 7], ["1", "2", "B7"]])
@pytest.mark.parametrize("given", [[1, 2, 2], ["1", "2", "2"], ["1", "2", "x"]])
def test_known_histories_match_numeric_and_text_ids(ids, given):
    log = data.Interactions.from_arrays([5, 5, 6], given, timestamps=[1, 0, 0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        users, rows = known_histories(log, np.array(ids))
    is_known = given[2] != "x"
    np.testing.assert_array_equal(users, [5, 6] if is_known else [5])
    np.testing.assert_array_equal(rows, [[1, 0], [-1, 1]] if is_known else [[1, 0]])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--loss", "softmax", "--n-neg", "3"], "--loss softmax has no --n-neg"),
        (["--tau-plus", "0.1"], "--loss bce has no --tau-plus"),
        (["--loss", "gbce", "--calibration", "2"], "--calibration must be a number in [0, 1]"),
        (["--negatives", "all", "--n-neg", "2"], "--negatives all uses all items; omit --n-neg."),
        (["--n-heads", "3"], "--n-heads must divide --width, 64, got 3"),
        (["--batch-size", "401"], "--batch-size must be at most the 400 training users"),
        (["--user-col", "u"], "--data simulated does not use --user-col; omit it."),
        (["--data", "nowhere"], "nowhere"),
        (["--data", "untimed.csv"], "--data untimed.csv has no timestamps"),
        (["--data", "short.csv"], "--data short.csv must have a row of 3 items"),
        (
            ["--data", "three.csv"],
            "--data three.csv must have a user with two interactions or more",
        ),
        (["--data", "short.csv", "--core", "9"], "--core 9"),
        (
            ["recommend", "--run", "x", "--data", "short.csv", "--out", "."],
            "--out . is a folder; name a file.",
        ),
        (["--window", "0"], "--window must be a whole number"),
        (["--resume", "nowhere"], "nowhere holds no run"),
        (["recommend", "--run", "nowhere", "--data", "short.csv"], "nowhere holds no run"),
        (
            ["recommend", "--run", "nowhere", "--data", "short.csv", "--k", "0"],
            "--k must be a whole number",
        ),
        (["--loss", "bce", "--tile", "8"], "--tile is for the scores of all items"),
    ],
)
def test_invalid_flags_give_one_line_error(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "untimed.csv").write_text("user,item\n1,2\n1,3\n1,4\n")
    (tmp_path / "short.csv").write_text("user,item,timestamp\n1,2,3\n1,3,4\n")
    (tmp_path / "three.csv").write_text("user,item,timestamp\n1,2,3\n1,3,4\n1,4,5\n")
    assert message in refused(main, flags, capsys)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("command", commands_of(PAGE, "sequences"), ids=" ".join)
def test_documented_commands_are_accepted(command):
    if command[:1] not in (["recommend"], ["--resume"]):
        study = Sequences()
        config, _, _ = configure(study, command)
        study.check(config)


def test_page_documents_all_flags():
    known = {*SCHEMA.flags.values(), "--config", "--help"}
    known |= {flag(name) for name in RecommendOptions.__dataclass_fields__}
    assert flags_of(PAGE) == known


def test_movielens_100k_splits_by_timestamp(real_data):
    """ML-100K: 943 users, all of whom have a test item; most timestamps are shared."""
    flags = ["--data", str(real_data / "ml-100k" / "u.data")]
    _, problem = prepare(Sequences(), [*flags, *SMALL])
    assert (len(problem.split.users), problem.log.n_items) == (943, 1682)
    assert problem.split.train.shape == (943, 735)
    assert 0.7 < problem.n_ties / 100_000 < 0.8
    assert problem.layout("test", True).n_evaluated == 943
