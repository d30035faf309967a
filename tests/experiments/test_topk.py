"""Tests of the topk command: users, recommended items, and the model used."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import polars
import pytest
from _helpers.commands import one_line
from _helpers.files import space
from _helpers.refusals import raises

from crl_jax import data, losses, models, tasks, train
from experiments.recommend import _topk, main
from experiments.recommend._config import Config
from experiments.recommend._options import ProtocolOptions, TrainOptions
from experiments.recommend._problem import Problem
from experiments.recommend._saved import Model, save_model
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

N_USERS, N_ITEMS = 12, 15
CONFIG = Config(
    training=TrainOptions(dim=4, epochs=4, batch_size=16, lr=0.05),
    protocol=ProtocolOptions(final_training="all", seeds=2),
)


def ones(n: int) -> np.ndarray:
    return np.ones((1, n, 4), np.float32)


def interactions(pairs: list[tuple[int, int]]) -> data.Interactions:
    users, items = np.array(pairs).T
    names = (np.array([f"{letter}{i}" for i in range(n)]) for letter, n in (("u", 12), ("i", 15)))
    user_ids, item_ids = names
    return data.Interactions.from_arrays(users, items, user_ids=user_ids, item_ids=item_ids)


@pytest.fixture(scope="module")
def problem() -> Problem:
    rng = np.random.default_rng(0)
    pairs = [(u, int(i)) for u in range(N_USERS) for i in rng.permutation(N_ITEMS)[:8]]
    parts = [pairs[start::4] for start in range(4)]
    valid, test = interactions(parts[2]), interactions(parts[3])
    known = interactions(parts[0] + parts[1] + parts[2])
    return Problem(interactions(parts[0] + parts[1]), valid, test, known)


@pytest.fixture
def saved(problem, tmp_path) -> Path:
    """The folder of a saved model with random scores."""
    rng = np.random.default_rng(1)
    tables = models.Tables(
        *(rng.normal(size=(1, n, 4)).astype(np.float32) for n in (N_USERS, N_ITEMS))
    )
    model = Model(tables, problem.known, problem.test, ("train", "valid"))
    save_model(tmp_path, model, CONFIG)
    return tmp_path


def pairs_of(*parts: data.Interactions) -> set[tuple[str, str]]:
    return {(f"u{u}", f"i{i}") for part in parts for u, i in zip(part.users, part.items)}


@pytest.mark.parametrize("include_test_items", [False, True])
def test_recommends_all_items_except_seen(include_test_items, saved, problem):
    out = saved / "recs.parquet"
    flags = ["--include-test-items"] if include_test_items else []
    assert main(["topk", "--run", str(saved), "--all", "--k", "15", "--out", str(out), *flags]) == 0
    table = polars.read_parquet(out)
    shown = list(zip(table["user"], table["item"], strict=True))
    everything = {(f"u{u}", f"i{i}") for u in range(N_USERS) for i in range(N_ITEMS)}
    has = pairs_of(problem.train, problem.valid, *(() if include_test_items else (problem.test,)))
    assert len(shown) == len(set(shown))
    assert set(shown) == everything - has


@pytest.mark.parametrize("name", ["recs.parquet", "recs.csv"])
def test_chunked_writing_matches_single_write(name, saved, monkeypatch):
    files = []
    for at_once in (100, 5):
        monkeypatch.setattr(_topk, "_AT_ONCE", at_once)
        files.append(saved / f"{at_once}-{name}")
        flags = ["--run", str(saved), "--all", "--k", "3", "--out", str(files[-1])]
        assert main(["topk", *flags]) == 0
    read = polars.read_parquet if name.endswith("parquet") else polars.read_csv
    whole, parts = map(read, files)
    assert whole.height == 3 * N_USERS
    assert whole.equals(parts)
    assert not [path for path in saved.iterdir() if path.name.startswith(".")]


def test_failed_write_leaves_no_file(problem, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_topk, "_AT_ONCE", 5)
    users = ones(N_USERS)
    users[0, -1] = np.nan  # in the last chunk
    tables = models.Tables(users, ones(N_ITEMS))
    save_model(tmp_path, Model(tables, problem.known, problem.test, ("train",)), CONFIG)
    before = sorted(tmp_path.iterdir())
    for name in ("recs.parquet", "recs.csv"):
        flags = ["--run", str(tmp_path), "--all", "--out", str(tmp_path / name)]
        assert main(["topk", *flags]) == 2
        assert "diverged" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["recs.parquet", "recs.csv"])
def test_insufficient_disk_space_raises_os_error(name, tmp_path):
    known = interactions([(0, 0)])
    lists = _topk.Lists(np.arange(12), np.ones((12, 5), np.int32), np.ones((12, 5), np.float32))
    with space(100), raises(OSError, match=f"{name}|--out cannot be written"):
        _topk._write(tmp_path / name, [lists], known)
    assert not [*tmp_path.iterdir()]


class Run(NamedTuple):
    """Result of a run: the selection, the test metrics per seed, and the tables to be saved."""

    choice: train.Selection
    per_seed: list[dict[str, float]]
    tables: list[models.Tables]


def run(config, problem, folder, on_entry=lambda *_: None) -> Run:
    study, outputs = Recommend(), (folder, on_entry, lambda _: None)
    searched = study.search(config, problem, *outputs)
    per_seed, tables = [], []
    for phase in study.phases(config)[1:]:
        (tables,) = study.train_models(config, problem, phase, searched, *outputs)
        if phase == "final":
            found = [study.evaluate(config, problem, of, 0, lambda _: None) for of in tables]
            per_seed = [evaluation.metrics for evaluation in found]
    return Run(searched.choice, per_seed, tables)


@pytest.fixture(scope="module")
def for_use(problem, tmp_path_factory, quick_compiles) -> Run:
    with jax.numpy_dtype_promotion("standard"):
        return run(CONFIG, problem, tmp_path_factory.mktemp("use"))


def train_on_all_parts(problem: Problem, stop_at: int, **changes: Any) -> list[models.Tables]:
    """Returns the tables of both seeds after training on all parts."""
    everything = interactions(
        [
            (int(u), int(i))
            for part in (problem.train, problem.valid, problem.test)
            for u, i in zip(part.users, part.items)
        ]
    )
    fitted = tasks.fit_ranking(
        everything,
        loss=losses.bpr,
        hyperparams={"temperature": 1.0},
        encoder=models.MatrixFactorization(N_USERS, N_ITEMS, 4),
        optimizer=train.Optimizer(0.05, 1e-5, schedule=train.step_decay),
        config=train.TrainConfig(16),
        epochs=4,
        stopping=tasks.Stopping(stop_at=stop_at),
        **{"seeds": np.arange(2), **{name: of(everything) for name, of in changes.items()}},
    )
    return [fitted.tables(i) for i in (0, 1)]


@pytest.mark.slow
def test_model_for_use_trains_on_all_data_without_changing_scores(for_use, problem, tmp_path):
    want = train_on_all_parts(problem, for_use.choice.epochs)
    jax.tree.map(np.testing.assert_array_equal, for_use.tables, want)
    protocol = dataclasses.replace(CONFIG.protocol, final_training="train+valid")
    train_valid_run = run(dataclasses.replace(CONFIG, protocol=protocol), problem, tmp_path)
    assert for_use.per_seed == train_valid_run.per_seed


@pytest.mark.slow
def test_host_batches_flag_draws_batches_on_host(problem, tmp_path):
    training = dataclasses.replace(CONFIG.training, batches="host")
    protocol = dataclasses.replace(CONFIG.protocol, seed=7)
    got = run(dataclasses.replace(CONFIG, training=training, protocol=protocol), problem, tmp_path)
    seeds = {"seeds": lambda _: np.arange(7, 9)}
    batches = {
        "options": lambda log: tasks.RankingOptions(
            batches=tasks.host_interactions(log, 16, seed=7)
        )
    }
    want = train_on_all_parts(problem, got.choice.epochs, **seeds, **batches)
    jax.tree.map(np.testing.assert_array_equal, got.tables, want)
    on_device = train_on_all_parts(problem, got.choice.epochs, **seeds)
    assert not np.array_equal(got.tables[0].users, on_device[0].users)


@pytest.mark.slow
def test_training_for_use_resumes_bit_identically(for_use, problem, tmp_path):
    config = dataclasses.replace(
        CONFIG, output=dataclasses.replace(CONFIG.output, checkpoint_seconds=0)
    )

    def interrupt(runs, entry):
        if (runs.phase, entry["epoch"]) == ("use", min(2, runs.epochs)):
            raise KeyboardInterrupt

    with raises(KeyboardInterrupt):
        run(config, problem, tmp_path, interrupt)
    entries = []
    again = run(config, problem, tmp_path, lambda runs, entry: entries.append(runs.phase))
    assert set(entries) == {"search", "final", "use"}
    jax.tree.map(np.testing.assert_array_equal, again.tables, for_use.tables)
    assert again.per_seed == for_use.per_seed


def test_rejects_test_items_for_model_trained_on_test_part(problem, tmp_path, capsys):
    tables = models.Tables(ones(N_USERS), ones(N_ITEMS))
    model = Model(tables, problem.known, problem.test, ("train", "valid", "test"))
    save_model(tmp_path, model, CONFIG)
    assert main(["topk", "--run", str(tmp_path), "--user", "u0", "--include-test-items"]) == 2
    assert "was trained on its test part" in one_line(capsys.readouterr().err)


def test_rejects_model_of_earlier_version(saved, capsys):
    path = saved / "checkpoint" / "model.npz"
    stored, meta = train.load_checkpoint(path)
    del stored["test_indptr"], stored["test_items"]
    train.save_checkpoint(path, stored, meta)
    assert main(["topk", "--run", str(saved), "--user", "u0"]) == 2
    assert "expected the arrays" in one_line(capsys.readouterr().err)


def test_reports_lists_shorter_than_k(saved, problem, capsys):
    has = pairs_of(problem.known, problem.test)
    left = N_ITEMS - len({item for user, item in has if user == "u3"})
    assert main(["topk", "--run", str(saved), "--user", "u3", "--k", "12"]) == 0
    assert f"only {left} items are left" in one_line(capsys.readouterr().out)
    out = saved / "recs.csv"
    assert (
        main(["topk", "--run", str(saved), "--all", "--k", str(left + 1), "--out", str(out)]) == 0
    )
    assert f"fewer than {left + 1} items are left for {N_USERS} of" in capsys.readouterr().out
    assert main(["topk", "--run", str(saved), "--all", "--k", str(left), "--out", str(out)]) == 0
    assert "fewer than" not in capsys.readouterr().out


def test_rejects_diverged_model(problem, tmp_path, capsys):
    tables = models.Tables(np.nan * ones(N_USERS), ones(N_ITEMS))
    save_model(tmp_path, Model(tables, problem.known, problem.test, ("train",)), CONFIG)
    assert main(["topk", "--run", str(tmp_path), "--user", "u0"]) == 2
    assert "diverged" in capsys.readouterr().err


def test_long_ids_are_not_wrapped_in_output(problem, tmp_path, capsys):
    names = np.array([f"[i]{i}-" + "x" * 100 for i in range(N_ITEMS)])
    parts = (dataclasses.replace(part, item_ids=names) for part in (problem.known, problem.test))
    tables = models.Tables(ones(N_USERS), ones(N_ITEMS))
    save_model(tmp_path, Model(tables, *parts, ("train",)), CONFIG)
    assert main(["topk", "--run", str(tmp_path), "--user", "u0", "--k", "2"]) == 0
    shown = capsys.readouterr().out
    assert sum(str(name) in shown for name in names) == 2
