"""Losses that classify each pair as positive or negative: BCE, gBCE, SigLIP and NCE."""

from typing import Annotated

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, count_unmasked, masked_mean
from ._common import broadcast_like, finish, per_anchor_loss, prepare, row_mean
from ._logspace import softplus


@per_anchor_loss
@check_arguments
def bce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Binary cross-entropy, averaged over the negatives per anchor (NT-Logistic).

    .. math:: \ell = -\log \sigma(s^+/t) - \frac1N \sum_j \log \sigma(-s_j/t)

    The mean over negatives, rather than the sum, balances the two classes: the loss is the
    average over N triplets of an anchor, its positive and one negative. Applied to embedding
    similarities it is the NT-Logistic loss; `nt_logistic` is an alias.

    Arguments, result and errors are those of :func:`bpr`.

    References:
      He et al., `Neural Collaborative Filtering <https://arxiv.org/abs/1708.05031>`_, 2017,
      Eq. 7; Chen et al., `A Simple Framework for Contrastive Learning of Visual
      Representations <https://arxiv.org/abs/2002.05709>`_, 2020, Table 2.

    >>> print(f"{bce(jnp.array([2.0, 0.0]), jnp.array([[1.0], [0.5]])):.4f}")
    1.5537
    """
    a = prepare(pos, neg, temperature, where, weights)
    neg_loss = row_mean(softplus(a.neg / a.temperature), a.where)
    return finish(softplus(-a.pos / a.temperature) + neg_loss, a, reduce_fn)


nt_logistic = bce
"""Alias of :func:`bce`."""


@per_anchor_loss
@check_arguments
def gbce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    sampling_rate: Annotated[hp.PerAnchor, hp.Range(0.0, 1.0, low_open=True)],
    calibration: hp.Share = 0.75,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Generalised binary cross-entropy (gBCE), which calibrates BCE of sampled negatives.

    .. math::
        \ell = -\frac1{N + 1} \Bigl[\beta \log \sigma(s^+/\tau)
            + \sum_j \log \sigma(-s_j/\tau)\Bigr], \qquad \beta = 1 - t\,(1 - \alpha)

    with N unmasked negatives and the temperature :math:`\tau`. If only some of the negatives are
    sampled, the sigmoids that minimise BCE overestimate the probability of an item. Those that
    minimise gBCE with :math:`\beta = \alpha` are equal to it, as if all negatives were used.
    :math:`\beta = 1` is BCE with summed negatives.

    Args:
      sampling_rate: Fraction :math:`\alpha` in (0, 1] of all negatives that is sampled:
        ``n_neg / (n_items - 1)`` for one positive; a scalar or an array that broadcasts to
        ``[*batch]``.
      calibration: Calibration :math:`t` in [0, 1]: 0 for BCE, 1 for calibrated probabilities; a
        scalar or an array that broadcasts to ``[*batch]``.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Petrov and Macdonald, `gSASRec: Reducing Overconfidence in Sequential Recommendation Trained
      with Negative Sampling <https://arxiv.org/abs/2308.07192>`_, 2023, section 5, where
      :math:`\beta = \alpha\,(t\,(1 - 1/\alpha) + 1/\alpha)`.

    >>> pos, neg = jnp.array([2.0, 0.0]), jnp.array([[1.0], [0.5]])
    >>> print(f"{gbce(pos, neg, sampling_rate=0.01, calibration=0.75):.4f}")
    0.6246
    """
    a = prepare(pos, neg, temperature, where, weights)
    rate, t = (
        per_anchor(name, value, a.pos.shape, a.pos.dtype)
        for name, value in (("sampling_rate", sampling_rate), ("calibration", calibration))
    )
    pos_loss = (1 - t * (1 - rate)) * softplus(-a.pos / a.temperature)
    neg_loss = row_mean(softplus(a.neg / a.temperature), a.where)
    n = count_unmasked(a.neg, a.where).astype(a.neg.dtype)
    return finish((pos_loss + n * neg_loss) / (n + 1), a, reduce_fn)


@per_anchor_loss
@check_arguments
def sigmoid_contrastive(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    bias: hp.Finite = 0.0,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Sigmoid loss of SigLIP: binary cross-entropy of each pair, independent of the others.

    .. math:: \ell = -\log \sigma(s^+/t + b) - \sum_j \log \sigma(-s_j/t - b)

    The mean over the pairs of a batch, see :func:`tower_scores`, is the published loss. Unlike in
    :func:`bce`, negatives are summed, not averaged, and outweigh the positive at initialization
    unless the bias compensates: for batch size n, initialize :math:`b \le -\log n`.

    Args:
      bias: Finite bias :math:`b`; a scalar or an array that broadcasts to ``[*batch]``. The
        paper learns bias and temperature, initialized to -10 and 0.1.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Zhai et al., `Sigmoid Loss for Language Image Pre-Training
      <https://arxiv.org/abs/2303.15343>`_, 2023, Eq. 1, with the sign of the bias as in
      algorithm 1.

    >>> pos, neg = jnp.array([0.8]), jnp.array([[0.7, 0.1, -0.2]])
    >>> print(f"{sigmoid_contrastive(pos, neg, bias=-10.0, temperature=0.1):.4f}")
    2.1756
    """
    a = prepare(pos, neg, temperature, where, weights)
    b = per_anchor("bias", bias, a.pos.shape, a.pos.dtype)
    pos_loss = softplus(-(a.pos / a.temperature + b))
    neg_losses = softplus(a.neg / a.temperature + expand_anchor_axis(b))
    return finish(pos_loss + jnp.sum(neg_losses, axis=-1, where=a.where), a, reduce_fn)


@per_anchor_loss
@check_arguments
def nce(
    pos: Float[Array, "*batch"],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_log_noise: hp.Finite,
    neg_log_noise: hp.Finite,
    ratio: Annotated[hp.PerAnchor | None, hp.Range(0.0, low_open=True, high_open=True)] = None,
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Noise-contrastive estimation (NCE) loss.

    .. math::
        \ell = -\log \frac{u^+}{u^+ + k q^+}
               - \frac{k}{N} \sum_j \log \frac{k q_j}{u_j + k q_j}, \qquad u = e^{s/t}

    Binary cross-entropy of observations against k noise samples each. It trains scores to be
    self-normalised log-probabilities; as k grows, the gradient converges to that of maximum
    likelihood.

    Args:
      neg: Scores :math:`s_j` of the noise samples, shape ``[*batch, n_neg]``.
      pos_log_noise: Finite log-probability :math:`\log q^+` of the observed item under the noise
        distribution; a scalar or an array that broadcasts to ``[*batch]``.
      neg_log_noise: Finite log-probabilities :math:`\log q_j` of the noise samples; a scalar,
        such as ``-log(n_items)`` for uniform noise, or an array that broadcasts to
        ``[*batch, n_neg]``.
      ratio: Number :math:`k > 0` of noise samples per observation; a scalar or an array that
        broadcasts to ``[*batch]``. ``None`` means the number of unmasked noise samples.

    Other arguments, the result and errors are those of :func:`bpr`.

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
    a = prepare(pos, neg, temperature, where, weights)
    if ratio is None:
        k = count_unmasked(a.neg, a.where).astype(a.neg.dtype)
    else:
        k = per_anchor("ratio", ratio, a.pos.shape, a.pos.dtype)
    log_k = jnp.log(k)
    data_noise = log_k + broadcast_like("pos_log_noise", pos_log_noise, a.pos, a.valid)
    sample_noise = expand_anchor_axis(log_k) + broadcast_like(
        "neg_log_noise", neg_log_noise, a.neg, a.where
    )
    pos_loss = softplus(data_noise - a.pos / a.temperature)
    neg_loss = row_mean(softplus(a.neg / a.temperature - sample_noise), a.where)
    return finish(pos_loss + k * neg_loss, a, reduce_fn)
