"""Tests of the weights under over-smoothing: measured values, and the files of the target."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.reproduction import read_csv, write_dataset

from crl_jax import models
from crl_jax.data import Interactions
from experiments.reproduce import main, smoothing

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
RNG = np.random.default_rng(0)


def tables_with_spread(spread):
    """Returns tables with scores of this spread around 1, in the same order for any spread."""
    users = np.tile([1.0, 0.0], (6, 1))
    items = np.stack([1 + spread * np.random.default_rng(1).normal(size=40), np.ones(40)], axis=1)
    return models.Tables(*(jnp.asarray(x, jnp.float32) for x in (users, items)))


def test_hcl_weight_deviation_vanishes_with_spread_unlike_bcl():
    """Values match a NumPy reference over the unseen items of each user."""
    log = Interactions.from_arrays(np.arange(6), np.arange(6), item_ids=np.arange(40))
    found = {
        spread: smoothing.measure(tables_with_spread(spread), log) for spread in (1.0, 0.1, 0.01)
    }
    for spread, of in found.items():
        scores = np.asarray(tables_with_spread(spread).items[:, 0], np.float64)
        rows = [np.delete(scores, user) for user in range(6)]
        assert of["spread"] == pytest.approx(np.mean([row.std() for row in rows]), rel=1e-4)
        weights = [np.exp(row) / np.exp(row).mean() for row in rows]
        want = np.mean([w.std() for w in weights])
        assert of["hcl_deviation"] == pytest.approx(want, rel=1e-3)
        share = np.mean([w.sum() ** 2 / (w**2).sum() / 39 for w in weights])
        assert of["hcl_share"] == pytest.approx(share, rel=1e-3)
    assert found[0.01]["hcl_deviation"] < 0.02 * found[1.0]["hcl_deviation"]
    assert found[0.01]["bcl_deviation"] == pytest.approx(found[1.0]["bcl_deviation"], rel=1e-4)
    assert found[0.01]["bcl_deviation"] > 0.1


def test_last_layer_encoder_has_one_hot_layer_weights():
    log = Interactions.from_arrays([0, 0, 1], [0, 1, 1])
    encoder = models.LightGCN.from_interactions(log, dim=2, n_layers=3)
    mean, last = smoothing._encoders(encoder, 3).values()
    assert mean is encoder
    assert last.layer_weights == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.filterwarnings("ignore:.*have no interaction in training")
def test_target_writes_row_per_depth_vectors_and_seed(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    folder = write_dataset(tmp_path / "data")

    def fit(method, problem, **rest):
        layers = method.minibatch.layers
        encoder = models.LightGCN.from_interactions(problem.train, dim=4, n_layers=layers)
        params = {seed: encoder.init(jax.random.key(int(seed))) for seed in rest["seeds"]}
        return SimpleNamespace(encoder=encoder, get_params=params.__getitem__)

    monkeypatch.setattr(smoothing, "fit_minibatch", fit)
    monkeypatch.setattr(smoothing, "LAYERS", (1, 2))
    flags = ["--data", str(folder), "--seeds", "2", "--out", str(tmp_path / "out")]
    assert main(["section-6.6.3.1", *flags]) == 0
    rows = read_csv(tmp_path / "out" / "section-6.6.3.1.csv")
    assert [(r["layers"], r["vectors"], r["seed"]) for r in rows] == [
        (layers, name, seed)
        for layers in ("1", "2")
        for seed in ("0", "1")
        for name in ("mean of layers", "last layer")
    ]
    assert all(0 < float(row["hcl_share"]) <= 1 for row in rows)
    assert (tmp_path / "out" / "section-6.6.3.1.png").stat().st_size > 5000
