"""How often the floor of the debiased estimates holds."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import check_range
from .._reduce import masked_mean
from ..weights._per_anchor import PerAnchor, Scalar, per_anchor
from ._denominators import hard_log_sum
from ._logspace import log_count


def floor_hit_rate(
    neg: Float[Array, "*batch n_neg"],
    pos: Float[Array, "*batch n_pos"],
    *,
    tau_plus: PerAnchor,
    beta: PerAnchor = 0.0,
    min_score: PerAnchor = -1.0,
    temperature: Scalar = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> Float[Array, ""]:
    r"""Share of anchors whose debiased estimate is clamped at its floor.

    There the subtracted positives outweigh what the negatives sum up to,

    .. math::
        \frac{1}{\tau^-}\Bigl[\frac1N \sum_j w_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr] < e^{s_{\min}/t}

    and the anchor's negatives take no gradient. Often so, ``tau_plus`` is too large for
    this encoder, or :math:`K` too small.

    Args:
      neg: Scores of an anchor with its negatives, shape ``[*batch, n_neg]``.
      pos: Scores of the same anchor with draws from its positives, shape ``[*batch, n_pos]``.
      tau_plus: Prior in [0, 1) that a sample is in truth a positive.
      beta: Concentration >= 0 of :func:`hard_log_sum`; 0 is
        :func:`debiased_log_sum`.
      min_score: The smallest value that a score can take. With ``-jnp.inf`` the estimates that
        are not positive count.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read, and an
        anchor without any does not count.

    Returns:
      A scalar in [0, 1], at least float32; 0 if no anchor counts, NaN if a score that counts is.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8.

    >>> neg, pos = jnp.log(jnp.array([[1.0, 2.0], [6.0, 9.0]])), jnp.log(jnp.array([[6.0], [6.0]]))
    >>> print(floor_hit_rate(neg, pos, tau_plus=0.5))  # 1.5 - 3 < 0 is, 7.5 - 3 is not
    0.5
    """
    log_true = hard_log_sum(
        neg,
        pos,
        tau_plus=tau_plus,
        beta=beta,
        min_score=-jnp.inf,
        temperature=temperature,
        where=where,
    )
    dtype = log_true.dtype
    check_range("min_score", min_score, -jnp.inf, jnp.inf, high_open=True, dtype=dtype)
    log_true = log_true - log_count(neg, where).astype(dtype)
    floor = per_anchor("min_score", min_score, log_true.shape, dtype)
    floor = floor / jnp.asarray(temperature, dtype)
    hit = ((log_true < floor) | jnp.isneginf(log_true)).astype(dtype)
    hit = jnp.where(jnp.isnan(log_true), jnp.nan, hit)
    counts = jnp.ones(hit.shape, bool) if where is None else jnp.any(where, axis=-1)
    return masked_mean(hit, where=counts)
