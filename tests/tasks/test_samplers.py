"""Training with samplers: hyper-parameter sweeps, checkpointed state, and errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers import ranking
from _helpers.killing import Killed, kill_at
from _helpers.refusals import raises

from crl_jax import data, losses, samplers, train
from crl_jax.models import MatrixFactorization

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


@pytest.fixture(scope="module")
def split():
    log = data.simulate(n_users=30, n_items=40, n_exposed=30, seed=1).interactions
    return data.split_by_ratio(log, test=0.2)


def fit(split, sampler, **changes):
    settings = {
        "loss": losses.bpr, "epochs": 3, "batch_size": 64, "learning_rate": 0.05,
        "held_out": split.test, "sampler": sampler,
    }  # fmt: skip
    return ranking.fit(split.train, **{**settings, **changes})


def bns(split, **changes):
    return samplers.BNS(samplers.popularity_prior(split.train), **changes)


def test_samplers_combine_with_extra_positives(split):
    fitted = fit(
        split, bns(split), loss=losses.hard_contrastive, n_neg=3, n_pos=2, epochs=2,
        hyperparams={"tau_plus": 0.1, "beta": 1.0},
    )  # fmt: skip
    for entry in fitted.history:
        assert np.isfinite(entry["loss"]).all()
        assert 0 <= entry["tnr"][0] <= 1
        assert -1 <= entry["inf"][0] <= 1


def test_oracle_prior_never_samples_held_out_items(split):
    """Confirms the reported rate of true negatives."""
    sure = samplers.oracle_prior(split.test, false=1.0, true=0.0)
    oracle = fit(split, samplers.BNS(sure, candidates=None)).history[-1]
    uniform = fit(split, samplers.RNS()).history[-1]
    assert oracle["tnr"] == [1.0]
    left = split.train.n_users * split.train.n_items - len(split.train)
    assert uniform["tnr"][0] == pytest.approx(1 - len(split.test) / left, abs=0.05)


def test_swept_sampler_parameters_match_separate_runs(split):
    together = fit(split, bns(split), sweep={"task.sampler.risk_lambda": [0.5, 20.0]})
    for run, gain in enumerate((0.5, 20.0)):
        alone = fit(split, bns(split, risk_lambda=gain))
        for name, values in alone.get_params().items():
            np.testing.assert_allclose(together.get_params(run)[name], values, rtol=1e-3, atol=1e-5)
    assert together.history[0]["loss"][0] != together.history[0]["loss"][1]


def test_resume_restores_sampler_state(split, tmp_path):
    sampler = bns(split, ecdf_samples=8)
    whole = fit(split, sampler, epochs=4)
    path = tmp_path / "state.npz"

    with raises(Killed):
        fit(split, sampler, epochs=4, checkpoint=path, seconds=0.0, see=kill_at(2))
    resumed = fit(split, sampler, epochs=4, checkpoint=path)
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    other = dataclasses.replace(sampler, prior=samplers.uniform_prior(40))
    with raises(ValueError, match=r"another training: expected task\.sampler"):
        fit(split, other, epochs=4, checkpoint=path)
    with raises(ValueError, match="belongs to another training: expected"):
        fit(split, sampler, epochs=4, checkpoint=path, held_out=None)


@pytest.mark.slow
def test_row_updates_with_several_seeds_match_separate_runs(split):
    settings = {
        "by_rows": True, "rule": train.rows.sgd, "batch_size": 1, "draw_batches": 50,
        "l2_target": "rows", "weight_decay": 0.01, "epochs": 2,
    }  # fmt: skip
    both = fit(split, bns(split), seeds=[3, 4], **settings)
    alone = fit(split, bns(split), seeds=4, **settings)
    for name, values in alone.get_params().items():
        np.testing.assert_allclose(both.get_params(1)[name], values, rtol=1e-5, atol=1e-7)
    assert both.history[-1]["tnr"][1] == pytest.approx(alone.history[-1]["tnr"][0])


def test_validation_metric_receives_parameters_of_each_run(split):
    def norms(scale, task, params, model_state):
        return {"norm": scale * jnp.linalg.norm(params["users"])}

    hook = train.ValidationMetrics(jax.tree_util.Partial(norms, jnp.float32(2)))
    fitted = fit(split, None, epochs=3, hooks=[hook], seeds=[0, 1])
    norm = [2 * np.linalg.norm(fitted.get_params(run)["users"]) for run in range(2)]
    np.testing.assert_allclose(fitted.history[-1]["norm"], norm, rtol=1e-5)
    assert len(fitted.history) == 3


def test_rejects_invalid_arguments(split):
    for changes, message in (
        ({"sweep": {"sampler.candidates": [3, 4]}}, "`sweep` must name leaves"),
        ({"sweep": {"task.sampler.risk_lambda": [1.0, -1.0]}}, "`risk_lambda` must lie in"),
        ({"sweep": {"gain": [1.0, -1.0]}}, "`sweep` must name .* got 'gain'"),
        (
            {"by_rows": True},
            "`l2_target` must be rows with the `weight_decay` of a RowOptimizer.*got 'tables'",
        ),
        (
            {
                "by_rows": True,
                "l2_target": "rows",
                "sampler": samplers.RNS(),
                "compute_dtype": "bfloat16",
            },
            "`compute_dtype` must be None and `accumulate` 1",
        ),
        (
            {"by_rows": True, "l2_target": "rows", "sampler": samplers.DNS(3)},
            "`sampler` DNS scores rows with pending lazy updates",
        ),
        ({"draw_batches": 0}, "`draw_batches` must be at least 1, got 0"),
        (
            {
                "by_rows": True,
                "l2_target": "rows",
                "sampler": samplers.RNS(),
                "encoder": Whole(30, 40, 4),
            },
            "`encoder` must compute each embedding from one row with a RowOptimizer, got Whole",
        ),
        (
            {"encoder": Whole(30, 41, 4)},
            "`encoder` must have 30 users and 40 items, got 30 and 41",
        ),
    ):
        with raises(ValueError, match=message):
            fit(split, **{"sampler": bns(split), **changes})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Whole(MatrixFactorization):
    """An encoder that declares that its vectors depend on other rows."""

    by_rows = False
