"""Contrastive loss with attention over several positives and over negatives."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, count_unmasked, masked_mean
from .._scaling import subtract_row_max
from ._common import all_positives, finish, per_anchor_loss, prepare
from ._estimators import biased_log_sum
from ._logspace import softplus


@per_anchor_loss
@check_arguments
def attention_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_scale: hp.Positive = 1.0,
    neg_scale: hp.Positive = 1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""AttentionNCE loss: InfoNCE of an attention-weighted positive and rescaled negatives.

    .. math::
        \ell = -\log \frac{e^{\bar s/t}}{e^{\bar s/t} + \sum_j e^{N b_j s_j/t}}, \qquad
        \bar s = \sum_m a_m s^+_m, \quad
        a = \mathrm{softmax}\Bigl(\frac{s^+}{d^+}\Bigr), \quad
        b = \mathrm{softmax}\Bigl(\frac{s}{d^-}\Bigr)

    The attention weights :math:`a` and :math:`b` are treated as constants in the gradient. The
    positive is the score of a prototype, the weighted mean of the embeddings of the positives: a
    small :math:`d^+` ignores dissimilar positives. The weight of a negative multiplies its score,
    as if its embedding were scaled: a small :math:`d^-` emphasizes the most similar negatives and
    moves the others towards score 0. As :math:`d^+, d^- \to \infty`, equal to :func:`info_nce` of
    the mean positive.

    The published code adds :math:`10^{-6}` to :math:`b`, which is omitted here.

    Args:
      pos: Scores :math:`s^+_m` of the M positives of each anchor, such as further views, shape
        ``[*batch, n_pos]`` (same rank as ``neg``); or ``[*batch]`` for one positive per anchor.
      pos_scale: Scale :math:`d^+ > 0` of the attention over positives, in units of the undivided
        scores; a scalar or an array that broadcasts to ``[*batch]``.
      neg_scale: Scale :math:`d^- > 0` of the attention over negatives, likewise.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Liu, `AttentionNCE: Contrastive Learning with Instance Attention
      <https://openreview.net/forum?id=FfHGAAoSVJ>`_, 2025, and its published code.

    >>> pos, neg = jnp.array([[0.8, 0.6, -0.2]]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{attention_contrastive(pos, neg, temperature=0.5):.4f}")
    1.4945
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    batch, dtype = a.pos.shape, a.pos.dtype
    pos_scale, neg_scale = (
        expand_anchor_axis(per_anchor(name, value, batch, dtype))
        for name, value in (("pos_scale", pos_scale), ("neg_scale", neg_scale))
    )
    positive = a.pos
    if a.extra is not None:
        positives = all_positives(a)
        positive = jnp.sum(_attention(positives, pos_scale, None) * positives, axis=-1)
    count = expand_anchor_axis(count_unmasked(a.neg, a.where)).astype(dtype)
    scaled = count * _attention(a.neg, neg_scale, a.where) * a.neg
    log_g = biased_log_sum(scaled, temperature=a.temperature, where=a.where)
    return finish(softplus(log_g - positive / a.temperature), a, reduce_fn)


def _attention(scores: Array, scale: Array, where: Array | None) -> Array:
    """Softmax of the scores divided by the scale, without a gradient."""
    # Subtract the maximum before scaling, which could overflow.
    below, _ = subtract_row_max(scores if where is None else jnp.where(where, scores, -jnp.inf))
    weights = jax.nn.softmax(below / scale, axis=-1, where=where)
    return jax.lax.stop_gradient(weights)
