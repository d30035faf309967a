"""Several positive views per example."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.views import LABELS, LINEAR, POINTS, Jitter

from crl_jax import losses, tasks, train

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

INDICES = jnp.array([3, 60, 17, 33])
REAL = jnp.array([True, True, True, False])


@pytest.mark.parametrize("labelled", [True, False])
def test_both_anchors_share_the_positives(labelled):
    """Three real examples: six anchors with two positives and four negatives each."""
    task = tasks.MultiView(LINEAR, Jitter(0.3), {"temperature": 0.5}, n_positives=2)
    data = jnp.asarray(POINTS)[INDICES]
    if labelled:
        data = tasks.LabelledExamples(data, jnp.asarray(LABELS, jnp.int32)[INDICES])

    @jax.jit
    def step(key):
        params, state = task.init(key)
        batch = task.batch(key, train.Batch(INDICES, data))
        ctx = train.StepContext(key, jnp.int32(0), jnp.float32(0), REAL, jnp.float32(3))
        views = batch.first, batch.second, *batch.positives
        z, _ = task.encode_views(params, state, *views)
        return views, z, *task.loss(params, state, batch, ctx)

    views, z, loss, (_, metrics) = step(jax.random.key(0))
    assert len(views) == 4
    distances = [np.abs(a - b).max() for i, a in enumerate(views) for b in views[:i]]
    assert min(distances) > 0.1  # all views are different
    assert ("auc" in metrics) == labelled

    first, second, *positives = (np.float64(x)[:3] for x in z)
    anchors = np.concatenate([first, second])
    pos = np.stack([(anchors * np.tile(p, (2, 1))).sum(1) for p in positives], axis=1)
    example = np.tile(np.arange(3), 2)
    where = example[:, None] != example[None, :]
    want = losses.attention_contrastive(
        jnp.float32(pos), jnp.float32(anchors @ anchors.T), where=where, temperature=0.5
    )
    np.testing.assert_allclose(loss, want, rtol=1e-4)
