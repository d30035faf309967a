r"""Contrastive losses: a positive against the sum over negatives, however that is estimated.

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
    r"""InfoNCE, also known as NT-Xent: every sample counts as a true negative.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j e^{s_j/t}}

    With one negative it is :func:`bpr`.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      temperature: The :math:`t > 0` that divides all scores.
      where: True keeps a negative, shape ``[*batch, n_neg]``; others are never read, in
        value or gradient. An anchor that keeps none has loss 0 and leaves the reduction.
      weights: Multiply the losses of the anchors, shape ``[*batch]``; gradients flow into
        them. ``None`` means 1.
      reduce_fn: Called as ``reduce_fn(losses, where=anchors_with_negatives)``. ``None``
        returns one loss per anchor.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or ``temperature`` is not positive.

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
    tau_plus: TauPlus,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Debiased contrastive loss: takes the expected false negatives out of the sum.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + G}, \qquad
        G = N \max\Bigl(\frac{1}{\tau^-}\Bigl[\frac1N \sum_j e^{s_j/t}
            - \tau^+ \frac1K \sum_k e^{s^+_k/t}\Bigr],\; e^{s_{\min}/t}\Bigr)

    (Elsewhere "DCL" may also mean the *decoupled* loss, which this is not.)

    Args:
      pos: Scores of anchors with their positives. Shape ``[*batch]``: the own positive is
        also the one draw, :math:`K = 1`, that stands for false negatives. Shape
        ``[*batch, 1 + M]`` (as many axes as ``neg``): column 0 is the own positive, and the
        M others are the draws, :math:`K = M`.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a negative is in truth a positive; a
        scalar or an array that broadcasts to ``[*batch]``.
      min_score: The smallest value :math:`s_{\min}` that a score can take: -1 for cosines.
        ``-jnp.inf`` for scores without a bound: where the estimate is not positive, the
        loss and its gradient are then 0.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    tau_plus: TauPlus,
    beta: NonNegative,
    min_score: MinScore = -1.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Hard contrastive loss: the debiased one, of negatives tilted towards the hard ones.

    :func:`debiased_contrastive` with :math:`e^{s_j/t}` replaced by :math:`w_j e^{s_j/t}`,
    :math:`w_j = e^{\beta s_j/t} / \frac1N \sum_i e^{\beta s_i/t}`. Gradients flow through the
    weights.

    Args:
      pos: As in :func:`debiased_contrastive`, shape ``[*batch]`` or ``[*batch, 1 + M]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a negative is in truth a positive.
      beta: Concentration :math:`\beta \ge 0` on hard negatives; 0 gives
        :func:`debiased_contrastive`. Like ``tau_plus`` a scalar or an array that broadcasts
        to ``[*batch]``.
      min_score: As in :func:`debiased_contrastive`.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit or a hyper-parameter leaves its range.

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
    tau_plus: TauPlus,
    alpha: Alpha,
    beta: Beta,
    bins: int | None = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Bayesian contrastive loss: weighs each negative by what its rank says about it.

    .. math::
        \ell = -\log \frac{e^{s^+/t}}{e^{s^+/t} + \sum_j \omega_j e^{s_j/t}}

    with the :math:`\omega` of :func:`crl_jax.weights.bayesian_weights`, held constant in
    the gradient. With ``tau_plus=0, beta=0.5`` it is :func:`info_nce`.

    Ranks say nothing of how far apart scores are. So with ``beta`` well above 0.5 hard negatives
    count as much when all scores are almost equal, and draw the embeddings together if positives
    hardly score above negatives. An encoder that starts from there may stay there: give it
    ``beta=0.5`` until positives score higher.

    Args:
      pos: Scores :math:`s^+` of anchors with their positives, shape ``[*batch]``.
      neg: Scores :math:`s_j` with their negatives, shape ``[*batch, n_neg]``. Their ranks
        need company: a single one counts as the best-scoring of its anchor.
      tau_plus: Prior :math:`\tau^+` in [0, 1) that a negative is in truth a positive.
      alpha: Quality of the encoder in [0.5, 1]: the probability that a positive scores
        above a negative.
      beta: Hardness in [0.5, 1]; 0.5 prefers no negative for being hard. The three are
        scalars or arrays that broadcast to ``[*batch]``.
      bins: Ranks from a histogram of so many bins, for many thousands of negatives; static. See
        :func:`crl_jax.weights.bayesian_weights`.
      temperature: As in :func:`info_nce`.
      where: As in :func:`info_nce`.
      weights: As in :func:`info_nce`.
      reduce_fn: As in :func:`info_nce`.

    Returns:
      What ``reduce_fn`` makes of shape ``[*batch]``, by default the mean; at least float32.

    Raises:
      ValueError: If a shape does not fit, a hyper-parameter leaves its range, or
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
    """The loss of an estimate of the denominator's sum; the losses above are one each."""
    # softplus(a - b), not logaddexp(a, b) - b: the latter cancels to 0 in float32 once the
    # positive leads by about 17.
    loss = softplus(log_sum(anchors) - anchors.pos / anchors.temperature)
    return finish(loss, anchors, reduce_fn)


def _draws(anchors: Anchors) -> Array:
    """Draws from the anchor's positives, ``[*batch, K]``: the extra ones if there are any."""
    return anchors.pos[..., None] if anchors.extra is None else anchors.extra
