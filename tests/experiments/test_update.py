"""Tests of ``--optimizer-mode``: the choice between row-wise and dense updates, and its report."""

import json
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
from _helpers.commands import one_line
from _helpers.refusals import raises

from crl_jax import models, samplers, serving, tasks, train
from experiments._study_options import RULES, SCHEDULES
from experiments.recommend import main
from experiments.recommend._config import Config, EncoderOptions, LossOptions, SamplerOptions
from experiments.recommend._options import TrainOptions
from experiments.recommend._update import ROW_RULES, choose_optimizer_mode, make_optimizer
from experiments.recommend.objectives import resolve

SMALL = ["--loss", "bpr", "--n-neg", "1", "--epochs", "2", "--batch-size", "4", "--dim", "4",
         "--weight-decay", "0.1", "--l2-target", "rows", "--final-training", "train"]  # fmt: skip


@pytest.fixture
def run(ratings, tmp_path, capsys):
    """Returns a function from flags to a run's output, its update mode and its tables."""

    def run_with(*flags: str) -> tuple[str, str, models.Tables]:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        assert main(["--data", str(ratings), *SMALL, *flags, "--out", str(out)]) == 0
        config = json.loads((out / "config.json").read_text())
        saved = serving.Recommender.load(out)
        return (
            one_line(capsys.readouterr().out),
            config["training"]["optimizer_mode"],
            models.Tables(saved.users, saved.items),
        )

    return run_with


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion", "quick_compiles")
def test_row_updates_match_dense_updates(run):
    report, chosen, by_rows = run()
    assert chosen == "rows"
    assert "a step updates the rows that its batch reads: 106 rows, at most 12 are read" in report
    report, chosen, by_tables = run("--optimizer-mode", "dense")
    assert chosen == "dense"
    assert "a step updates whole tables: 106 rows" in report
    for rows, table in zip(by_rows, by_tables, strict=True):
        np.testing.assert_allclose(rows, table, atol=2e-6)  # steps are of 5e-3


def resolve_mode(
    training: dict[str, Any],
    sampler: samplers.Sampler | None = None,
    encoder: str = "mf",
    **loss: Any,
) -> tuple[str, str]:
    """Returns the update mode, resolved for tables of 106 rows, and its description."""
    training = {"batch_size": 4, "l2_target": "rows", **training}
    config = Config(
        objective=LossOptions(**loss), sampling=SamplerOptions(),
        encoding=EncoderOptions(encoder=encoder), training=TrainOptions(**training),
    )  # fmt: skip
    return choose_optimizer_mode(config, resolve(config.objective), sampler or samplers.RNS(), 106)


@pytest.mark.parametrize(
    ("given", "chosen", "n_read"),
    [
        ({"training": {}}, "rows", 12),
        ({"training": {"optimizer": "sgd"}}, "rows", 12),
        ({"training": {"optimizer": "rowwise-adagrad"}, "sampler": samplers.DNS(2)}, "rows", 12),
        ({"training": {"l2_target": "encoded"}}, "rows", 12),
        ({"training": {"optimizer_mode": "dense"}}, "dense", 12),
        ({"training": {"batch_size": 64, "optimizer_mode": "rows"}}, "rows", 192),
        ({"training": {"batch_size": 64}}, "dense", 192),
        ({"training": {}, "sampler": samplers.DNS(2)}, "dense", 12),
        ({"training": {"l2_target": "tables"}}, "dense", 12),
        ({"training": {"optimizer": "adamw"}}, "dense", 12),
        ({"training": {}, "encoder": "lightgcn"}, "dense", 12),
        ({"training": {}, "loss": "dpl", "n_neg": 2, "n_pos": 3}, "dense", 28),
    ],
)
def test_row_updates_are_chosen_if_cheaper_and_equivalent(given, chosen, n_read):
    update, report = resolve_mode(**given)
    assert update == chosen
    assert report.endswith(f": 106 rows, at most {n_read} are read")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--optimizer", "adamw"], "does not support --optimizer adamw"),
        (["--encoder", "lightgcn"], "does not support --encoder lightgcn"),
        (["--l2-target", "tables"], "needs --l2-target rows, got tables"),
        (["--sampler", "dns"], "with --optimizer adam needs a --sampler that does not use scores"),
    ],
)
def test_rejects_unsupported_row_updates(ratings, tmp_path, capsys, flags, message):
    out = tmp_path / "run"
    flags = ["--optimizer-mode", "rows", *flags, "--out", str(out)]
    assert main(["--data", str(ratings), *SMALL, *flags]) == 2
    assert f"error: --optimizer-mode rows {message}" in one_line(capsys.readouterr().err)
    assert not out.exists()


def test_optimizer_matches_resolved_mode():
    hints = get_type_hints(TrainOptions)
    assert {*get_args(hints["schedule"])} == {*SCHEDULES}
    names = get_args(hints["optimizer"])
    assert {*ROW_RULES} < {*names} < {*RULES}
    for name in names:
        tables = make_optimizer(
            TrainOptions(optimizer=name, optimizer_mode="dense", schedule="cosine")
        )
        assert isinstance(tables, train.Optimizer)
        assert (tables.rule, tables.schedule) == (RULES[name], train.cosine)
        if name in ROW_RULES:
            rows = make_optimizer(TrainOptions(optimizer=name, optimizer_mode="rows", lr=0.5))
            assert isinstance(rows, train.RowOptimizer)
            assert (rows.rule, rows.learning_rate) == (ROW_RULES[name], 0.5)


def test_row_reads_depend_on_sampler():
    assert tasks.count_row_reads(samplers.RNS(), 10, 3, 2, 4) == 10 * (1 + 1 + 3 + 2 + 4)
    assert tasks.count_row_reads(samplers.InBatch(), 10, 3, 0, 0) == 20
    assert tasks.count_row_reads(samplers.SharedRNS(anchors=4), 10, 7, 0, 0) == 20 + 3 * 7


@pytest.mark.parametrize(("platform", "cost"), [("cpu", 4), ("gpu", 7), ("cuda", 7), ("tpu", 6)])
def test_row_update_threshold_depends_on_platform(platform, cost):
    assert train.prefer_row_updates(25 * cost + 1, 25, platform)
    assert not train.prefer_row_updates(25 * cost, 25, platform)


def test_rejects_unknown_platform():
    with raises(ValueError, match="`platform` must be one of .*'cpu'.*, got 'npu'"):
        train.prefer_row_updates(100, 25, "npu")
