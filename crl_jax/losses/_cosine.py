"""Cosine contrastive loss of SimpleX."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import NonNegative, Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import finish, prepare, row_mean
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def cosine_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    margin: NonNegative = 0.4,
    repulsion: NonNegative = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Cosine contrastive loss (CCL), with a hinge on the negatives.

    .. math::
        \ell = 1 - \frac{s^+}t + \lambda \frac1N \sum_j \max\Bigl(\frac{s_j}t - m,\, 0\Bigr)

    Negatives below the margin have no effect. Intended for cosine similarities; with unbounded
    scores the loss has no lower bound.

    Args:
      pos: Scores :math:`s^+` of the positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      margin: Margin :math:`m \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      repulsion: Weight :math:`\lambda \ge 0` of the negative term; a scalar or an array that
        broadcasts to ``[*batch]``. Typically in the hundreds with many negatives.
      temperature: As in :func:`bpr`; not part of the published loss.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or a hyper-parameter is out of range.

    References:
      Mao et al., `SimpleX: A Simple and Strong Baseline for Collaborative Filtering
      <https://arxiv.org/abs/2109.12613>`_, 2021.

    >>> pos, neg = jnp.array([0.75]), jnp.array([[0.5, -0.5]])
    >>> print(cosine_contrastive(pos, neg, margin=0.25, repulsion=2.0))
    0.5
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    batch, dtype = a.pos.shape, a.pos.dtype
    margin = expand_anchor_axis(per_anchor("margin", margin, batch, dtype))
    repulsion = per_anchor("repulsion", repulsion, batch, dtype)
    excess = jnp.maximum(a.neg / a.temperature - margin, 0)
    return finish(1 - a.pos / a.temperature + repulsion * row_mean(excess, a.where), a, reduce_fn)
