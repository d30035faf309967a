"""A sigmoid for each pair of two modalities, in place of a softmax over all of them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import Finite, Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import finish, prepare
from ._logspace import softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def sigmoid_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    bias: Finite = 0.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""SigLIP's loss: each pair by itself is told to belong together or not.

    .. math::
        \ell = -\log \sigma(s^+/t + b) - \sum_j \log \sigma(-s_j/t - b)

    With the pairs of a batch for anchors, see :func:`tower_scores`, the mean is the published
    loss. The anchors may be either of the modalities: the sum over all pairs is the same. Unlike
    in :func:`bce` the negatives are added up, not averaged. So at first they outweigh the one
    positive, unless the bias holds them down: a batch of n starts well with
    :math:`b = -\log n` or below.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      bias: The :math:`b`, any number; a scalar or an array that broadcasts to ``[*batch]``.
        The publication learns it, from -10 on, and the temperature from 0.1 on.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit, ``temperature`` is not positive or ``bias`` not finite.

    References:
      Zhai et al., `Sigmoid Loss for Language Image Pre-Training
      <https://arxiv.org/abs/2303.15343>`_, 2023, Eq. 1, with the sign of the bias as in
      algorithm 1.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{sigmoid_contrastive(pos, neg, bias=-10.0, temperature=0.1):.4f}")
    2.1756
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    b = per_anchor("bias", bias, a.pos.shape, a.pos.dtype)
    together = softplus(-(a.pos / a.temperature + b))
    apart = softplus(a.neg / a.temperature + expand_anchor_axis(b))
    return finish(together + jnp.sum(apart, axis=-1, where=a.where), a, reduce_fn)
