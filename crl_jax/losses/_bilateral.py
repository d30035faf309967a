"""Softmax loss with a temperature on either side."""

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
    r"""Bilateral softmax loss (BSL): robust to noise among positives and among negatives.

    .. math::
        \ell = -\log \frac1{1+M} \sum_m e^{s^+_m/t^+} + c \log \frac1N \sum_j e^{s_j/t}

    The paper's loss is this one with :math:`c = t/t^+`, times :math:`t^+`. Its code has one
    temperature, and c from 0.84 to 1.22. A smaller :math:`t` stresses the hardest negatives; a
    greater :math:`t^+` makes all positives of an anchor count, a smaller one the likeliest. It has
    no lower bound unless scores have one, as cosines do.

    With one positive, c = 1 and one temperature it is :func:`decoupled_contrastive` less
    :math:`\log N`.

    Args:
      pos: Scores of anchors with their positives. Shape ``[*batch, 1 + M]`` (as many axes as
        ``neg``): all count alike. Shape ``[*batch]``: one each.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      repulsion: The :math:`c \ge 0`; a scalar or an array that broadcasts to ``[*batch]``.
      pos_temperature: The :math:`t^+ > 0` of the positives; a scalar or an array that broadcasts
        to ``[*batch]``. ``None`` means ``temperature``.
      temperature: The :math:`t > 0` of the negatives.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    if a.kept is not None:  # the mean of nothing is -inf
        crowd = jnp.where(a.kept, crowd, 0)
    return finish(repulsion * crowd - attraction, a, reduce_fn)
