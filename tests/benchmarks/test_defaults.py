"""Defaults benchmark: regret, ranks, stored results and baselines."""

import numpy as np
import pytest
from _helpers.commands import call
from _helpers.refusals import raises

from benchmarks import defaults
from benchmarks._report import RESULTS, read_csv
from crl_jax import data, metrics


def row(dataset, method, mode, score, seconds=1.0, models=1):
    return {
        "dataset": dataset, "method": method, "mode": mode, "ndcg@20": score, "seconds": seconds,
        "models": models,
    }  # fmt: skip


def test_regret_is_relative_to_the_best_single_trained_model():
    rows = [
        row("a", "x", "defaults", 0.4), row("a", "x", "search", 0.5),
        row("a", "EASE", "baseline", 0.6, ""), row("a", "y", "search", 0.55, models=3),
        row("b", "x", "defaults", 0.2),
    ]  # fmt: skip
    defaults.add_regret(rows)
    assert [r["regret"] for r in rows] == pytest.approx([0.2, 0.0, -0.2, -0.1, 0.0])


def test_update_keeps_rows_of_other_datasets_and_methods(tmp_path):
    sizes, first = {"users": 5, "chosen": "lr=1"}, {"numpy": "1"}
    rows = [
        sizes | row(dataset, method, "defaults", score)
        for dataset, method, score in (("a", "x", 0.4), ("a", "y", 0.5), ("b", "x", 0.3))
    ]
    defaults.write_results(tmp_path, "", rows, first, ["a", "b"])
    new = [sizes | row("a", "x", "defaults", 0.8)]
    summary = defaults.write_results(tmp_path, "", new, {"numpy": "2"}, ["a", "b"])
    found = read_csv(tmp_path / "runs.csv")
    assert [(r["dataset"], r["method"], r["numpy"]) for r in found] == [
        ("a", "x", "2"), ("a", "y", "1"), ("b", "x", "1"),
    ]  # fmt: skip
    assert [float(r["regret"]) for r in found] == pytest.approx([0, 0.375, 0])
    assert {r["method"]: r["datasets"] for r in summary} == {"x": 2, "y": 1}
    assert len(read_csv(tmp_path / "methods.csv")) == 2


def test_stored_results_do_not_change_if_they_are_written_again(tmp_path):
    for name in ("runs.csv", "methods.csv"):
        (tmp_path / name).write_bytes((RESULTS / "defaults" / name).read_bytes())
    defaults.write_results(tmp_path, "", [], {}, [*defaults.DATASETS])
    stored = RESULTS / "defaults"
    assert (tmp_path / "runs.csv").read_text() == (stored / "runs.csv").read_text()
    for got, want in zip(
        read_csv(tmp_path / "methods.csv"), read_csv(stored / "methods.csv"), strict=True
    ):
        assert [got[name] for name in ("method", "mode")] == [want["method"], want["mode"]]
        for name in ("rank", "regret", "worst"):
            assert float(got[name]) == pytest.approx(float(want[name]), rel=1e-5)


@pytest.mark.parametrize("minutes", ["-1", "nan", "inf"])
def test_rejects_invalid_minutes_before_run(minutes, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(defaults, "run", lambda *_: pytest.fail("a run has begun"))
    monkeypatch.chdir(tmp_path)
    with raises(SystemExit):
        call(defaults, monkeypatch, "--data", "sets", "--minutes", minutes)
    assert f"--minutes must be finite, at least 0, got {minutes}" in capsys.readouterr().err


def test_methods_are_ranked_within_mode():
    scores = {"x": (0.4, 0.1), "y": (0.2, 0.2), "z": (0.3, 0.3)}
    rows = [
        row(dataset, method, "defaults", score, seconds)
        for method, of in scores.items()
        for dataset, score, seconds in zip("ab", of, (1.0, 3.0))
    ]
    rows.append(row("a", "x", "search", 0.8))
    defaults.add_regret(rows)
    found = {(r["method"], r["mode"]): r for r in defaults.summarize(rows)}
    assert found["x", "search"]["rank"] == 1
    assert [found[m, "defaults"]["rank"] for m in "xyz"] == [2.0, 2.5, 1.5]
    assert found["x", "defaults"]["regret"] == pytest.approx(np.mean([0.5, 2 / 3]))
    assert found["x", "defaults"]["worst"] == pytest.approx(2 / 3)
    assert found["x", "defaults"]["seconds"] == 2.0


def test_part_samples_users_and_keeps_ids():
    log = data.simulate(n_users=60, n_items=50, n_exposed=30, seed=1).interactions
    found = defaults.sample_core(log, 30, 0, 2, share=0.5)
    assert found.n_users <= 30
    assert min(found.degrees.min(), found.item_counts.min()) >= 2
    pairs = set(zip(log.user_ids[log.users], log.item_ids[log.items], strict=True))
    own = zip(found.user_ids[found.users], found.item_ids[found.items], strict=True)
    assert set(own) <= pairs
    again = defaults.sample_core(log, 30, 0, 2, share=0.5)
    np.testing.assert_array_equal(again.items, found.items)


def test_baselines_are_evaluated_on_split_of_run():
    log = data.simulate(n_users=60, n_items=50, n_exposed=30, seed=1).interactions
    found = {r["method"]: r["ndcg@20"] for r in defaults.evaluate_baselines(log)}
    split = data.split_by_ratio(log, test=0.2, seed=0)
    counts = np.asarray(split.train.item_counts, float)
    layout = metrics.eval_layout(split.train, split.test)
    lists = []
    for user in layout.users:
        scores = counts.copy()
        own = slice(*split.train.indptr[user : user + 2])
        scores[split.train.items[own]] = -np.inf
        lists.append(np.argsort(-scores, kind="stable")[:20])
    values = metrics.evaluate_lists(np.array(lists), layout, ks=(20,))
    assert found["popularity"] == pytest.approx(float(np.mean(values["ndcg@20"])), rel=1e-6)
