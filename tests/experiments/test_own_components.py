"""Tests of custom losses, samplers and encoders, given by import path."""

import json
import textwrap
from pathlib import Path

import pytest
from _helpers.commands import forget_own
from _helpers.refusals import raises

from experiments._schema import to_json
from experiments._study_command import configure
from experiments.recommend import main
from experiments.recommend._config import SCHEMA, Config
from experiments.recommend._study import Recommend
from experiments.recommend.contrasts import LOSSES as CONTRAST_LOSSES
from experiments.recommend.contrasts import resolve_contrast_flags
from experiments.recommend.encoders import ENCODERS
from experiments.recommend.objectives import OBJECTIVES
from experiments.recommend.sampling import SAMPLERS
from experiments.view_losses import IMAGE_LOSSES, LOSSES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

CODE = '''
from dataclasses import field
from typing import Annotated

import jax
import jax.numpy as jnp

from crl_jax import Range, models, pytree_dataclass, samplers


def hinge(
    pos,
    neg,
    *,
    margin: Annotated[float, Range(0)] = 1.0,
    power: Annotated[float, Range(1, 4)] = 2.0,
    temperature=1.0,
    where=None,
    reduce_fn=None,
):
    """Hinge of a power.

    Args:
      margin: Distance to keep.
      power: Exponent of the hinge.
    """
    each = jnp.maximum(margin - pos[:, None] + neg, 0) ** power
    return jnp.mean(each, axis=1, where=True if where is None else where)


def clash(pos, neg, *, epochs: Annotated[float, Range(0)] = 1.0, reduce_fn=None):
    """Has a hyper-parameter that is a flag already."""
    return pos


@pytree_dataclass
class Clumped(samplers.RNS):
    """Uniform negatives under another name.

    Attributes:
      spread: How far they lie apart.
    """

    spread: Annotated[float, Range(0, 1)] = 0.5


@pytree_dataclass
class Scaled(models.MatrixFactorization):
    """Scaled vectors.

    Attributes:
      factor: Factor on the vectors of users.
    """

    factor: Annotated[float, Range(0)] = field(default=2.0, kw_only=True)

    def encode(self, params, key=None):
        tables = super().encode(params, key)
        return models.Tables(self.factor * tables.users, tables.items)
'''
FLAGS = [
    "--loss", "own_parts:hinge", "--margin", "0.5", "--sampler", "own_parts:Clumped", "--spread",
    "0.25", "--encoder", "own_parts:Scaled", "--factor", "3",
]  # fmt: skip


@pytest.fixture(autouse=True)
def own_components(tmp_path, monkeypatch):
    """Creates a module in the working directory, and unregisters its components afterwards."""
    (tmp_path / "own_parts.py").write_text(textwrap.dedent(CODE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    forget_own(OBJECTIVES, SAMPLERS, ENCODERS, LOSSES, IMAGE_LOSSES, CONTRAST_LOSSES)


def test_custom_component_flags_come_from_signatures():
    config, _, _ = configure(Recommend(), FLAGS)
    assert (config.objective.margin, config.objective.power) == (0.5, None)
    assert (config.sampling.spread, config.encoding.factor) == (0.25, 3)
    with raises(ValueError, match="--power must be a number in \\[1, 4\\], got 5"):
        configure(Recommend(), [*FLAGS, "--power", "5"])
    with raises(ValueError, match="has no --tau-plus; it takes .*--power"):
        check_flags([*FLAGS, "--tau-plus", "0.1"])
    stored = to_json(config)
    assert to_json(SCHEMA.from_json(stored, Path("config.json"))) == stored


def check_flags(flags):
    """Runs the checks that follow flag parsing."""
    config, _, _ = configure(Recommend(), flags)
    SCHEMA.resolve_flags(config)


@pytest.mark.slow
def test_run_trains_custom_components_and_resumes(ratings, tmp_path):
    flags = [*FLAGS, "--data", str(ratings), "--final-training", "train"]
    flags += ["--epochs", "2", "--sweep", "power=1,2"]
    assert main([*flags, "--out", str(tmp_path / "run")]) == 0
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["objective"]["loss"] == "own_parts:hinge"
    assert stored["encoding"]["factor"] == 3
    point = json.loads((tmp_path / "run" / "metrics.json").read_text())["chosen"]["point"]
    assert point["power"] in (1, 2)
    (tmp_path / "run" / "metrics.json").unlink()
    assert main(["--resume", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["chosen"]["point"] == point


def test_flag_overrides_custom_loss_of_config(tmp_path):
    config, _, _ = configure(Recommend(), [*FLAGS, "--power", "3"])
    (tmp_path / "own.json").write_text(json.dumps(to_json(config)))
    other, _, _ = configure(Recommend(), ["--config", str(tmp_path / "own.json"), "--loss", "bpr"])
    assert other.objective.loss == "bpr"
    assert (other.sampling.spread, other.encoding.factor) == (0.25, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_parts:clash", "own_parts:clash: its hyper-parameter epochs has the name of another"),
        ("own_parts:nothing", "own_parts:nothing cannot be imported: .*no attribute 'nothing'"),
        ("own_absent:hinge", "own_absent:hinge cannot be imported: No module named 'own_absent'"),
    ],
)
def test_rejects_invalid_custom_loss(name, message):
    with raises(ValueError, match=message):
        configure(Recommend(), ["--loss", name])
    stored = to_json(Config())
    stored["objective"]["loss"] = name
    with raises(ValueError, match=message):
        SCHEMA.from_json(stored, Path("config.json"))


def test_image_views_accept_custom_loss():
    from experiments.images._config import SCHEMA, Config

    config = SCHEMA.parse(["--loss", "own_parts:hinge", "--margin", "0.5"], Config(), "")
    assert SCHEMA.resolve_flags(config)["loss"] == {"margin": 0.5, "power": 2.0}


def test_contrasts_accept_custom_loss():
    flags = ["--contrast", "xsimgcl", "--contrast-loss", "own_parts:hinge"]
    config, _, _ = configure(Recommend(), [*flags, "--contrast-margin", "2"])
    assert resolve_contrast_flags(config.contrasting, "lightgcn", ())["contrast_margin"] == 2.0
    with raises(ValueError, match="--contrast-power must be a number in \\[1, 4\\], got 5"):
        configure(Recommend(), [*flags, "--contrast-power", "5"])


def test_help_shows_flags_of_chosen_loss(capsys):
    with pytest.raises(SystemExit):
        configure(Recommend(), ["--loss", "dpl", "--help"])
    shown = capsys.readouterr().out
    assert "--tau-plus" in shown
    assert "--floor" in shown
    assert "--beta" not in shown
    with pytest.raises(SystemExit):
        configure(Recommend(), ["--loss", "own_parts:hinge", "--help"])
    assert "Exponent of the hinge (in [1, 4]" in " ".join(capsys.readouterr().out.split())
