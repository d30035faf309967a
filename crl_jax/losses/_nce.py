"""Noise-contrastive estimation."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._hyperparams import (
    FINITE,
    PerAnchor,
    Range,
    Temperature,
    check_arguments,
    expand_anchor_axis,
    per_anchor,
)
from .._reduce import ReduceFn, count_kept, masked_mean
from ._common import beside, finish, prepare, row_mean
from ._logspace import softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_log_noise: Annotated[PerAnchor, FINITE],
    neg_log_noise: Annotated[PerAnchor, FINITE],
    ratio: Annotated[PerAnchor | None, Range(0.0, jnp.inf, low_open=True, high_open=True)] = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Noise-contrastive estimation (NCE) loss.

    .. math::
        \ell = -\log \frac{u^+}{u^+ + k q^+}
               - \frac{k}{N} \sum_j \log \frac{k q_j}{u_j + k q_j}, \qquad u = e^{s/t}

    Binary cross-entropy of classifying observations against k noise samples each. It trains
    scores to be self-normalised log-probabilities, without a sum over all items. As k grows,
    the gradient converges to that of maximum likelihood.

    Args:
      pos: Scores :math:`s^+` of the observed items, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the noise samples, shape ``[*batch, n_neg]``.
      pos_log_noise: Log-probability :math:`\log q^+` of the observed item under the noise
        distribution; a scalar or an array that broadcasts to ``[*batch]``.
      neg_log_noise: Log-probabilities :math:`\log q_j` of the noise samples; a scalar, such as
        ``-log(n_items)`` for uniform noise, or an array that broadcasts to
        ``[*batch, n_neg]``.
      ratio: Number :math:`k > 0` of noise samples per observation; a scalar or an array that
        broadcasts to ``[*batch]``. ``None`` means the number of unmasked noise samples.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. At least float32.

    Raises:
      ValueError: If shapes are incompatible, ``ratio`` or ``temperature`` is not positive, or
        a noise log-probability is not finite.

    References:
      Gutmann and Hyvärinen, `Noise-contrastive estimation
      <https://proceedings.mlr.press/v9/gutmann10a.html>`_, 2010, Eq. 3; Mnih and Teh, `A
      Fast and Simple Algorithm for Training Neural Probabilistic Language Models
      <https://arxiv.org/abs/1206.6426>`_, 2012, Eq. 8.

    >>> pos, neg = jnp.array([0.0]), jnp.array([[-1.0, -2.0]])
    >>> uniform = -jnp.log(10.0)
    >>> print(f"{nce(pos, neg, pos_log_noise=uniform, neg_log_noise=uniform):.4f}")
    1.7427
    """
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    if ratio is None:
        k = count_kept(a.neg, a.where).astype(a.neg.dtype)
    else:
        k = per_anchor("ratio", ratio, a.pos.shape, a.pos.dtype)
    log_k = jnp.log(k)
    data_noise = log_k + beside("pos_log_noise", pos_log_noise, a.pos, a.kept)
    drawn_noise = expand_anchor_axis(log_k) + beside("neg_log_noise", neg_log_noise, a.neg, a.where)
    missed = softplus(data_noise - a.pos / a.temperature)
    false_alarm = row_mean(softplus(a.neg / a.temperature - drawn_noise), a.where)
    return finish(missed + k * false_alarm, a, reduce_fn)
