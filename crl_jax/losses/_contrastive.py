r"""Contrastive losses with a choice of estimator for the sum over negatives.

.. math:: \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G} = \mathrm{softplus}(\log G - s^+/t)
"""

from collections.abc import Callable

from jaxtyping import Array, Bool, Float

from .._hyperparams import Alpha, Beta, MinScore, NonNegative, TauPlus, Temperature, check_arguments
from .._reduce import ReduceFn, masked_mean
from ._common import Anchors, finish, prepare
from ._estimators import bayesian_log_sum, biased_log_sum, debiased_log_sum, hard_log_sum
from ._logspace import softplus
from ._protocols import per_anchor_loss


@per_anchor_loss
@check_arguments
def info_nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""InfoNCE loss, also known as NT-Xent; treats every sample as a true negative.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j e^{s_j/t}}

    Equal to :func:`bpr` with one negative.

    Args:
      pos: Scores :math:`s^+` of the positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      temperature: Temperature :math:`t > 0`; divides all scores.
      where: Mask of valid negatives, shape ``[*batch, n_neg]``; masked scores affect neither
        value nor gradient. An anchor without valid negatives has loss 0 and is excluded from
        the reduction.
      weights: Per-anchor loss weights, shape ``[*batch]``, differentiable. ``None`` means 1.
      reduce_fn: Reduction, called as ``reduce_fn(losses, where=anchors_with_negatives)``.
        ``None`` returns per-anchor losses.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or ``temperature`` is not positive.

    References:
      van den Oord et al., `Representation Learning with Contrastive Predictive Coding
      <https://arxiv.org/abs/1807.03748>`_, 2018, Eq. 4; "Contrastive Learning for
      Personalized Recommendation", Eq. 6.2.

    >>> import jax.numpy as jnp
    >>> pos, neg = jnp.array([2.0, 0.0]), jnp.array([[0.0, 1.0], [1.0, 9.0]])
    >>> keep = jnp.array([[True, True], [True, False]])
    >>> print(f"{info_nce(pos, neg, where=keep):.4f}")
    0.8604
    """

    def log_sum(a: Anchors) -> Array:
        return biased_log_sum(a.neg, temperature=a.temperature, where=a.where)

    anchors = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    return contrastive(log_sum, anchors, reduce_fn)


@per_anchor_loss
@check_arguments
def debiased_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus = 0.05,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased contrastive loss; corrects the denominator for expected false negatives.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G}, \qquad
        G = N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr)

    Not to be confused with :func:`decoupled_contrastive`, also abbreviated "DCL".

    Args:
      pos: Scores of the positives. With shape ``[*batch]``, the positive is also the single
        sample, :math:`K = 1`, that estimates the false-negative term. With shape
        ``[*batch, 1 + M]`` (same rank as ``neg``), column 0 is the positive and the other M
        columns are the samples, :math:`K = M`.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative; a
        scalar or an array that broadcasts to ``[*batch]``.
      min_score: Lower bound :math:`s_{\min}` of the scores, -1 for cosine similarities. Use
        ``-jnp.inf`` for unbounded scores: the loss and its gradient are then 0 where the
        estimate is not positive.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or a hyper-parameter is out of range.

    References:
      Chuang et al., `Debiased Contrastive Learning <https://arxiv.org/abs/2007.00224>`_,
      2020, Eq. 8; "Contrastive Learning for Personalized Recommendation", section 5.6.1.4.

    >>> import jax.numpy as jnp
    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{debiased_contrastive(pos, neg, tau_plus=0.1):.4f}")
    0.9680
    >>> pos = jnp.array([[0.8, 0.6, 0.4]])  # with two more positives of the same anchor
    >>> print(f"{debiased_contrastive(pos, neg, tau_plus=0.1):.4f}")
    0.9998
    """

    def log_sum(a: Anchors) -> Array:
        return debiased_log_sum(
            a.neg,
            _draws(a),
            tau_plus=tau_plus,
            min_score=min_score,
            temperature=a.temperature,
            where=a.where,
        )

    anchors = prepare(
        pos, neg, temperature=temperature, where=where, weights=weights, extra_positives=True
    )
    return contrastive(log_sum, anchors, reduce_fn)


@per_anchor_loss
@check_arguments
def hard_contrastive(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus = 0.05,
    beta: NonNegative = 0.5,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased contrastive loss with importance weights for hard negatives.

    :func:`debiased_contrastive` with :math:`e^{s_j/t}` replaced by :math:`w_j e^{s_j/t}`,
    :math:`w_j = e^{\beta s_j/t} / \frac1N \sum_i e^{\beta s_i/t}`. Gradients flow through the
    weights.

    Args:
      pos: As in :func:`debiased_contrastive`, shape ``[*batch]`` or ``[*batch, 1 + M]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative.
      beta: Concentration :math:`\beta \ge 0` on hard negatives; 0 gives
        :func:`debiased_contrastive`. Like ``tau_plus``, a scalar or an array that broadcasts
        to ``[*batch]``.
      min_score: As in :func:`debiased_contrastive`.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match or a hyper-parameter is out of range.

    References:
      Robinson et al., `Contrastive Learning with Hard Negative Samples
      <https://arxiv.org/abs/2010.04592>`_, 2021; "Contrastive Learning for Personalized
      Recommendation", Eq. 5.52.

    >>> import jax.numpy as jnp
    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{hard_contrastive(pos, neg, tau_plus=0.1, beta=1.0):.4f}")
    1.0746
    """

    def log_sum(a: Anchors) -> Array:
        return hard_log_sum(
            a.neg,
            _draws(a),
            tau_plus=tau_plus,
            beta=beta,
            min_score=min_score,
            temperature=a.temperature,
            where=a.where,
        )

    anchors = prepare(
        pos, neg, temperature=temperature, where=where, weights=weights, extra_positives=True
    )
    return contrastive(log_sum, anchors, reduce_fn)


@per_anchor_loss
@check_arguments
def bayesian_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    tau_plus: TauPlus = 0.05,
    alpha: Alpha = 0.9,
    beta: Beta = 0.7,
    bins: int | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian contrastive loss, with rank-based importance weights for the negatives.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j \omega_j e^{s_j/t}}

    with :math:`\omega` from :func:`crl_jax.weights.bayesian_weights`, treated as constant in
    the gradient. Equal to :func:`info_nce` with ``tau_plus=0, beta=0.5``.

    Ranks are invariant to the scale of score differences. With ``beta`` well above 0.5, hard
    negatives therefore keep a large weight even if all scores are almost equal, and the
    embeddings may collapse if positives barely score above negatives. Train with ``beta=0.5``
    until the positives score higher.

    Args:
      pos: Scores :math:`s^+` of the positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` of the negatives, shape ``[*batch, n_neg]``. A
        single negative has the top rank, so use several.
      tau_plus: Prior probability :math:`\tau^+` in [0, 1) of a false negative.
      alpha: Encoder quality in [0.5, 1]: the probability that a positive scores above a
        negative.
      beta: Hardness in [0.5, 1]; 0.5 does not emphasize hard negatives. ``tau_plus``,
        ``alpha`` and ``beta`` are scalars or arrays that broadcast to ``[*batch]``.
      bins: Number of histogram bins for approximate ranks, static; useful with thousands of
        negatives. See :func:`crl_jax.weights.bayesian_weights`.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      Reduced loss, by default the mean over anchors; per-anchor losses ``[*batch]`` if
      ``reduce_fn`` is None. The dtype is at least float32.

    Raises:
      ValueError: If shapes do not match, a hyper-parameter is out of range, or
        ``alpha = beta = 1``.

    References:
      "Contrastive Learning for Personalized Recommendation", Eq. 6.31.

    >>> import jax.numpy as jnp
    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{bayesian_contrastive(pos, neg, tau_plus=0.1, alpha=0.9, beta=0.5):.4f}")
    0.8714
    """

    def log_sum(a: Anchors) -> Array:
        return bayesian_log_sum(
            a.neg,
            tau_plus=tau_plus,
            alpha=alpha,
            beta=beta,
            bins=bins,
            temperature=a.temperature,
            where=a.where,
        )

    anchors = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    return contrastive(log_sum, anchors, reduce_fn)


def contrastive(
    log_sum: Callable[[Anchors], Array], anchors: Anchors, reduce_fn: ReduceFn | None
) -> Array:
    """Contrastive loss for a given estimator of the sum over negatives."""
    # softplus(a - b), not logaddexp(a, b) - b: the latter cancels to 0 in float32 once the
    # margin of the positive exceeds about 17.
    loss = softplus(log_sum(anchors) - anchors.pos / anchors.temperature)
    return finish(loss, anchors, reduce_fn)


def _draws(anchors: Anchors) -> Array:
    """Scores ``[*batch, K]`` of the extra positives, or of the positive if there are none."""
    return anchors.pos[..., None] if anchors.extra is None else anchors.extra
