"""Spherical k-means: clusters of unit vectors, whose centroids are prototypes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

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

    @classmethod
    def initial(cls, n: int, k: int, dim: int) -> "Clustering":
        """Returns a clustering that no loss may use yet: centroids of 0."""
        return cls(
            jnp.zeros(n, jnp.int32), jnp.zeros((k, dim), jnp.float32), jnp.ones(k, jnp.float32)
        )

    def scores(
        self, z: Float[Array, "batch dim"], index: Int[Array, "batch"]
    ) -> tuple[Float[Array, "batch"], Float[Array, "batch k"], Bool[Array, "batch k"]]:
        """Scores of embeddings with centroids.

        Args:
          z: Embeddings of the examples at ``index``.
          index: Indices of the clustered examples.

        Returns:
          The score with the centroid of the example's cluster, those with all centroids, and the
          mask of the other clusters.
        """
        positive = self.assignment[index]
        scores = z @ self.centroids.T
        ids = jnp.arange(len(self.centroids), dtype=jnp.int32)
        pos = jnp.take_along_axis(scores, positive[:, None], axis=1)[:, 0]
        return pos, scores, positive[:, None] != ids[None, :]


def spherical_kmeans(
    key: Key[Array, ""],
    x: Float[Array, "n dim"],
    k: int,
    *,
    n_iterations: int = 20,
    block_size: int = 1024,
) -> Clustering:
    r"""K-means with cosine similarity, initialized by ``k`` distinct examples.

    Empty clusters move to the examples farthest from their own centroids. Eq. 12 of Li et al. and
    its published code, with the concentration

    .. math::
        \phi_c = \frac{\sum_{i \in c} \lVert x_i - c \rVert}{|c| \log(|c| + 10)}

    Clusters of at most one example take the largest of the others; then all are clipped to their
    10th and 90th percentiles, and divided by their mean.
    """

    def assign(centroids: Array) -> tuple[Array, Array]:
        def assign_rows(rows: Array) -> tuple[Array, Array]:
            scores = jnp.matmul(rows, centroids.T, precision=jax.lax.Precision.HIGHEST)
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
