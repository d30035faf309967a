"""Sigmoid loss of SigLIP for pairs of two modalities."""

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
    r"""Sigmoid loss of SigLIP: binary cross-entropy of each pair, independent of the others.

    .. math::
        \ell = -\log \sigma(s^+/t + b) - \sum_j \log \sigma(-s_j/t - b)

    The mean over the pairs of a batch, see :func:`tower_scores`, is the published loss. Either
    modality may provide the anchors, since the sum over all pairs is symmetric. Unlike in
    :func:`bce`, negatives are summed, not averaged, and outweigh the positive at initialization
    unless the bias compensates: for batch size n, initialize :math:`b \le -\log n`.

    Args:
      pos: Scores :math:`s^+` of the positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      bias: Finite bias :math:`b`; a scalar or an array that broadcasts to ``[*batch]``. The
        paper learns bias and temperature, initialized to -10 and 0.1.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match, ``temperature`` is not positive or ``bias`` not finite.

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
