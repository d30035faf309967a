"""Flags --tile of the representation-learning commands and --bins of the Bayesian loss."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from _helpers.modalities import MODALITIES
from _helpers.refusals import raises
from _helpers.studies import finish, history, prepare, read, refused, task_of

from crl_jax import losses
from experiments import images
from experiments._schema import to_json
from experiments.images._config import SCHEMA, Config
from experiments.view_losses import IMAGE_LOSSES, LOSSES, PAIR_LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "pixel_encoder")
TILED = {"images": [], "graphs": [], "text": ["--method", "dropout"], "pairs": []}


@pytest.mark.parametrize("name", TILED)
def test_tiles_and_bins_reach_the_task(name, texts):
    of = MODALITIES[name]
    flags = [*of.flags(texts), *TILED[name], "--loss", "bayesian"]
    config, problem = prepare(of.new_study, [*flags, "--tile", "8"])
    task = task_of(of.new_study, config, problem)
    assert (task.tile, task.loss_fn) == (8, losses.bayesian_contrastive)
    config, problem = prepare(of.new_study, [*flags, "--tile", "fused", "--bins", "32"])
    first, second = (task_of(of.new_study, config, problem) for _ in range(2))
    assert (first.tile, first.loss_fn.keywords) == ("fused", {"bins": 32})
    assert first.loss_fn.func is losses.bayesian_contrastive
    assert first.loss_fn is second.loss_fn  # so that both are compiled once
    stored = to_json(config)
    assert (stored["training"]["tile"], stored["objective"]["bins"]) == ("fused", 32)
    assert of.new_study.schema.from_json(stored, Path("config.json")) == config


def test_directclr_supports_tiles():
    flags = ["--method", "directclr", "--first-features", "8", "--width", "4", "--tile", "8"]
    config, problem = prepare(MODALITIES["images"].new_study, flags)
    assert task_of(MODALITIES["images"].new_study, config, problem).tile == 8


@pytest.mark.slow
def test_tiled_training_matches_untiled(texts, first_features, tmp_path):
    """Label metrics of the history may differ: those of tiles are computed on the first anchors."""
    flags = [*MODALITIES["images"].flags(texts), "--loss", "bayesian", "--bins", "16"]
    whole = finish(images.main, tmp_path / "whole", flags)
    for tile in ("16", "fused"):
        tiled = finish(images.main, tmp_path / tile, [*flags, "--tile", tile])
        for got, want in zip(history(tiled), history(whole), strict=True):
            assert got["loss"] == pytest.approx(want["loss"], rel=1e-4)
        assert read(tiled, "metrics.json")["linear"] == pytest.approx(
            read(whole, "metrics.json")["linear"], abs=0.03
        )


INVALID_FLAGS = [
    (["--method", "moco", "--tile", "8"], "--method moco has no --tile"),
    (["--tile", "0"], "--tile must be a whole number in [1, 2147483647], or fused, got 0"),
    (["--tile", "fused", "--mesh", "data=1"], "--tile fused is for one device"),
    (["--tile", "fused", "--loss", "adnce"], "hard, bayesian, decoupled, got adnce"),
    (["--tile", "fused", "--loss", "bayesian"], "--loss bayesian needs --bins, such as 128"),
    (["--loss", "bayesian", "--bins", "0"], "--bins must be a whole number in [1, 65536], got 0"),
    (["--loss", "bayesian", "--sweep", "bins=8,9"], "--sweep takes one of"),
]


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        *(("images", *row) for row in INVALID_FLAGS),
        ("text", ["--tile", "8"], "--method triplets has no --tile"),
        ("text", ["--method", "none", "--tile", "8"], "--method none has no --tile"),
        ("graphs", ["--tile", "fused", "--loss", "info_nce_plus"], "got info_nce_plus"),
        ("pairs", ["--tile", "8", "--loss", "sogclip"], "--loss sogclip has no --tile"),
        ("pairs", ["--tile", "fused", "--loss", "siglip"], "clip, debiased, hard, bayesian"),
    ],
)
def test_rejects_invalid_tiles(name, flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert message in refused(MODALITIES[name].module.main, flags, capsys)


@pytest.mark.parametrize("stored", [7.5, "many", True, -1])
def test_rejects_invalid_stored_tile(stored):
    config = to_json(Config())
    config["training"]["tile"] = stored
    with raises(
        ValueError, match="training.tile: expected a whole number .*, or fused, or null, got"
    ):
        SCHEMA.from_json(config, Path("config.json"))


def test_older_config_loads_without_tile_and_bins(texts):
    flags = [*MODALITIES["images"].flags(texts), "--loss", "bayesian"]
    config, _ = prepare(MODALITIES["images"].new_study, flags)
    stored = to_json(config)
    del stored["training"]["tile"], stored["objective"]["bins"]
    assert SCHEMA.from_json(stored, Path("config.json")) == config
    del stored["objective"]["beta"]
    with raises(ValueError, match="beta"):
        SCHEMA.from_json(stored, Path("config.json"))


@pytest.mark.parametrize("entries", [LOSSES, IMAGE_LOSSES, PAIR_LOSSES])
def test_fused_entries_match_supported_losses(entries):
    views = jax.random.normal(jax.random.key(0), (2, 4, 3))
    for entry in entries.values():
        own = {"tau_plus": 0.1, "beta": 0.9, "temperature": 0.5}
        given = {name: x for name, x in own.items() if name in {*entry.hyperparams, "temperature"}}
        given |= {"bins": 8} if "bins" in entry.settings else {}
        if entry.is_fused:
            value = losses.fused_view_loss(entry.loss, *views, **given)
            assert jnp.isfinite(value)
        else:
            with raises(ValueError, match="`loss` must be one of"):
                losses.fused_view_loss(entry.loss, *views, **given)
