"""The cosine contrastive loss of SimpleX."""

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
    r"""Cosine contrastive loss (CCL): negatives count from a margin on.

    .. math::
        \ell = 1 - \frac{s^+}t + \lambda \frac1N \sum_j \max\Bigl(\frac{s_j}t - m,\, 0\Bigr)

    Of many negatives, the easy ones drop out. Scores are cosines; others work, but then the
    loss has no lower bound.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      margin: The :math:`m \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      repulsion: The :math:`\lambda \ge 0`; a scalar or an array that broadcasts to
        ``[*batch]``. With many negatives it is in the hundreds.
      temperature: Divides all scores, as in :func:`bpr`; the paper has none.
      where: As in :func:`bpr`.
      weights: As in :func:`bpr`.
      reduce_fn: As in :func:`bpr`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
