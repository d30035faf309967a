"""Bilateral softmax loss, with separate temperatures for positives and negatives."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import (
    NonNegative,
    Positive,
    Temperature,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import ReduceFn, masked_mean
from ._common import finish, prepare
from ._logspace import log_mean_exp
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def bilateral_softmax(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    repulsion: NonNegative = 1.0,
    pos_temperature: Positive | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bilateral softmax loss (BSL), robust to noisy positives and negatives.

    .. math::
        \ell = -\log \frac1{1+M} \sum_m e^{s^+_m/t^+} + c \log \frac1N \sum_j e^{s_j/t}

    The loss of the paper is this one with :math:`c = t/t^+`, multiplied by :math:`t^+`. The
    published code uses a single temperature and c from 0.84 to 1.22. A small :math:`t`
    emphasizes the hardest negatives. A large :math:`t^+` weights all positives of an anchor
    evenly; a small one emphasizes those with the highest scores. The loss is bounded below only
    if the scores are bounded, as cosine similarities are.

    With one positive, c = 1 and a single temperature, equal to :func:`decoupled_contrastive`
    minus :math:`\log N`.

    Args:
      pos: Scores of the positives, shape ``[*batch, 1 + M]`` (same rank as ``neg``), or
        ``[*batch]`` for one positive per anchor.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      repulsion: Weight :math:`c \ge 0` of the negative term; a scalar or an array that
        broadcasts to ``[*batch]``.
      pos_temperature: Temperature :math:`t^+ > 0` of the positives; a scalar or an array that
        broadcasts to ``[*batch]``. ``None`` means ``temperature``.
      temperature: Temperature :math:`t > 0` of the negatives.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or a hyper-parameter is out of range.

    References:
      Wu et al., `BSL: Understanding and Improving Softmax Loss for Recommendation
      <https://arxiv.org/abs/2312.12882>`_, 2024, and its published code.

    >>> pos, neg = jnp.array([[0.9, 0.5]]), jnp.array([[0.1, 0.8, -0.3]])
    >>> print(f"{bilateral_softmax(pos, neg, temperature=0.5, repulsion=0.9):.4f}")
    -0.7517
    """
    a = prepare(
        pos, neg, temperature=temperature, where=where, weights=weights, extra_positives=True
    )
    dtype = a.pos.dtype
    repulsion = per_anchor("repulsion", repulsion, a.pos.shape, dtype)
    t_pos = jnp.broadcast_to(a.temperature, a.pos.shape)
    if pos_temperature is not None:
        t_pos = per_anchor("pos_temperature", pos_temperature, a.pos.shape, dtype)
    attraction = a.pos / t_pos
    if a.extra is not None:
        positives = jnp.concatenate([a.pos[..., None], a.extra], axis=-1)
        attraction = log_mean_exp(positives / expand_anchor_axis(t_pos))
    crowd = log_mean_exp(a.neg / a.temperature, where=a.where)
    if a.kept is not None:  # the log-mean-exp of an empty set is -inf
        crowd = jnp.where(a.kept, crowd, 0)
    return finish(repulsion * crowd - attraction, a, reduce_fn)
