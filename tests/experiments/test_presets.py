"""Settings by device, and the batch size and learning rate of ``--batch-size auto``."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from _helpers.refusals import raises
from _helpers.studies import prepare

from experiments._schema import to_json
from experiments.recommend import _study, main, presets
from experiments.recommend._config import SCHEMA, Config
from experiments.recommend._ranking import scaled_rates
from experiments.recommend._study import Recommend
from experiments.recommend._update import make_optimizer
from experiments.recommend.presets import auto_batch_size, device_preset

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def device(platform, kind):
    return SimpleNamespace(platform=platform, device_kind=kind)


T4 = device_preset(device("gpu", "Tesla T4"))


@pytest.mark.parametrize(
    ("platform", "kind", "name"),
    [
        ("cpu", "cpu", "CPU"),
        ("gpu", "Tesla T4", "T4"),
        ("gpu", "NVIDIA L4", "L4"),
        ("gpu", "NVIDIA L40S", "other GPU"),
        ("gpu", "NVIDIA A100-SXM4-40GB", "A100"),
        ("gpu", "NVIDIA H100 80GB HBM3", "H100"),
        ("tpu", "TPU v5 lite", "TPU v5e"),
        ("tpu", "TPU v6 lite", "TPU v6e"),
        ("tpu", "TPU v9", "other TPU"),
        ("METAL", "T1", "other GPU"),
    ],
)
def test_preset_matches_device_kind(platform, kind, name):
    assert device_preset(device(platform, kind)).name == name
    assert device_preset().name == "CPU"


@pytest.mark.parametrize(
    ("growth", "n", "epochs", "size", "want"),
    [
        (1, 10**9, 16, 400, 1024),
        (8, 10**9, 16, 400, 8192),
        (8, 10**9, 16, 2**30 / 4096, 4096),  # a quarter of 4 GiB holds 4 x 1 GiB / 4 of arrays
        (8, 4096 * 20, 16, 400, 4096),  # 20 steps of 16 epochs
        (8, 4096 * 20 - 4096, 16, 400, 2048),
        (8, 100, 16, 400, 1024),  # never below the default
        (8, 10**9, 16, 1e12, 1024),
    ],
)
def test_auto_batch_size_respects_limits(growth, n, epochs, size, want):
    preset = replace(T4, growth=growth, memory=16)
    assert auto_batch_size(preset, 1024, n, epochs, size) == want


@pytest.fixture
def t4(monkeypatch):
    """Makes the first device a T4, with fewer steps, as the data are small."""
    monkeypatch.setattr(_study, "device_preset", lambda: T4)
    monkeypatch.setattr(presets, "MIN_STEPS", 1)


@pytest.mark.parametrize("flags", [[], ["--loss", "info_nce"], ["--encoder", "lightgcn"]])
def test_auto_batch_size_is_default_on_cpu(ratings, flags):
    flags = ["--data", str(ratings), "--loss", "bpr", *flags]
    auto, _ = prepare(Recommend(), [*flags, "--batch-size", "auto"])
    assert auto == prepare(Recommend(), flags)[0]


@pytest.mark.usefixtures("t4")
def test_auto_batch_size_scales_learning_rate_on_accelerator(ratings):
    flags = ["--data", str(ratings), "--loss", "bpr"]
    default, problem = prepare(Recommend(), flags)
    n = len(problem.train)
    assert n < 1024
    config, _ = prepare(Recommend(), [*flags, "--batch-size", "auto"])
    assert (default.training.batch_size, config.training.batch_size) == (1024, 4096)
    assert config.training.lr_scale == 2
    rates = [make_optimizer(each.training).learning_rate for each in (default, config)]
    assert rates[1] == 2 * rates[0]
    numbers = {"lr": np.array([0.1]), "seeds": np.array([0])}
    assert scaled_rates(config, numbers) == {"lr": pytest.approx([0.2]), "seeds": [0]}
    description = list(Recommend().describe_data(config, problem))
    assert "4,096 interactions per step; learning rates × 2" in description
    again = Recommend().prepare(config, problem)
    assert again.training == config.training


@pytest.mark.usefixtures("t4")
def test_search_over_losses_keeps_auto_batch_size(ratings):
    config, problem = prepare(Recommend(), ["--data", str(ratings), "--batch-size", "auto"])
    assert config.training.batch_size == "auto"
    assert "batch size by the loss, at most 4 × its default" in Recommend().describe_data(
        config, problem
    )
    stored = to_json(config)
    assert SCHEMA.from_json(stored, Path("config.json")) == config


def test_rejects_invalid_batch_sizes(ratings, capsys):
    assert main(["--data", str(ratings), "--batch-size", "0"]) == 2
    assert (
        "--batch-size must be a whole number in [1, 2147483647], or auto" in capsys.readouterr().err
    )
    stored = to_json(Config())
    stored["training"]["batch_size"] = "automatic"
    with raises(ValueError, match="expected a whole number in .*, or auto, got"):
        SCHEMA.from_json(stored, Path("config.json"))
