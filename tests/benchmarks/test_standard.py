"""Tests of the standard-split benchmark: results, published figures, tests between losses."""

import json
from pathlib import Path

import numpy as np
import pytest
from _helpers import list_metrics
from _helpers.commands import call
from _helpers.refusals import raises
from scipy import stats

from benchmarks import standard_splits
from benchmarks._report import read_csv
from crl_jax import data, models
from experiments.recommend import recipes
from experiments.recommend._config import Config, EncoderOptions
from experiments.recommend._saved import Model, save_model

SEEDS, N_USERS, N_ITEMS = 3, 12, 40
rng = np.random.default_rng(0)
KNOWN, TEST = (
    data.Interactions.from_arrays(
        np.repeat(np.arange(N_USERS), 4),
        np.concatenate([first + rng.permutation(half)[:4] for _ in range(N_USERS)]),
        user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS),
    )
    for first, half in ((0, 20), (20, 20))
)  # fmt: skip


def tables(strength: float, seed: int) -> models.Tables:
    """Returns tables that rank a user's test items first, the better the larger ``strength``."""
    noise = np.random.default_rng(seed)
    users = np.eye(N_USERS, dtype=np.float32)
    items = noise.normal(size=(N_ITEMS, N_USERS)).astype(np.float32)
    items[TEST.items, TEST.users] += strength
    return models.Tables(users, items)


def ndcg(of: models.Tables, user: int) -> float:
    """Returns a reference NDCG@20, with known items excluded."""
    known, held_out = (log.items[log.users == user] for log in (KNOWN, TEST))
    return list_metrics.ndcg(of.items @ of.users[user], known, held_out)


STRENGTH = {
    "gowalla-info_nce": 0.5, "gowalla-debiased": 3.0, "gowalla-hard": 0.5001, "gowalla-bsl": 0.5,
}  # fmt: skip
LEARNING_RATE = {"gowalla-bsl": 1e-4}


@pytest.fixture
def runs(monkeypatch) -> list[str]:
    """Replaces the run of a recipe by a synthetic model and its metrics; records the runs."""
    done = []

    def run(command: str, flags: list[str], folder: Path) -> None:
        _, recipe, _, path, _, seed = flags
        done.append((command, recipe, Path(path).name, seed))
        made = tables(STRENGTH[recipe], int(seed))
        scored = {"recall@20": 0.1, "ndcg@20": np.mean([ndcg(made, u) for u in range(N_USERS)])}
        folder.mkdir(parents=True)
        stacked = models.Tables(*(side[None] for side in made))
        save_model(folder, Model(stacked, KNOWN, TEST, ("train", "valid")), Config(
            encoding=EncoderOptions(encoder="mf")))  # fmt: skip
        config = {
            "source": {"valid_fraction": 0.01}, "objective": {"loss": recipe, "n_neg": 512},
            "sampling": {}, "encoding": {}, "training": {"lr": LEARNING_RATE.get(recipe, 1e-3)},
        }  # fmt: skip
        for name, content in (("metrics.json", scored), ("config.json", config)):
            (folder / name).write_text(json.dumps(content))
        (folder / "curves.png").write_bytes(b"")

    monkeypatch.setattr(standard_splits, "run", run)
    monkeypatch.setattr(standard_splits, "RECIPES", dict.fromkeys(STRENGTH, Config()))
    return done


def test_losses_are_compared_with_info_nce_over_seeds_and_users(runs, monkeypatch, tmp_path):
    flags = "--data", tmp_path, "--runs", tmp_path / "runs", "--out", tmp_path / "standard"
    call(standard_splits, monkeypatch, *flags)
    names = [f"gowalla-{loss}" for loss in ("info_nce", "bsl", "debiased", "hard")]
    assert runs == [
        ("recommend", name, "gowalla", str(seed)) for name in names for seed in range(SEEDS)
    ]
    assert len(read_csv(tmp_path / "standard/per_seed.csv")) == len(names) * SEEDS
    plain, other_setting, *others = read_csv(tmp_path / "standard/losses.csv")
    assert plain["gain"] == other_setting["gain"] == ""
    published = [row["ndcg@20_published"] for row in (plain, other_setting, *others)]
    assert published == ["0.1395", "0.1584", "", ""]
    per_user = {
        name: np.mean([[ndcg(tables(s, seed), u) for u in range(N_USERS)] for seed in range(SEEDS)],
                      axis=0)
        for name, s in STRENGTH.items() if name not in LEARNING_RATE
    }  # fmt: skip
    p = [
        stats.ttest_rel(per_user[f"gowalla-{row['loss']}"], per_user["gowalla-info_nce"]).pvalue
        for row in others
    ]
    by_hand = sorted([(min(p) * 2, p.index(min(p))), (max(p), p.index(max(p)))], key=lambda x: x[1])
    np.testing.assert_allclose(
        [float(r["p_users"]) for r in others], [x for x, _ in by_hand], rtol=1e-3
    )
    for row in others:
        gain = float(row["ndcg@20"]) - float(plain["ndcg@20"])
        np.testing.assert_allclose(float(row["gain"]), gain, atol=1e-6)
    assert float(others[0]["p_seeds"]) < 0.05 < float(others[1]["p_users"])


def test_rejects_losses_without_info_nce_results(runs, monkeypatch, tmp_path, capsys):
    flags = "--losses", "bsl", "--out", tmp_path / "standard", "--runs", tmp_path / "runs"
    with raises(SystemExit) as exit_info:
        call(standard_splits, monkeypatch, "--data", tmp_path, *flags)
    assert exit_info.value.code == 2
    assert "add info_nce to --losses" in capsys.readouterr().err
    assert not runs


def test_rerun_of_one_loss_keeps_tests_and_other_rows(runs, monkeypatch, tmp_path):
    flags = "--data", tmp_path, "--runs", tmp_path / "runs", "--out", tmp_path / "standard"
    call(standard_splits, monkeypatch, *flags)
    path, names = tmp_path / "standard/losses.csv", ("gain", "p_seeds", "p_users", "ndcg@20")
    before = {row["loss"]: [row[name] for name in names] for row in read_csv(path)}
    monkeypatch.setattr(standard_splits, "run", lambda *_: None)
    call(standard_splits, monkeypatch, *flags, "--losses", "hard")
    after = read_csv(path)
    assert {row["loss"]: [row[name] for name in names] for row in after} == before
    assert after[-1]["loss"] == "hard"
    assert after[-1]["gain"]


@pytest.mark.parametrize("losses", [["mpr"], ["info_nce", "mpr"]])
def test_rejects_loss_without_recipe(losses, runs, monkeypatch, tmp_path, capsys):
    with raises(SystemExit):
        call(standard_splits, monkeypatch, "--data", tmp_path, "--losses", *losses)
    assert "there is no recipe for --losses mpr" in capsys.readouterr().err
    assert not runs


def test_rejects_encoder_without_recipes(runs, monkeypatch, tmp_path, capsys):
    with raises(SystemExit):
        call(standard_splits, monkeypatch, "--data", tmp_path, "--encoders", "lightgcn")
    assert "there is no recipe for these --datasets" in capsys.readouterr().err


def test_standard_split_recipe_exists():
    assert standard_splits.recipe_name("gowalla", "lightgcn", "bsl") in recipes.RECIPES
