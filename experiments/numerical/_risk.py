"""Sampling risk of negative samplers on a population of known labels: theorem 4.1.

The unseen items of a user are false negatives with known prior probabilities. Scores of true
negatives are distributed as the lower, those of false negatives and of the positive as the higher
of two standard normal draws, as in (4.7) and (4.8), so that the posterior (4.14) is exact.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from crl_jax import metrics, samplers, stats

from .._panels import make_panels, save, stack_tables
from ._model import quantile

N_ITEMS = 500
"""Number of unseen items of each pair of a user and a positive."""
SIZES = (1, 2, 3, 5, 10, 20, 50, 100, 200, 500)
"""Numbers of candidates; the last one is all unseen items."""
RISK_LAMBDA = 5.0
RULES = {
    "rns": "uniform (RNS)",
    "dns": "highest score (DNS)",
    "posterior": "posterior (4.29)",
    "bns_ecdf": "BNS, eCDF of unlabelled scores",
    "bns": "BNS, exact posterior",
}
"""Samplers by name, with their labels."""
_QUANTITIES = {
    "risk": "expected risk R(h)",
    "labelled_risk": "risk by labels",
    "tnr": "true negative rate (TNR)",
    "inf": "informativeness (INF)",
}


class UnseenItems(NamedTuple):
    """Unseen items of each pair of a user and a positive.

    Attributes:
      info: Informativeness of each item.
      scores: Score of each item.
      posterior: Probability that the item is a true negative, given its score.
      estimated: The same, with the eCDF of the unlabelled scores in place of F.
      is_false: Labels: whether the item is a false negative.
    """

    info: Float[Array, "pairs items"]
    scores: Float[Array, "pairs items"]
    posterior: Float[Array, "pairs items"]
    estimated: Float[Array, "pairs items"]
    is_false: Bool[Array, "pairs items"]


def draw_unseen(key: Key[Array, ""], n_pairs: int, n_items: int) -> UnseenItems:
    """Draws priors between 0 and 0.2, labels and scores."""
    v = jax.random.uniform(key, (n_pairs, 3 * n_items + 1), minval=1e-6, maxval=1 - 1e-6)
    for_prior, for_label, for_score, for_pos = jnp.split(v, (n_items, 2 * n_items, 3 * n_items), -1)
    prior = 0.2 * for_prior**2
    is_false = for_label < prior
    cdf = quantile(jnp.where(is_false, 0.0, 1.0), for_score)  # F of the score
    scores, pos = (jax.scipy.stats.norm.ppf(u) for u in (cdf, quantile(0.0, for_pos)))
    info = samplers.informativeness(pos, scores)
    posterior = samplers.unbiasedness(cdf, prior)
    estimated = samplers.unbiasedness(stats.ecdf(scores), prior)
    return UnseenItems(info, scores, posterior, estimated, is_false)


@partial(jax.jit, static_argnames=("size",))
def measure(unseen: UnseenItems, *, size: int) -> dict[str, dict[str, Float[Array, ""]]]:
    """Returns the quality of the negatives of each rule, for a number of candidates.

    The candidates of a pair are its first ``size`` items, which are independent of each other.

    Returns:
      By rule: ``risk``, the mean of the conditional risk (4.25) with the exact posterior, which is
      R(h); ``labelled_risk``, the same with labels; ``tnr`` and ``inf``.
    """
    candidates = jax.tree.map(lambda x: x[:, :size], unseen)
    risk = partial(samplers.sampling_risk, candidates.info, risk_lambda=RISK_LAMBDA)
    values = {
        "rns": jnp.zeros(candidates.info.shape),
        "dns": candidates.scores,
        "posterior": candidates.posterior,
        "bns_ecdf": -risk(candidates.estimated),
        "bns": -risk(candidates.posterior),
    }
    results = {}
    for name in RULES:
        chosen = jnp.argmax(values[name], axis=-1)[:, None]
        info, is_false, own_risk = (
            jnp.take_along_axis(x, chosen, axis=-1)[:, 0]
            for x in (candidates.info, candidates.is_false, risk(candidates.posterior))
        )
        quality = metrics.sampling_quality(info, is_false, risk_lambda=RISK_LAMBDA)
        results[name] = {
            "risk": jnp.mean(own_risk),
            "labelled_risk": quality.risk,
            "tnr": quality.tnr,
            "inf": quality.inf,
        }
    return results


def grow(seed: int, n_pairs: int) -> dict[str, dict[str, np.ndarray]]:
    """Returns the quality of each rule along the number of candidates."""
    unseen = draw_unseen(jax.random.key(seed), n_pairs, N_ITEMS)
    by_size = [measure(unseen, size=size) for size in SIZES]
    return {
        rule: {
            "candidates": np.array(SIZES, float),
            **{
                name: np.array([quality[rule][name] for quality in by_size], np.float64)
                for name in _QUANTITIES
            },
        }
        for rule in RULES
    }


def draw(folder: Path, by_rule: dict[str, dict[str, np.ndarray]]) -> None:
    """Draws the quality of each rule along the number of candidates."""
    figure, panels = make_panels(1, len(_QUANTITIES), (14, 3.9))
    for axes, (name, label) in zip(panels, _QUANTITIES.items()):
        for (rule, row), marker in zip(by_rule.items(), "os^vD"):
            axes.plot(row["candidates"], row[name], marker=marker, markersize=4, label=RULES[rule])
        axes.set_xscale("log")
        axes.set(xlabel="candidates |M|", title=label)
    panels[0].legend()
    title = f"Theorem 4.1: the least risky item has the least sampling risk, λ = {RISK_LAMBDA:g}"
    labelled = {RULES[rule]: row for rule, row in by_rule.items()}
    save(figure, folder / "theorem_4_1", title, *stack_tables("sampler", labelled))
