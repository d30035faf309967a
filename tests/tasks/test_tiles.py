"""Tasks with tiles of the score matrix equal those with all scores, in values and gradients."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.platforms import lowered_for
from _helpers.programs import in_one
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, POINTS, Jitter, ctx, jitter

from crl_jax import losses, tasks
from crl_jax.tasks import CLIP, AlphaFromLabels, LabelledExamples, SimCLR, SupCon
from crl_jax.train import Batch

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

binned = partial(losses.bayesian_contrastive, bins=8)
BCL: dict[str, Any] = {"tau_plus": 0.2, "beta": 0.9}
ALPHA = AlphaFromLabels(0.8)
ROWS = np.arange(0, 64, 9)  # all classes occur; metrics cover all 16 anchors of SimCLR
TASKS = {
    "SimCLR": SimCLR(LINEAR, Jitter(), BCL | {"temperature": 0.3}, binned, alpha=ALPHA),
    "CLIP": CLIP(LINEAR, LINEAR, 0.3, 0.0, binned, BCL, augment_first=Jitter()),
}


def batch_of(task, seed=1):
    points = POINTS if isinstance(task, SimCLR) else (POINTS, POINTS[:, ::-1])
    data = jax.tree.map(lambda x: jnp.asarray(x[ROWS]), LabelledExamples(points, LABELS))
    return in_one(task.batch, jax.random.key(seed), Batch(jnp.arange(len(ROWS)), data))


@pytest.mark.parametrize("tile", [3, "fused"])
@pytest.mark.parametrize("name", TASKS)
def test_tiled_step_matches_full_score_matrix(name, tile):
    """The last two examples are padding."""
    task = TASKS[name]
    params, model_state = in_one(task.init, jax.random.key(0))
    batch = batch_of(task)

    def value_and_gradients(tile):
        tiled = replace(task, tile=tile)
        return jax.jit(jax.value_and_grad(tiled.loss, has_aux=True))(
            params, model_state, batch, ctx(len(ROWS), len(ROWS) - 2)
        )

    got, want = value_and_gradients(tile), value_and_gradients(None)
    metrics = want[0][1][1]
    assert 0 < metrics["false_negatives"] < 1
    if name == "CLIP":  # metrics of all scores have both directions
        for result in (got, want):
            del result[0][1][1]["auc"]
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-4, atol=2e-6), got, want)


@pytest.mark.parametrize("name", TASKS)
def test_fused_losses_use_kernels_on_tpu_only(name):
    task = replace(TASKS[name], tile="fused")
    params, model_state = in_one(task.init, jax.random.key(0))
    args = params, model_state, batch_of(task), ctx(len(ROWS), len(ROWS))
    gradient = jax.value_and_grad(task.loss, has_aux=True)
    for platform, has_kernels in (("tpu", True), ("cuda", False), ("cpu", False)):
        assert ("tpu_custom_call" in lowered_for(platform, gradient, *args)) == has_kernels


class _OwnLosses(SimCLR):
    def losses(self, inputs, mask, hyperparams):
        return super().losses(inputs, mask, hyperparams) / 2


@pytest.mark.usefixtures("unchecked")
def test_rejects_unsupported_tiles():
    tiles: list[Any] = [0, True, "all", 2.0]
    for tile in tiles:
        with raises(ValueError, match="`tile` must be a positive integer, 'fused' or None, got"):
            CLIP(LINEAR, LINEAR, tile=tile)
    for make, name in (
        (SupCon, "SupCon"), (_OwnLosses, "_OwnLosses"),
        (partial(tasks.MoCo, momentum=0.9, dim=5, queue=24), "MoCo"),
        (partial(tasks.MultiView, n_positives=2), "MultiView"),
    ):  # fmt: skip
        with raises(ValueError, match=f"`tile` must be None for {name}, got 5"):
            make(LINEAR, jitter, tile=5)
    with raises(ValueError, match="`tile` must be None for SogCLIP, got 'fused'"):
        tasks.SogCLIP(LINEAR, LINEAR, n_examples=64, tile="fused")
