"""The page of the package runs as it stands."""

import re
from pathlib import Path

from crl_jax import serving


def test_the_examples_run_in_a_row(tmp_path, monkeypatch, capsys):
    page = (Path(serving.__file__).parent / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 4
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "runs", "vectors.npz", "vectors.parquet", "vectors.safetensors",
    ]  # fmt: skip
    log = names["log"]
    assert len(names["everyone"]) == log.n_users
    assert set(names["few"].items[0].tolist()) <= {*range(100, 120), -1}
    assert not {7, 8} & set(names["some"].items.ravel().tolist())
    had = log.items[log.indptr[17] : log.indptr[18]]
    assert not set(log.item_ids[had].tolist()) & set(names["best"].items[0].tolist())
    assert names["several"].users.tolist() == ["ann", "bob"]
