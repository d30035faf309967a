"""``--update``: what a step changes, chosen and told."""

import json

import pytest
from commands import one_line

from crl_jax import models, samplers, tasks, train
from experiments.encoders import ENCODERS
from experiments.recommend import main

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
SMALL = ["--epochs", "2", "--batch-size", "4", "--dim", "4", "--l2-on", "rows"]


@pytest.fixture
def run(ratings, tmp_path, capsys):
    """What a run prints, what it took for what a step changes, and its NDCG."""

    def run_with(*flags: str) -> tuple[str, str, float]:
        out = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        assert main(["--data", str(ratings), *SMALL, *flags, "--out", str(out)]) == 0
        config = json.loads((out / "config.json").read_text())
        metrics = json.loads((out / "metrics.json").read_text())
        return one_line(capsys.readouterr().out), config["training"]["update"], metrics["ndcg@20"]

    return run_with


@pytest.mark.parametrize("optimizer", ["adam", "adagrad", "rowwise-adagrad", "sgd"])
def test_rows_and_tables_come_to_the_same(run, optimizer):
    said, chosen, by_rows = run("--optimizer", optimizer)
    assert chosen == "rows"
    assert "a step changes the rows that its batch reads: 106 rows, at most 12 are read" in said
    said, chosen, by_tables = run("--optimizer", optimizer, "--update", "tables")
    assert chosen == "tables"
    assert "a step changes whole tables: 106 rows" in said
    assert by_rows == pytest.approx(by_tables, abs=1e-3)


@pytest.mark.parametrize(
    ("flags", "n_read"),
    [
        (["--batch-size", "64"], 192),
        (["--sampler", "dns"], 12),
        (["--l2-on", "tables"], 12),
        (["--optimizer", "adamw"], 12),
        (["--loss", "dpl", "--n-neg", "2", "--n-pos", "3"], 28),
        (["--loss", "info_nce", "--sampler", "in-batch", "--batch-size", "32"], 64),
        (["--loss", "info_nce", "--sampler", "shared", "--n-neg", "50"], 58),
    ],
)
def test_tables_are_taken_where_rows_cost_more_or_differ(run, flags, n_read):
    said, chosen, _ = run(*flags)
    assert chosen == "tables"
    assert f"whole tables: 106 rows, at most {n_read} are read" in said


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--optimizer", "adamw"], "takes another --optimizer than adamw"),
        (["--encoder", "lightgcn"], "takes another --encoder than lightgcn"),
        (["--l2-on", "tables"], "goes with --l2-on rows, got tables"),
        (["--sampler", "dns"], "with --optimizer adam takes a --sampler that does not look"),
    ],
)
def test_rows_that_cannot_be_are_refused(ratings, tmp_path, capsys, flags, message):
    out = tmp_path / "run"
    arguments = ["--data", str(ratings), *SMALL, "--update", "rows", *flags, "--out", str(out)]
    assert main(arguments) == 2
    assert f"error: --update rows {message}" in one_line(capsys.readouterr().err)
    assert not out.exists()


def test_samplers_that_look_at_scores_are_told(run):
    """With an optimiser to which nothing happens in its sleep they do as well."""
    _, chosen, _ = run("--sampler", "dns", "--optimizer", "adagrad")
    assert chosen == "rows"


def test_what_an_entry_says_is_what_its_encoder_is():
    assert {name: entry.by_rows for name, entry in ENCODERS.items()} == {
        "mf": models.MatrixFactorization.by_rows, "lightgcn": models.LightGCN.by_rows,
    }  # fmt: skip


def test_rows_are_counted():
    assert tasks.count_rows(samplers.RNS(), 10, 3, 2, 4) == 10 * (1 + 1 + 3 + 2 + 4)
    assert tasks.count_rows(samplers.InBatch(), 10, 3, 0, 0) == 20
    assert tasks.count_rows(samplers.SharedRNS(anchors=4), 10, 7, 0, 0) == 20 + 3 * 7
    assert train.rows_pay(101, 25)
    assert not train.rows_pay(100, 25)
