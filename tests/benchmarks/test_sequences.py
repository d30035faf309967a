"""Sequential-recommendation benchmark: epoch of the evaluated encoder."""

import json

import pytest

from benchmarks import sequences


@pytest.mark.parametrize(("patience", "epoch", "score"), [(20, 5, 0.4), (None, 10, 0.3)])
def test_best_epoch_comes_from_first_final_seed(patience, epoch, score, tmp_path):
    entries = [
        ("search", 0, 5, 0.9), ("final", 0, 5, 0.4), ("final", 0, 10, 0.3), ("final", 1, 5, 0.8),
    ]  # fmt: skip
    names = "phase", "run", "epoch", "valid_ndcg@10"
    lines = [json.dumps(dict(zip(names, entry, strict=True))) for entry in entries]
    (tmp_path / "history.jsonl").write_text("\n".join(lines) + "\n")
    found = sequences.best_epoch(tmp_path, patience)
    assert found == {"best_epoch": epoch, "valid_ndcg@10": score}
