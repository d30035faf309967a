"""Spherical k-means on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._permutation import permute
from ..losses import normalize

# The published smoothing constant of concentrations, for clusters of few examples.
_SMOOTHING = 10
# Lower bound of a concentration relative to their mean: most examples coincide with the centroid.
_MIN_CONCENTRATION = 1e-3


class Clustering(NamedTuple):
    r"""Clusters of unit vectors.

    Attributes:
      assignment: Cluster of each example, ``[n]``.
      centroids: Normalized centroids, ``[k, dim]``.
      concentration: The :math:`\phi` of each cluster, ``[k]``: small for tight clusters, 1 on
        average.
    """

    assignment: Int[Array, "n"]
    centroids: Float[Array, "k dim"]
    concentration: Float[Array, "k"]


def spherical_kmeans(
    key: Key[Array, ""],
    x: Float[Array, "n dim"],
    k: int,
    *,
    n_iterations: int = 20,
    block_size: int = 1024,
) -> Clustering:
    r"""K-means with cosine similarity, initialized by ``k`` distinct examples.

    Empty clusters move to the examples farthest from their own centroids. The concentration is

    .. math::
        \phi_c = \frac{\sum_{i \in c} \lVert x_i - c \rVert}{|c| \log(|c| + 10)}

    Clusters of at most one example take the largest of the others; then all are clipped to their
    10th and 90th percentiles, and divided by their mean.

    Args:
      key: Random key of the initialization.
      x: Unit vectors, shape ``[n, dim]``.
      k: Number of clusters, at most n.
      n_iterations: Number of updates of the centroids.
      block_size: Number of rows that are compared with all centroids at a time.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 12 and its published code.
    """

    def assign(centroids: Array) -> tuple[Array, Array]:
        def assign_rows(rows: Array) -> tuple[Array, Array]:
            scores = rows @ centroids.T
            best = jnp.max(scores, axis=1)
            # The first maximum. On CPUs jnp.argmax alone costs more than the product.
            ids = jnp.arange(k, dtype=jnp.int32)[None, :]
            return jnp.min(jnp.where(scores == best[:, None], ids, k), axis=1), best

        return map_blocks(assign_rows, x, block_size)

    def update(centroids: Array, _: None) -> tuple[Array, None]:
        assignment, score = assign(centroids)
        means = normalize(jax.ops.segment_sum(x, assignment, k))
        empty = _cluster_sizes(assignment, k) == 0
        farthest = jax.lax.top_k(-score, k)[1]
        replacements = x[farthest[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
        return jnp.where(empty[:, None], replacements, means), None

    initial = x[permute(key, jnp.arange(k, dtype=jnp.int32), x.shape[0])]
    centroids, _ = jax.lax.scan(update, initial, None, length=n_iterations)
    assignment, score = assign(centroids)
    return Clustering(assignment, centroids, _concentrations(assignment, score, k))


def _cluster_sizes(assignment: Array, k: int) -> Array:
    return jax.ops.segment_sum(jnp.ones(assignment.shape, jnp.int32), assignment, k)


def _concentrations(assignment: Array, score: Array, k: int) -> Float[Array, "k"]:
    distance = jnp.sqrt(jnp.maximum(2 - 2 * score, 0))
    size = _cluster_sizes(assignment, k).astype(distance.dtype)
    phi = jax.ops.segment_sum(distance, assignment, k) / jnp.maximum(size, 1)
    phi = jnp.where(size > 1, phi / jnp.log(size + _SMOOTHING), 0)
    phi = jnp.where(size > 1, phi, jnp.max(phi))
    phi = jnp.clip(phi, *jnp.percentile(phi, jnp.array([10.0, 90.0])))
    mean = jnp.mean(phi)
    relative = jnp.maximum(phi / jnp.where(mean > 0, mean, 1), _MIN_CONCENTRATION)
    return jnp.where(mean > 0, relative, 1)
