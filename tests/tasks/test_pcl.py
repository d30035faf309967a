"""Spherical k-means, and the prototypes of PCL."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import apply, in_one
from _helpers.refusals import raises
from _helpers.views import LABELS, LINEAR, NORMED, POINTS, Jitter, ctx, fit, jitter, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import losses, train
from crl_jax.tasks import PCL, MoCo, _kmeans

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

PCL = PCL(
    NORMED, jitter, {"temperature": 0.2}, momentum=0.9, dim=8, queue=32, data=jnp.asarray(POINTS),
    clusters=(4,), warm_up=1, n_iterations=5, block_size=20,
)  # fmt: skip
spherical_kmeans = jax.jit(
    _kmeans.spherical_kmeans, static_argnames=("k", "n_iterations", "block_size")
)  # fmt: skip


def clusters_of(seed, k, x=POINTS, **rest):
    x = jnp.asarray(unit(x), jnp.float32)
    return x, spherical_kmeans(jax.random.key(seed), x, k, **rest)


def concentrations(x, centres, own):
    """Eq. 12 with the changes of the published code, cluster by cluster."""
    each = np.zeros(len(centres))
    for c, centre in enumerate(centres):
        members = x[own == c]
        if len(members) > 1:
            distances = np.linalg.norm(members - centre, axis=1)
            each[c] = distances.mean() / np.log(len(members) + 10)
    each[[np.sum(own == c) <= 1 for c in range(len(centres))]] = each.max()
    each = np.clip(each, np.percentile(each, 10), np.percentile(each, 90))
    return each / each.mean()


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 1000), st.sampled_from([2, 5, 9]))
def test_kmeans_converges_to_fixed_point(seed, k):
    x, found = clusters_of(seed, k, n_iterations=30)
    x, centres = np.asarray(x, np.float64), np.asarray(found.centroids, np.float64)
    own = np.asarray(found.assignment)
    scores = x @ centres.T
    np.testing.assert_allclose(scores[np.arange(len(x)), own], scores.max(axis=1), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-5)
    want = concentrations(x, centres, own)
    np.testing.assert_allclose(found.concentration, want, rtol=2e-3)
    # After this number of iterations on 64 points, each centre is the mean direction.
    means = unit([x[own == c].sum(axis=0) for c in range(k)])
    np.testing.assert_allclose(centres, means, atol=1e-5)


def test_block_size_does_not_change_clusters():
    _, whole = clusters_of(0, 5)
    _, parts = clusters_of(0, 5, block_size=7)
    np.testing.assert_array_equal(whole.assignment, parts.assignment)
    np.testing.assert_allclose(whole.centroids, parts.centroids, atol=1e-6)


def test_kmeans_recovers_classes():
    """The best of a few initialisations recovers the classes as clusters."""
    found = [np.asarray(clusters_of(seed, 4)[1].assignment) for seed in range(8)]
    same = LABELS[:, None] == LABELS
    assert max(np.mean((own[:, None] == own) == same) for own in found) > 0.98


def test_kmeans_refills_empty_clusters():
    """Centroids coincide initially because 29 of the 32 examples are identical.

    One iteration moves the centroids of empty clusters to the other examples.
    """
    x = np.vstack([np.tile([1.0, 0, 0, 0], (29, 1)), np.eye(4)[1:]])
    for seed in range(5):
        _, found = clusters_of(seed, 4, x, n_iterations=1)
        assert set(np.asarray(found.assignment)) == set(range(4))
        np.testing.assert_allclose(found.concentration, 1, rtol=1e-6)


def prototype_loss(query, model_state, index, t):
    """Reference by loops: the loss of the clusters alone, averaged over clusterings."""
    terms = []
    for own, centres, phi in model_state.clusterings:
        own = np.asarray(own)
        for z, i in zip(unit(query), index, strict=True):
            logits = z @ np.asarray(centres, np.float64).T / np.asarray(phi, np.float64) / t
            terms.append(np.log(np.exp(logits).sum()) - logits[own[i]])
    return np.mean(terms)


def test_loss_is_sum_of_moco_and_prototype_terms():
    task = dataclasses.replace(PCL, network=LINEAR, dim=5, clusters=(4, 6))
    params, model_state = in_one(task.init, jax.random.key(0))
    model_state = in_one(task.start_epoch, jax.random.key(1), params, model_state, jnp.int32(1))
    index = jnp.array([5, 40, 3, 63, 17, 5, 5, 5])
    batch = in_one(task.batch, jax.random.key(2), train.Batch(index, None))
    query = np.asarray(batch.first @ params["linear"]["kernel"])[:5]
    loss, (after, metrics) = in_one(task.loss, params, model_state, batch, ctx(8, 5, epoch=1))
    want = prototype_loss(query, model_state, np.asarray(index)[:5], 0.2)
    np.testing.assert_allclose(metrics["prototypes"], want, rtol=1e-5)
    plain = MoCo(LINEAR, jitter, {"temperature": 0.2}, dim=5, queue=32)
    instances, (momentum, _) = in_one(
        plain.loss, params, model_state.moco, batch, ctx(8, 5, epoch=1)
    )
    np.testing.assert_allclose(metrics["instances"], instances, rtol=1e-6)
    np.testing.assert_allclose(loss, instances + want, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after.moco, momentum)
    early, (_, metrics) = in_one(task.loss, params, model_state, batch, ctx(8, 5, epoch=0))
    assert early == instances
    assert metrics["prototypes"] == 0


def test_reclusters_unaugmented_examples_after_warm_up():
    task = dataclasses.replace(PCL, augment=Jitter(), clusters=(4, 6))
    params, model_state = in_one(task.init, jax.random.key(0))
    key = jax.random.key(1)
    assert (
        in_one(task.start_epoch, key, params, model_state, jnp.int32(0))
        .clusterings[0]
        .assignment.max()
        == 0
    )
    moved = jax.tree.map(lambda x: x + 0.5, model_state.moco.target)
    model_state = model_state._replace(moco=model_state.moco._replace(target=moved))
    found = in_one(task.start_epoch, key, params, model_state, jnp.int32(1)).clusterings
    z, _ = apply(task.network, moved, model_state.moco.target_state, jnp.asarray(POINTS) / 2)
    for i, (clustering, k) in enumerate(zip(found, (4, 6), strict=True)):
        want = spherical_kmeans(
            jax.random.fold_in(key, 2 + i), losses.normalize(z), k, n_iterations=5
        )
        np.testing.assert_array_equal(clustering.assignment, want.assignment)
        np.testing.assert_allclose(clustering.centroids, want.centroids, atol=1e-5)


@pytest.mark.parametrize("changes", [{"clusters": (4, 1)}, {"clusters": (65,)}, {"data": None}])
def test_rejects_invalid_clusters(changes):
    with raises(ValueError, match="`clusters` must lie between 2 and the"):
        fit(dataclasses.replace(PCL, **changes), epochs=1)
