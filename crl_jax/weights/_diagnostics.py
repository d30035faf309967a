"""What weights and estimates do to a sample."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._checks import at_least_float32, check_range, check_shape
from .._reduce import masked_mean
from ..stats._ecdf import kept_count
from ._per_anchor import PerAnchor, Scalar, per_anchor


def effective_sample_size(
    weights: Float[Array, "*batch n"],
    *,
    where: Bool[Array, "*batch n"] | None = None,
) -> Float[Array, "*batch"]:
    r"""Number of equally weighted samples that are worth as much as these.

    .. math::
        \mathrm{ESS} = \frac{(\sum_j w_j)^2}{\sum_j w_j^2}

    Near the number of samples the weights hardly matter; near 1 a single one decides. The
    scale of the weights does not matter.

    Args:
      weights: The :math:`w_j \ge 0`, shape ``[*batch, n]``.
      where: True keeps a weight, shape ``[*batch, n]``. Others are never read.

    Returns:
      Shape ``[*batch]``, at least float32: from 1 to the number kept; 0 where no weight is
      positive.

    Raises:
      ValueError: If ``where`` has not the shape of ``weights``.

    References:
      Kish, *Survey Sampling*, 1965, section 11.2.

    >>> print(effective_sample_size(jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])))
    [3. 1.]
    """
    check_shape("where", where, weights.shape)
    (weights,) = at_least_float32(weights)
    if where is not None:
        weights = jnp.where(where, weights, 0)
    top = jnp.max(weights, axis=-1, keepdims=True)  # or the squares may over- or underflow
    weights = weights / jnp.where(top > 0, top, 1)
    squares = jnp.sum(weights**2, axis=-1)
    return jnp.sum(weights, axis=-1) ** 2 / jnp.where(squares > 0, squares, 1)


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
      beta: Concentration >= 0 of :func:`crl_jax.losses.hard_log_sum`; 0 is
        :func:`crl_jax.losses.debiased_log_sum`.
      min_score: The smallest value that a score can take. With ``-jnp.inf`` the estimates that
        are not positive count.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``. Others are never read, and an
        anchor without any does not count.

    Returns:
      A scalar in [0, 1], at least float32; 0 if no anchor counts.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8.

    >>> neg, pos = jnp.log(jnp.array([[1.0, 2.0], [6.0, 9.0]])), jnp.log(jnp.array([[6.0], [6.0]]))
    >>> print(floor_hit_rate(neg, pos, tau_plus=0.5))  # 1.5 - 3 < 0 is, 7.5 - 3 is not
    0.5
    """
    from ..losses import hard_log_sum  # which builds on this package

    check_range("min_score", min_score, -jnp.inf, jnp.inf, high_open=True)
    log_true = hard_log_sum(
        neg,
        pos,
        tau_plus=tau_plus,
        beta=beta,
        min_score=-jnp.inf,
        temperature=temperature,
        where=where,
    )
    count = kept_count(neg, where).astype(log_true.dtype)
    log_true = log_true - jnp.log(count[..., 0] if count.ndim else count)
    floor = per_anchor("min_score", min_score, log_true.shape, log_true.dtype)
    floor = floor / jnp.asarray(temperature, log_true.dtype)
    hit = (log_true < floor) | jnp.isneginf(log_true)
    counts = jnp.ones(hit.shape, bool) if where is None else jnp.any(where, axis=-1)
    return masked_mean(hit.astype(log_true.dtype), where=counts)


class PosteriorByLabel(NamedTuple):
    """Mean posterior of a true negative, apart for those that are and those that are not."""

    true: Float[Array, ""]
    """Mean over the true negatives; the higher, the better."""
    false: Float[Array, ""]
    """Mean over the false negatives; the lower, the better."""


def posterior_by_label(
    posterior: Float[Array, "*batch n_neg"],
    is_true: Bool[Array, "*batch n_neg"],
    *,
    where: Bool[Array, "*batch n_neg"] | None = None,
) -> PosteriorByLabel:
    r"""How well a posterior tells true from false negatives whose labels are known.

    Means over all anchors. A posterior that knows no more than the prior has
    :math:`\tau^-` for both; a calibrated one satisfies
    :math:`\tau^- m_{\text{true}} + \tau^+ m_{\text{false}} = \tau^-`.

    Args:
      posterior: What :func:`true_negative_posterior` gives, shape ``[*batch, n_neg]``.
      is_true: True marks a true negative, shape ``[*batch, n_neg]``.
      where: True keeps a sample, shape ``[*batch, n_neg]``. Others are never read.

    Returns:
      Two scalars, at least float32; 0 for a label that no sample has.

    Raises:
      ValueError: If a shape does not fit.

    >>> p, true = jnp.array([0.95, 0.5, 0.85]), jnp.array([True, False, True])
    >>> means = posterior_by_label(p, true)
    >>> print(f"{means.true:.2f} {means.false:.2f}")
    0.90 0.50
    """
    check_shape("is_true", is_true, posterior.shape)
    check_shape("where", where, posterior.shape)
    (posterior,) = at_least_float32(posterior)
    keep = jnp.ones(posterior.shape, bool) if where is None else where
    return PosteriorByLabel(
        masked_mean(posterior, where=keep & is_true),
        masked_mean(posterior, where=keep & ~is_true),
    )
