"""Tests of the table and the figures on texts: configurations, comparison and output files."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from _helpers.reproduction import read_csv, stored

from experiments._study import Evaluation, Run
from experiments.reproduce import main, texts, training
from experiments.reproduce.targets import Options
from experiments.text._study import FINE_TUNING, PRE_TRAINING, TextStudy

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
LINES = [f"{'good' if i % 3 else 'bad'} text number {i}" for i in range(24)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of texts of two classes, and small configurations."""
    path = tmp_path / "mine"
    path.mkdir()
    for part, lines in (("train", LINES), ("test", LINES[:6])):
        rows = [f"{line}\t{line.split()[0]}" for line in lines]
        (path / f"{part}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    of = texts.configure

    def tiny(options, name):
        config = of(options, name)
        encoding = replace(config.encoding, width=4, heads=2, vocab_size=40)
        training = replace(config.training, batch_size=8, head=(3,), fine_tune_hidden=5)
        return replace(
            config, source=replace(config.source, n_train=None, length=6), encoding=encoding,
            training=training,
        )  # fmt: skip

    monkeypatch.setattr(texts, "configure", tiny)
    return path


def test_rows_differ_only_in_pre_training():
    options = Options("text-table-3", Path("titles"), seeds=2, weights="bert-base-chinese")
    rows = {name: texts.configure(options, name) for name in texts.EPOCHS}
    assert [of.training.epochs for of in rows.values()] == [None, 1, 3, 5]
    assert {of.training.fine_tune_epochs for of in rows.values()} == {1}
    assert {of.training.fine_tune_hidden for of in rows.values()} == {768}
    assert rows["bert"].method.method == "none"
    assert all(vars(of.method)["draws"] == 140_000 for of in list(rows.values())[1:])
    small = texts.configure(replace(options, scale="small"), "conbert-3")
    assert (small.training.epochs, small.training.fine_tune_epochs) == (3, 5)
    assert vars(small.method)["draws"] is None
    for config in (*rows.values(), small):
        TextStudy().check(config)


def test_table_and_curves_share_trainings(folder, tmp_path, monkeypatch):
    """Pretends to train: fine-tuning after more pre-training has a smaller loss."""
    trained = Counter()

    def learn(study, config, problem, point, index, checkpoints, on_entry):
        epochs = config.training.epochs or 0
        trained[epochs] += 1
        run = Run("final", index, 2, index, {})
        if epochs:
            on_entry(run, {"stage": PRE_TRAINING, "epoch": 1, "loss": [9.0]})
        for epoch in (1, 2):
            loss = 3 - 0.1 * epochs - epoch + index
            on_entry(run, {"stage": FINE_TUNING, "epoch": epoch, "fine_tune_loss": [loss]})
        return epochs

    def evaluate(self, config, problem, learned, seed, on_stage):
        metrics = dict.fromkeys(("precision", "recall", "accuracy"), 0.5)
        return Evaluation(
            {**metrics, "f1": 0.1 * learned + seed * (0.5 + 0.02 * learned)}, np.ones(6)
        )

    monkeypatch.setattr(training, "learn", learn)
    monkeypatch.setattr(TextStudy, "evaluate", evaluate)
    out = tmp_path / "out"
    flags = ["--data", str(folder), "--scale", "small", "--seeds", "2", "--out", str(out)]
    assert main(["text-table-3", *flags]) == 0
    rows = read_csv(out / "text-table-3-small.csv")
    assert [row["method"] for row in rows] == ["bert", "conbert-1", "conbert-3", "conbert-5"]
    assert [float(row["f1"]) for row in rows] == pytest.approx([0.25, 0.36, 0.58, 0.8])
    assert [row["f1_published"] for row in rows] == ["0.72", "0.76", "0.76", "0.75"]
    assert [float(row["gain"]) for row in rows] == pytest.approx([0, 0.11, 0.33, 0.55])
    assert rows[1]["precision_published"] == "0.78"
    assert "other data" in (out / "text-table-3-small.md").read_text()
    assert trained == {0: 2, 1: 2, 3: 2, 5: 2}
    assert {entry["stage"] for of in stored(out).values() for entry in of["history"]} == {
        FINE_TUNING
    }
    assert main(["text-figure-5", *flags]) == 0
    assert trained.total() == 8
    curves = read_csv(out / "text-figure-5.csv")
    assert len(curves) == 4 * 2 * 2
    losses = {(r["method"], r["epoch"], r["seed"]): float(r["loss"]) for r in curves}
    assert losses["bert", "1", "0"] == 2.0
    assert losses["conbert-5", "2", "1"] == pytest.approx(1.5)
    assert (out / "text-figure-5.png").stat().st_size > 5000


@pytest.mark.slow
def test_trains_and_evaluates_conbert(folder, tmp_path):
    flags = ["--data", str(folder), "--scale", "small", "--seeds", "1", "--methods", "conbert-1"]
    assert main(["text-table-3", *flags, "--out", str(tmp_path / "out")]) == 0
    outcome = stored(tmp_path / "out")["conbert-1"]
    assert [entry["epoch"] for entry in outcome["history"]] == [1, 2, 3, 4, 5]
    assert 0 <= outcome["per_seed"][0]["f1"] <= 1


def test_distributions_count_all_texts(folder, tmp_path):
    assert main(["text-figure-4", "--data", str(folder), "--out", str(tmp_path / "out")]) == 0
    rows = read_csv(tmp_path / "out" / "text-figure-4.csv")
    counts = {row["value"]: int(row["texts"]) for row in rows if row["distribution"] == "class"}
    every = [*LINES, *LINES[:6]]
    assert counts == Counter(line.split()[0] for line in every)
    lengths = [(float(r["value"]), int(r["texts"])) for r in rows if r["distribution"] == "length"]
    assert sum(n for _, n in lengths) == len(every)
    assert lengths[0][0] == min(map(len, every))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--scale", "published"], "--scale published needs --weights"),
        (["--scale", "small", "--epochs", "2"], "omit --epochs"),
        (["--scale", "small", "--methods", "conbert-2"], '--methods takes some of "bert"'),
    ],
)
def test_rejects_invalid_flags(folder, tmp_path, capsys, flags, message):
    assert main(["text-table-3", "--data", str(folder), *flags, "--out", str(tmp_path)]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
