"""Saving and loading round-trips; damaged files raise one-line errors; exports are readable."""

import json
import os
import struct
import sys

import numpy as np
import polars
import pytest
from _helpers.refusals import raises

from crl_jax import train
from crl_jax.data import Interactions
from crl_jax.serving import Recommender

INTEGERS = np.array([7, 3, 2**40]), np.array([1, 2, 3, 4])
TEXT = np.array(["größer", "010", "b"]), np.array(["a", "b", "c", "d"])
MIXED = INTEGERS[0], TEXT[1]


def recommender(ids=INTEGERS, similarity="inner") -> Recommender:
    users, items = np.array([0, 0, 2]), np.array([3, 1, 0])
    log = Interactions.from_arrays(
        users, items, ratings=[1, 2, 3], user_ids=ids[0], item_ids=ids[1]
    )
    rng = np.random.default_rng(0)
    return Recommender.from_tables((rng.normal(size=(3, 5)), rng.normal(size=(4, 5))), log,
                          similarity=similarity)  # fmt: skip


@pytest.mark.parametrize("ids", [INTEGERS, TEXT, MIXED])
@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_round_trip(tmp_path, ids, similarity):
    model = recommender(ids, similarity)
    model.save(tmp_path / "run" / "recommender.npz")
    for path in (tmp_path / "run", str(tmp_path / "run" / "recommender.npz")):
        got = Recommender.load(path)
        assert repr(got) == repr(model)
        assert got.known.fingerprint() == model.known.fingerprint()
        np.testing.assert_array_equal(got.users, model.users)
        np.testing.assert_array_equal(got.items, model.items)
        assert got.recommend(k=4).to_dict() == model.recommend(k=4).to_dict()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
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


def test_a_recommender_that_is_not_there(tmp_path):
    with raises(FileNotFoundError, match=r"No recommender in .*: it holds no recommender"):
        Recommender.load(tmp_path)
    with raises(FileNotFoundError, match=r"No recommender in .*x\.npz: there is no such"):
        Recommender.load(tmp_path / "x.npz")


@pytest.mark.parametrize("keep", [0, 1, 300, -1, -40])
def test_a_file_cut_short_is_named(tmp_path, keep):
    path = tmp_path / "recommender.npz"
    recommender().save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with raises(ValueError, match=r"recommender\.npz: expected a complete checkpoint"):
        Recommender.load(tmp_path)


def test_another_file_is_named(tmp_path):
    path = tmp_path / "state.npz"
    path.write_text("user,item\n1,2\n")
    with raises(ValueError, match=r"state\.npz: expected a complete checkpoint"):
        Recommender.load(path)
    train.save_checkpoint(path, {"users": np.zeros(3)}, {"epoch": 3})
    with raises(ValueError, match=r"state\.npz: expected a recommender, got another file"):
        Recommender.load(path)
    recommender().export(path)
    with raises(ValueError, match=r"state\.npz: expected"):
        Recommender.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "expected version 1 of the format, got 2: another release"),
        ({"version": None}, "expected version 1"),
        ({"similarity": "dot"}, "expected similarity inner or cosine, got 'dot'"),
        ({"indptr": np.array([0, 2, 1, 3])}, "`indptr` must increase"),
        ({"indptr": np.array([0.0, 2, 2, 3])}, "indptr"),
        ({"taken": np.array([1, 3, 9], np.int32)}, r"`items` must lie in \[0, 4\)"),
        ({"taken": np.array([1, 3, 0])}, "items.*i(nt)?64"),
        ({"user_ids": np.array([7, 7, 1])}, "`user_ids` must be distinct"),
        ({"user_ids": np.array([7.0, 3, 1])}, "`user_ids` must be .* got .* float64"),
        ({"user_ids": np.array([7, 3])}, "`indptr` must have shape"),
        ({"users": np.zeros((2, 5))}, "`users` must have a row for each"),
        ({"users": np.full((3, 5), np.nan)}, "NaN or infinity in 3 of 3 rows"),
        ({"users": np.full((3, 5), "x")}, "`users` must be numbers"),
        ({"users": None}, r"expected the arrays .* got \['indptr', 'item_ids', 'items', 'taken'"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, change, message):
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


def safetensors(path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """A file that follows the format strictly: every byte of the buffer belongs to one array."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, buffer = json.loads(content[8 : 8 + length]), content[8 + length :]
    assert content[8:9] == b"{"
    texts, arrays, ends = header.pop("__metadata__", {}), {}, [0]
    for name, about in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        start, end = about["data_offsets"]
        assert start == ends[-1]
        ends.append(end)
        dtype = {"F32": "<f4", "I64": "<i8"}[about["dtype"]]
        assert (8 + length + start) % np.dtype(dtype).itemsize == 0
        arrays[name] = np.frombuffer(buffer[start:end], dtype).reshape(about["shape"])
    assert ends[-1] == len(buffer)
    return arrays, texts


@pytest.mark.parametrize("ids", [INTEGERS, TEXT, MIXED])
@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_exports_hold_vectors_and_ids(tmp_path, ids, similarity):
    model = recommender(ids, similarity)
    for ending in ("npz", "safetensors", "parquet"):
        model.export(tmp_path / "deep" / f"x.{ending}")
    users, items = vectors(model)
    wanted = {"users": users, "items": items, "user_ids": ids[0], "item_ids": ids[1]}

    with np.load(tmp_path / "deep" / "x.npz") as stored:
        assert sorted(stored) == sorted(wanted)
        for name, array in wanted.items():
            check(stored[name], array)
    arrays, texts = safetensors(tmp_path / "deep" / "x.safetensors")
    assert sorted([*arrays, *texts]) == sorted(wanted)
    for name, array in wanted.items():
        check(arrays[name] if name in arrays else np.array(json.loads(texts[name])), array)

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


@pytest.mark.parametrize("ids", [INTEGERS, TEXT, MIXED])
def test_the_package_of_the_format_reads_the_export(tmp_path, ids):
    numpy = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    model = recommender(ids)
    model.export(tmp_path / "x.safetensors")
    got = numpy.load_file(tmp_path / "x.safetensors")
    np.testing.assert_array_equal(got["users"], model.users)
    np.testing.assert_array_equal(got["items"], model.items)
    from safetensors import safe_open

    with safe_open(tmp_path / "x.safetensors", "np") as file:
        texts = file.metadata() or {}
    for name, array in (("user_ids", ids[0]), ("item_ids", ids[1])):
        stored = got[name].tolist() if name in got else json.loads(texts[name])
        assert stored == array.tolist()


def test_another_ending_is_refused(tmp_path):
    with raises(ValueError, match=r"`path` must end in one of \.npz, .*got '.*x\.csv'"):
        recommender().export(tmp_path / "x.csv")
    assert not list(tmp_path.iterdir())


def test_parquet_without_polars_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with raises(ValueError, match=r"needs the package polars: pip install"):
        recommender().export(tmp_path / "x.parquet")
    assert not list(tmp_path.iterdir())


def test_safetensors_without_its_package_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    with raises(ValueError, match=r"needs the package safetensors: pip install"):
        recommender().export(tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())


def test_ids_too_long_for_a_safetensors_header_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("crl_jax.serving._export._HEADER_LIMIT", 20)
    with raises(ValueError, match=r"header of at most 20; export to \.npz or \.parquet"):
        recommender(TEXT).export(tmp_path / "x.safetensors")
    assert not list(tmp_path.iterdir())
