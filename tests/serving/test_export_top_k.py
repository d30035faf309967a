"""Exported functions, loaded by a process that cannot import this package."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import PLATFORMS, exported
from _helpers.refusals import raises, unchecked
from jax import export

from crl_jax import losses
from crl_jax.data import Interactions
from crl_jax.models import Tables
from crl_jax.serving import Recommender, export_top_k

pytestmark = pytest.mark.usefixtures("quick_compiles")

LOSSES = {
    "info_nce": losses.info_nce,
    "debiased": losses.debiased_contrastive,
    "hard": losses.hard_contrastive,
    "pairwise": losses.debiased_pairwise,
    "bayesian": losses.bayesian_contrastive,
}
HEAD = """
import sys
from pathlib import Path
sys.modules["crl_jax"] = None  # an import would fail
import numpy as np
from jax import export
def load(path):
    return export.deserialize(bytearray(Path(path).read_bytes()))
"""


def run_without_crl_jax(code: str, folder) -> None:
    """Runs code in another process, where importing crl_jax fails."""
    subprocess.run([sys.executable, "-c", HEAD + code], check=True, cwd=folder)


def arrays(path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return dict(file)


def make_recommender(similarity="inner", n_items=9) -> Recommender:
    rng = np.random.default_rng(0)
    ids = {"user_ids": np.arange(6), "item_ids": np.arange(n_items) + 100}
    log = Interactions.from_arrays(*np.nonzero(rng.random((6, n_items)) < 0.4), **ids)
    tables = rng.normal(size=(6, 4)), rng.normal(size=(n_items, 4))
    return Recommender.from_tables(tables, log, similarity=similarity)


def pad_known_items(model: Recommender) -> np.ndarray:
    """Items of each user, padded with -1."""
    known = np.full((model.known.n_users, model.known.degrees.max() + 1), -1, np.int32)
    for user, row in enumerate(known):
        items = model.known.items[slice(*model.known.indptr[user : user + 2])]
        row[: len(items)] = items
    return known


@pytest.mark.parametrize("similarity", ["inner", "cosine"])
def test_exported_search_matches_recommender(tmp_path, similarity):
    model = make_recommender(similarity)
    with unchecked():  # symbolic sizes are not ints
        export_top_k(tmp_path / "sub" / "top_k.jax", 8)
    model.export(tmp_path / "vectors.npz")
    np.save(tmp_path / "known.npy", pad_known_items(model))
    run_without_crl_jax(
        """
search = load("sub/top_k.jax").call
vectors, known = np.load("vectors.npz"), np.load("known.npy")
for rows in (slice(0, 1), slice(0, 6)):
    items, scores = search(vectors["users"][rows], vectors["items"], known[rows])
    assert items.dtype == np.int32
np.savez("lists.npz", items=items, scores=scores)
""",
        tmp_path,
    )
    got, want = arrays(tmp_path / "lists.npz"), model.recommend(k=8)
    assert not want.present.all()
    np.testing.assert_array_equal(np.where(want.present, want.items - 100, -1), got["items"])
    np.testing.assert_allclose(got["scores"], want.scores, rtol=1e-5, atol=1e-6)


def test_catalogue_may_be_smaller_than_k(tmp_path):
    with unchecked():
        export_top_k(tmp_path / "top_k.jax", 5, platforms=["cpu"])
    search = export.deserialize(bytearray((tmp_path / "top_k.jax").read_bytes()))
    assert search.platforms == ("cpu",)
    model = make_recommender(n_items=3)
    items, scores = search.call(model.users, model.items, np.full((6, 1), -1, np.int32))
    want = model.recommend(k=5, include_known=True)
    np.testing.assert_array_equal(items, np.where(want.present, want.items - 100, -1))
    np.testing.assert_allclose(scores, want.scores, rtol=1e-5, atol=1e-6)


def test_rejects_invalid_arguments_and_missing_package(tmp_path, monkeypatch):
    with raises(ValueError, match="`k` must be at least 1, got 0"):
        export_top_k(tmp_path / "x", 0)
    with raises(ValueError, match="`platforms` must be one of cpu, cuda, rocm, tpu, got 'gpu'"):
        export_top_k(tmp_path / "x", platforms=["cpu", "gpu"])
    for platforms in ("cpu", ()):
        with raises(ValueError, match=f"`platforms` must be a sequence .* got {platforms!r}"):
            export_top_k(tmp_path / "x", platforms=platforms)
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    with raises(ImportError, match=r"needs flatbuffers: pip install 'crl_jax\[export\]'"):
        export_top_k(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_exported_losses_keep_gradients(tmp_path):
    """For any batch, with a vector-Jacobian product from the file."""
    rng = np.random.default_rng(0)
    pos, neg = (rng.normal(size=shape).astype(np.float32) for shape in ((7,), (7, 33)))
    np.savez(tmp_path / "scores.npz", pos=pos, neg=neg)
    for name, loss in LOSSES.items():
        function = exported(loss, np.zeros(2, np.float32), np.zeros((2, 3), np.float32), b=2, n=3)
        assert function.platforms == PLATFORMS
        (tmp_path / f"{name}.jax").write_bytes(function.serialize(vjp_order=1))
    run_without_crl_jax(
        """
import jax
scores = np.load("scores.npz")
for path in Path().glob("*.jax"):
    value, slopes = jax.value_and_grad(load(path).call, (0, 1))(scores["pos"], scores["neg"])
    np.savez(path.stem + "_got.npz", value=value, pos=slopes[0], neg=slopes[1])
""",
        tmp_path,
    )
    for name, loss in LOSSES.items():
        got = arrays(tmp_path / f"{name}_got.npz")
        value, slopes = jax.jit(jax.value_and_grad(loss, (0, 1)))(
            jnp.asarray(pos), jnp.asarray(neg)
        )
        for field, want in (("value", value), ("pos", slopes[0]), ("neg", slopes[1])):
            np.testing.assert_allclose(got[field], want, rtol=2e-5, atol=1e-7)


def test_export_supports_named_tuples():
    def scores(tables):
        return losses.tower_scores(tables.users, tables.items)

    tables = Tables(np.ones((3, 2), np.float32), np.ones((3, 2), np.float32))
    function = export.deserialize(exported(scores, tables, b=3).serialize())
    got = function.call(jax.tree.map(lambda x: x[:2], tables))
    assert isinstance(got, losses.BatchScores)
    np.testing.assert_array_equal(got.where, [[False, True], [True, False]])
