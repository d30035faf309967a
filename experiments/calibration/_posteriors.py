"""Probabilities of a false negative by method, from scores that training has.

To add a method, write a function of :class:`~._scores.Scores`, τ⁺ and α, and list it in
:data:`METHODS`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from crl_jax import metrics, samplers, stats, weights

from ._scores import Scores, ranks_among_unlabelled

Posterior = Callable[[Scores, Float[Array, ""], Float[Array, ""]], Float[Array, "anchors n"]]
"""Function ``posterior(scores, tau_plus, auc)`` that returns the probability of a false negative.
``auc`` is the AUC of positives against true negatives, without labels: :func:`debiased_auc`."""
_BINS = 20
_BETA = 0.9
_STRENGTH = 4.0


class Method(NamedTuple):
    """A method.

    Attributes:
      label: Display name.
      posterior: See :data:`Posterior`.
      needs: Optional field of :class:`Scores` without which the method is omitted.
    """

    label: str
    posterior: Posterior
    needs: str | None = None


@jax.jit
def debiased_auc(scores: Scores, tau_plus: Float[Array, ""]) -> Float[Array, ""]:
    """Mean AUC of held-out positives against true negatives, see :func:`metrics.debiased_auc`."""
    auc = metrics.debiased_auc(
        scores.held_out, scores.neg, tau_plus=tau_plus, where_pos=scores.where_held_out,
        where=scores.where,
    )  # fmt: skip
    is_defined = jnp.any(scores.where_held_out, axis=-1) & jnp.any(scores.where, axis=-1)
    return jnp.mean(auc, where=is_defined)


def _constant(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    return jnp.broadcast_to(tau_plus, scores.neg.shape)


def _bns(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """BNS with the class prior as the prior of every item."""
    prior = jnp.broadcast_to(tau_plus, scores.neg.shape)
    return 1 - samplers.unbiasedness(stats.ecdf(scores.neg, where=scores.where), prior)


def _bns_items(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """BNS with a prior per item: the share of an item in all interactions, as published."""
    assert scores.prior is not None
    return 1 - samplers.unbiasedness(stats.ecdf(scores.neg, where=scores.where), scores.prior)


def _bcl(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """BCL with the AUC as α, as published."""
    return _by_alpha(scores, tau_plus, jnp.clip(auc, 0.5, 1))


def _bcl_model(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """BCL with the α whose score densities have this AUC."""
    return _by_alpha(scores, tau_plus, jnp.clip(0.5 + 1.5 * (auc - 0.5), 0.5, 1))


def _by_alpha(scores: Scores, tau_plus: Array, alpha: Array) -> Array:
    posterior = weights.true_negative_posterior(
        scores.neg, tau_plus=tau_plus, alpha=alpha, where=scores.where
    )
    return 1 - posterior


def _bcl_hard(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """Probabilities implied by BCL's weights with an emphasis on hard negatives."""
    omega = weights.bayesian_weights(
        scores.neg, tau_plus=tau_plus, alpha=jnp.clip(auc, 0.5, 1), beta=_BETA, where=scores.where
    )
    return _implied(omega, tau_plus)


def _hcl(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """Probabilities implied by HCL's weights."""
    weight = weights.hard_weights(
        scores.neg, beta=1.0, temperature=scores.temperature, where=scores.where
    )
    return _implied(weight, tau_plus)


def _varbpr(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """Probabilities implied by VarBPR's posterior over negatives, with its default strength."""
    exponent = -scores.neg / (_STRENGTH * scores.temperature)
    count = jnp.sum(scores.where, axis=-1, keepdims=True)
    return _implied(count * jax.nn.softmax(exponent, axis=-1, where=scores.where), tau_plus)


def _glofnd(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """GloFND with converged thresholds: the share τ⁺ of an anchor's highest scores is false."""
    ranks = stats.ecdf(scores.neg, where=scores.where)
    return (ranks > 1 - tau_plus).astype(scores.neg.dtype)


def _implied(weight: Array, tau_plus: Array) -> Array:
    """Probability of a false negative for which the weight is that of BCL without emphasis."""
    return 1 - jnp.minimum((1 - tau_plus) * weight, 1)


def _dpl(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    """Density ratio of training positives and unlabelled samples, times τ⁺.

    DPL and DCL subtract τ⁺ times the mean over the positives from the mean over the unlabelled
    samples: at each score, a share of ``tau_plus * p_positive / p_unlabelled`` is subtracted. Here
    the densities are those of ranks, in bins of equal numbers of positives.
    """
    pos = ranks_among_unlabelled(scores, scores.pos)
    ranks = stats.ecdf(scores.neg, where=scores.where)
    edges = jnp.nanquantile(
        jnp.where(scores.where_pos, pos, jnp.nan), jnp.arange(1, _BINS, dtype=ranks.dtype) / _BINS
    )

    def bin_index(rank: Array) -> Array:
        return jnp.searchsorted(edges, rank.ravel(), side="left")

    def shares(rank: Array, where: Array) -> Array:
        counts = jnp.bincount(bin_index(rank), where.ravel().astype(ranks.dtype), length=_BINS)
        return counts / jnp.maximum(jnp.sum(counts), 1)

    p_pos, p_unlabelled = shares(pos, scores.where_pos), shares(ranks, scores.where)
    ratio = p_pos / jnp.where(p_unlabelled > 0, p_unlabelled, 1)
    return jnp.minimum(tau_plus * ratio, 1)[bin_index(ranks)].reshape(ranks.shape)


def _oracle(scores: Scores, tau_plus: Array, auc: Array) -> Array:
    return scores.oracle


METHODS: Mapping[str, Method] = {
    "constant": Method("constant τ⁺", _constant),
    "bns": Method("BNS, prior τ⁺", jax.jit(_bns)),
    "bns_items": Method("BNS, prior by item", jax.jit(_bns_items), needs="prior"),
    "bcl": Method("BCL, α = AUC", jax.jit(_bcl)),
    "bcl_model": Method("BCL, α of the model", jax.jit(_bcl_model)),
    "bcl_hard": Method(f"BCL weights, β = {_BETA}", jax.jit(_bcl_hard)),
    "dpl": Method("DPL, density ratio", jax.jit(_dpl)),
    "hcl": Method("HCL weights", jax.jit(_hcl)),
    "varbpr": Method("VarBPR weights", jax.jit(_varbpr)),
    "glofnd": Method("GloFND, top share τ⁺", jax.jit(_glofnd)),
    "oracle": Method("oracle", _oracle),
}
"""Methods by name, in the order of tables and figures."""
