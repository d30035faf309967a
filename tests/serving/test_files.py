"""Saving and loading round-trips; damaged files raise one-line errors; exports are readable."""

import gc
import json
import os
import re
import sys

import numpy as np
import polars
import pytest
from _helpers.files import space
from _helpers.refusals import raises
from safetensors import safe_open

from crl_jax import train
from crl_jax.data import Interactions
from crl_jax.serving import Recommender

INTEGERS = np.array([7, 3, 2**40]), np.array([1, 2, 3, 4])
TEXT = np.array(["größer", "010", "b"]), np.array(["a", "b", "c", "d"])
MIXED = INTEGERS[0], TEXT[1]


each_ids = pytest.mark.parametrize("ids", [INTEGERS, TEXT, MIXED])
each_similarity = pytest.mark.parametrize("similarity", ["inner", "cosine"])


def recommender(ids=INTEGERS, similarity="inner") -> Recommender:
    log = Interactions.from_arrays(
        [0, 0, 2], [3, 1, 0], ratings=[1, 2, 3], user_ids=ids[0], item_ids=ids[1]
    )
    rng = np.random.default_rng(0)
    tables = rng.normal(size=(3, 5)), rng.normal(size=(4, 5))
    return Recommender.from_tables(tables, log, similarity=similarity)


@each_ids
@each_similarity
def test_save_load_round_trip(tmp_path, ids, similarity):
    model = recommender(ids, similarity)
    model.save(tmp_path / "run" / "recommender.npz")
    for path in (tmp_path / "run", str(tmp_path / "run" / "recommender.npz")):
        got = Recommender.load(path)
        assert repr(got) == repr(model)
        assert got.known.fingerprint() == model.known.fingerprint()
        np.testing.assert_array_equal(got.users, model.users)
        np.testing.assert_array_equal(got.items, model.items)
        assert got.recommend(k=4).to_dict() == model.recommend(k=4).to_dict()


def test_failed_write_keeps_old_file(tmp_path, monkeypatch):
    paths = [tmp_path / f"x.{ending}" for ending in ("npz", "safetensors", "parquet")]
    model, other = recommender(), recommender(similarity="cosine")
    model.save(tmp_path / "recommender.npz")
    for path in paths:
        model.export(path)
    before = [path.read_bytes() for path in paths]

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    for path in paths:
        with raises(OSError, match="disk full"):
            other.export(path)
    with raises(OSError, match="disk full"):
        other.save(tmp_path / "recommender.npz")
    assert [path.read_bytes() for path in paths] == before
    assert Recommender.load(tmp_path).similarity == "inner"


@pytest.mark.parametrize("ending", ["npz", "safetensors", "parquet"])
def test_export_without_disk_space_raises_os_error(ending, tmp_path):
    model, path = recommender(), tmp_path / f"x.{ending}"
    with space(100), raises(OSError, match=re.escape(str(path))):
        model.export(path)
    gc.collect()  # an archive left open fails here, with a warning, which is an error
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("keep", [0, 1, 300, -1, -40])
def test_reports_truncated_file(tmp_path, keep):
    path = tmp_path / "recommender.npz"
    recommender().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with raises(ValueError, match=r"recommender\.npz: expected a complete checkpoint"):
        Recommender.load(tmp_path)


def test_reports_missing_and_foreign_files(tmp_path):
    with raises(FileNotFoundError, match=r"No recommender in .*: it holds no recommender"):
        Recommender.load(tmp_path)
    path = tmp_path / "state.npz"
    with raises(FileNotFoundError, match=r"No recommender in .*state\.npz: there is no such"):
        Recommender.load(path)
    for make, message in (
        (lambda: path.write_text("user,item\n1,2\n"), "expected a complete checkpoint"),
        (
            lambda: train.save_checkpoint(path, {"users": np.zeros(3)}, {"epoch": 3}),
            "expected a recommender, got another file",
        ),
        (
            lambda: train.save_checkpoint(path, {"users": np.zeros(3)}, {"format": ["npz"]}),
            "expected a recommender, got another file",
        ),
        (lambda: recommender().export(path), "expected"),
    ):
        make()
        with raises(ValueError, match=rf"state\.npz: {message}"):
            Recommender.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "expected version 1 of the format, got 2: another release"),
        ({"version": None}, "expected version 1"),
        ({"similarity": "dot"}, "`similarity` must be inner or cosine, got 'dot'"),
        ({"indptr": np.array([0, 2, 1, 3])}, "`indptr` must increase"),
        ({"indptr": np.array([0.0, 2, 2, 3])}, "indptr"),
        ({"taken": np.array([1, 3, 9], np.int32)}, r"`items` must lie in \[0, 4\)"),
        ({"taken": np.array([1, 3, 0])}, "items.*i(nt)?64"),
        ({"user_ids": np.array([7, 7, 1])}, "`user_ids` must be distinct, got 7 2 times"),
        ({"user_ids": np.array([7.0, 3, 1])}, "`user_ids` must be .* got .* float64"),
        ({"user_ids": np.array([7, 3])}, "`indptr` must have shape"),
        ({"users": np.zeros((2, 5))}, "`users` must have a row for each"),
        ({"users": np.full((3, 5), np.nan)}, "NaN or infinity in 3 of 3 rows"),
        ({"users": np.full((3, 5), "x")}, "`users` must be numbers"),
        ({"users": None}, r"expected the arrays .* got \['indptr', 'item_ids', 'items', 'taken'"),
    ],
)
def test_reports_inconsistent_arrays(tmp_path, change, message):
    path = tmp_path / "recommender.npz"
    recommender().save(path)
    tree, meta = train.load_checkpoint(path)
    for name, value in change.items():
        (meta if name in meta else tree)[name] = value
    train.save_checkpoint(path, {n: a for n, a in tree.items() if a is not None}, meta)
    with raises(ValueError, match=r"(?s)recommender\.npz: .*" + message):
        Recommender.load(path)


def vectors(model: Recommender) -> tuple[np.ndarray, np.ndarray]:
    """Tables whose inner products are the scores, in float64."""
    tables = [table.astype(np.float64) for table in (model.users, model.items)]
    if model.similarity == "cosine":
        tables = [table / np.linalg.norm(table, axis=1)[:, None] for table in tables]
    return tables[0], tables[1]


@each_ids
@each_similarity
def test_export_contains_vectors_and_ids(tmp_path, ids, similarity):
    model = recommender(ids, similarity)
    for ending in ("npz", "safetensors", "parquet"):
        model.export(tmp_path / "deep" / f"x.{ending}")
    users, items = vectors(model)
    wanted = {"users": users, "items": items, "user_ids": ids[0], "item_ids": ids[1]}

    with np.load(tmp_path / "deep" / "x.npz") as stored:
        assert sorted(stored) == sorted(wanted)
        for name, array in wanted.items():
            check(stored[name], array)
    with safe_open(tmp_path / "deep" / "x.safetensors", "np") as file:
        texts = file.metadata() or {}
        assert sorted([*file.keys(), *texts]) == sorted(wanted)
        for name, array in wanted.items():
            check(
                np.array(json.loads(texts[name])) if name in texts else file.get_tensor(name), array
            )

    table = polars.read_parquet(tmp_path / "deep" / "x.parquet")
    assert table.columns == ["kind", "id", "vector"]
    for kind, names, own in (("user", ids[0], users), ("item", ids[1], items)):
        part = table.filter(polars.col("kind") == kind)
        text = ids is not INTEGERS  # one column is numeric only if all ids are
        assert part["id"].to_list() == [str(x) if text else x for x in names.tolist()]
        check(part["vector"].to_numpy(), own)


def check(got: np.ndarray, want: np.ndarray) -> None:
    if want.dtype.kind == "f":
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, atol=1e-7)
    else:
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("ending", "change", "message"),
    [
        ("csv", None, r"`path` must end in one of \.npz, .*got '.*x\.csv'"),
        ("parquet", "polars", "needs the package polars: pip install"),
        ("safetensors", "safetensors.numpy", "needs the package safetensors: pip install"),
        ("safetensors", 20, r"header of at most 20; export to \.npz or \.parquet"),
    ],
)
def test_failed_export_leaves_no_file(tmp_path, monkeypatch, ending, change, message):
    """An unknown ending, a package that is missing, and ids that are too long for a header."""
    if isinstance(change, str):
        monkeypatch.setitem(sys.modules, change, None)
    elif change is not None:
        monkeypatch.setattr("crl_jax.serving._export._HEADER_LIMIT", change)
    with raises(ValueError, match=message):
        recommender(TEXT).export(tmp_path / f"x.{ending}")
    assert not list(tmp_path.iterdir())
