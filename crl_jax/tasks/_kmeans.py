"""Clusters of directions, on the device."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._permutation import permute
from ..losses import normalize

# Of the published estimate of a concentration: evens out clusters of few examples.
_SMOOTHING = 10
# The least concentration beside the mean, where most examples of a cluster are its centre.
_LEAST = 1e-3


class Clustering(NamedTuple):
    r"""Clusters of examples by their direction.

    Attributes:
      assignment: The cluster of each example, ``[n]``.
      centres: Directions of the clusters, of length 1, ``[k, dim]``.
      concentration: The :math:`\phi` of each cluster, ``[k]``: small where its examples are near
        their centre, and 1 in the mean.
    """

    assignment: Int[Array, "n"]
    centres: Float[Array, "k dim"]
    concentration: Float[Array, "k"]


def spherical_kmeans(
    key: Key[Array, ""],
    x: Float[Array, "n dim"],
    k: int,
    *,
    n_iterations: int = 20,
    block: int = 1024,
) -> Clustering:
    r"""K-means with cosines, from ``k`` examples that are drawn without replacement.

    A cluster that loses all its examples goes to those farthest from their own centres.

    .. math::
        \phi_c = \frac{\sum_{i \in c} \lVert x_i - c \rVert}{|c| \log(|c| + 10)}

    A cluster of one example or none takes the largest of the others; then all are clipped to their
    10th and 90th percentiles, and divided by their mean.

    Args:
      key: Draws the first centres.
      x: Directions of length 1, shape ``[n, dim]``.
      k: Number of clusters, at most n.
      n_iterations: How often centres move.
      block: Rows that are compared with all centres at a time.

    References:
      Li et al., `Prototypical Contrastive Learning of Unsupervised Representations
      <https://arxiv.org/abs/2005.04966>`_, 2021, Eq. 12 and its published code.
    """

    def nearest(centres: Array) -> tuple[Array, Array]:
        def of(rows: Array) -> tuple[Array, Array]:
            scores = rows @ centres.T
            best = jnp.max(scores, axis=1)
            # The first of the best. On CPUs jnp.argmax alone costs more than the product.
            own = jnp.where(scores == best[:, None], jnp.arange(k, dtype=jnp.int32)[None, :], k)
            return jnp.min(own, axis=1), best

        return map_blocks(of, x, block)

    def move(centres: Array, _: None) -> tuple[Array, None]:
        own, score = nearest(centres)
        moved = normalize(jax.ops.segment_sum(x, own, k))
        empty = _count(own, k) == 0
        farthest = jax.lax.top_k(-score, k)[1]
        instead = x[farthest[jnp.maximum(jnp.cumsum(empty) - 1, 0)]]
        return jnp.where(empty[:, None], instead, moved), None

    first = x[permute(key, jnp.arange(k, dtype=jnp.int32), x.shape[0])]
    centres, _ = jax.lax.scan(move, first, None, length=n_iterations)
    own, score = nearest(centres)
    return Clustering(own, centres, _concentrations(own, score, k))


def _count(own: Array, k: int) -> Array:
    return jax.ops.segment_sum(jnp.ones(own.shape, jnp.int32), own, k)


def _concentrations(own: Array, score: Array, k: int) -> Float[Array, "k"]:
    distance = jnp.sqrt(jnp.maximum(2 - 2 * score, 0))
    count = _count(own, k).astype(distance.dtype)
    each = jax.ops.segment_sum(distance, own, k) / jnp.maximum(count, 1)
    each = jnp.where(count > 1, each / jnp.log(count + _SMOOTHING), 0)
    each = jnp.where(count > 1, each, jnp.max(each))
    each = jnp.clip(each, *jnp.percentile(each, jnp.array([10.0, 90.0])))
    mean = jnp.mean(each)
    return jnp.where(mean > 0, jnp.maximum(each / jnp.where(mean > 0, mean, 1), _LEAST), 1)
