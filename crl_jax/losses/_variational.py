"""Variational pairwise losses: latent indices of the positive and the negative of an anchor."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .. import _hyperparams as hp
from .._checks import check_shape
from .._hyperparams import Temperature, check_arguments, expand_anchor_axis, per_anchor
from .._reduce import ReduceFn, masked_mean
from ._common import all_positives, finish, per_anchor_loss, prepare
from ._logspace import softplus


@per_anchor_loss
@check_arguments
def variational_bpr(
    pos: Float[Array, "..."],
    neg: Float[Array, "*batch n_neg"],
    *,
    pos_strength: hp.Positive = 4.0,
    neg_strength: hp.Positive = 4.0,
    pos_hardness: hp.NonNegative = 0.0,
    neg_hardness: hp.NonNegative = 0.0,
    pos_log_prior: Annotated[Float[Array, "..."] | None, hp.FINITE] = None,
    neg_log_prior: Annotated[Float[Array, "*batch n_neg"] | None, hp.FINITE] = None,
    objective: Literal["compressed", "exact"] = "compressed",
    temperature: Temperature = 1.0,
    where: Bool[Array, "*batch n_neg"] | None = None,
    weights: Float[Array, "*batch"] | None = None,
    reduce_fn: ReduceFn | None = masked_mean,
) -> Float[Array, "..."]:
    r"""Variational Bayesian personalised ranking (VarBPR) loss.

    .. math::
        \ell = -\log \sigma\Bigl(\Bigl[\sum_m \alpha_m s^+_m - \sum_j \beta_j s_j\Bigr]/t\Bigr),
        \qquad \alpha_m \propto \pi^+_m e^{s^+_m/(c^+ t)},
        \quad \beta_j \propto \pi^-_j e^{-s_j/(c^- t)}

    Which of the positives is a true preference, and which of the negatives a true negative, are
    latent variables with the posteriors :math:`\alpha` and :math:`\beta`, each normalised over the
    samples of an anchor and treated as constant in the gradient. A posterior rejects noise:
    positives with a low score and negatives with a high score. Its prior counteracts,

    .. math:: \pi^+_m \propto p^+_m e^{-h^+ s^+_m/t}, \qquad \pi^-_j \propto p^-_j e^{h^- s_j/t},

    by hardness :math:`h^\pm` and by an array, such as the popularity of the items. For
    :math:`h^- > 1/c^-` negatives with a high score have the larger weight. Equal to :func:`bpr`
    with one positive and one negative.

    Args:
      pos: Scores :math:`s^+_m` of the positives, shape ``[*batch, 1 + M]`` (same rank as ``neg``),
        or ``[*batch]`` for one positive per anchor.
      pos_strength: Strength :math:`c^+ > 0` of the prior of positives: the larger, the closer the
        posterior is to it.
      neg_strength: Strength :math:`c^- > 0` of the prior of negatives.
      pos_hardness: Preference :math:`h^+ \ge 0` of the prior for positives with a low score.
      neg_hardness: Preference :math:`h^- \ge 0` of the prior for negatives with a high score. The
        four numbers are scalars or arrays that broadcast to ``[*batch]``.
      pos_log_prior: Unnormalised :math:`\log p^+_m`, finite, also where masked, shape of ``pos``;
        ``None`` is uniform.
      neg_log_prior: Unnormalised :math:`\log p^-_j`, likewise, shape of ``neg``; ``None`` is
        uniform.
      objective: ``"compressed"``, the formula above, in time linear in the number of samples, or
        ``"exact"``, the expectation
        :math:`-\sum_{mj} \alpha_m \beta_j \log \sigma((s^+_m - s_j)/t)` over all pairs. Static.

    Other arguments, the result and errors are those of :func:`bpr`.

    References:
      Liu et al., `Variational Bayesian Personalized Ranking
      <https://arxiv.org/abs/2503.11067>`_, 2026, Eq. 12 to 14 and 19, and its published code:
      there :math:`h` is an exponent divided by a temperature.

    >>> pos, neg = jnp.array([[1.0, -1.0]]), jnp.array([[0.5, 0.0, 2.0]])
    >>> print(f"{variational_bpr(pos, neg, pos_strength=0.5, neg_strength=0.5):.4f}")
    0.3696
    """
    a = prepare(pos, neg, temperature, where, weights, extra_positives=True)
    batch, dtype = a.pos.shape, a.pos.dtype
    positives, negatives = all_positives(a) / a.temperature, a.neg / a.temperature

    numbers = dict(
        pos_strength=pos_strength,
        neg_strength=neg_strength,
        pos_hardness=pos_hardness,
        neg_hardness=neg_hardness,
    )
    c_pos, c_neg, h_pos, h_neg = (
        expand_anchor_axis(per_anchor(name, value, batch, dtype)) for name, value in numbers.items()
    )
    pos_mask = None
    if a.valid is not None:
        pos_mask = jnp.broadcast_to(a.valid[..., None], positives.shape)
    alpha = _posterior("pos_log_prior", pos_log_prior, pos, 1 / c_pos - h_pos, positives, pos_mask)
    beta = _posterior("neg_log_prior", neg_log_prior, neg, h_neg - 1 / c_neg, negatives, a.where)

    if objective == "exact":
        pairs = softplus(negatives[..., None, :] - positives[..., :, None])
        return finish(jnp.einsum("...m,...j,...mj->...", alpha, beta, pairs), a, reduce_fn)
    lead = jnp.sum(alpha * positives, axis=-1) - jnp.sum(beta * negatives, axis=-1)
    return finish(softplus(-lead), a, reduce_fn)


def _posterior(
    name: str,
    log_prior: Array | None,
    scores: Array,
    tilt: Array,
    logits: Array,
    where: Array | None,
) -> Array:
    """Probabilities proportional to the prior and ``exp(tilt * logits)``, as constants."""
    limit = float(jnp.finfo(logits.dtype).max) / 4
    exponent = jnp.clip(tilt * logits, -limit, limit)  # softmax subtracts infinities
    if log_prior is not None:
        check_shape(name, log_prior, scores.shape)
        prior = jnp.asarray(log_prior, logits.dtype).reshape(logits.shape)
        exponent = exponent + (prior if where is None else jnp.where(where, prior, 0))
    return jax.lax.stop_gradient(jax.nn.softmax(exponent, axis=-1, where=where))
