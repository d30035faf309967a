"""Methods of the study of noisy positives (chapter 3), by table."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp

from crl_jax import losses, stats, tasks, weights

from ..objectives.noisy import ramp
from ..objectives.pairwise import group_bpr, likely_and_unpopular, popular_and_not
from .methods import Method, Recipe, World

SCALE = 0.6
"""Variance of the initial values and of the score distribution on MovieLens; 0.2 on Yahoo!-R3."""
ROUNDS, TRIPLETS = 10, 1000
"""Number of EM rounds, and number of triplets per user in each."""
RATE = 0.4
"""The mean of the weight 2Ff·rating over the triplets of a training, which is the ratio of the
published code's effective learning rate to the stated one."""


def every(world: World) -> int:
    """Returns the number of epochs per EM round."""
    return max(1, round(TRIPLETS * world.train.n_users / len(world.train)))


RECIPE = Recipe(
    dim=27,
    learning_rate=0.05,
    weight_decay=0.01,
    deviation=math.sqrt(SCALE),
    epochs=lambda world: ROUNDS * every(world),
    metrics=(
        *(
            f"{name}@{k}"
            for k in (5, 10)
            for name in ("precision", "recall", "f1", "ndcg", "hit_precision")
        ),
        "auc",
    ),
    main="ndcg@10",
)


def _confidence(
    law: stats.Distribution | None = None, *, rated: bool = False, **changes: Any
) -> Any:
    def make(world: World) -> tasks.ConfidenceEM:
        log, further = world.train, dict(changes)
        if law is not None:
            further["distribution"] = law
        prior: Any = weights.credibility_prior(log.item_counts)
        if rated:
            assert log.ratings is not None
            prior = tasks.InteractionPrior(jnp.asarray(log.ratings / log.ratings.max()))
        return tasks.ConfidenceEM(prior, every=every(world), **further)

    return make


_DROPS: dict[str, Any] = {
    "batches": True,
    "hyperparams": {"drop_rate": 0.1},
    "schedule": ramp,
    "axis": ("drop_rate", (0.02, 0.05, 0.1, 0.2)),
    "published": "denoiserec",
}
_TRUSTS: dict[str, Any] = {
    "hyperparams": {"exponent": 0.25},
    "axis": ("exponent", (0.05, 0.1, 0.25, 0.5)),
    "published": "denoiserec",
}


@dataclass(frozen=True)
class Study:
    """The methods of chapter 3.

    Attributes:
      scale: Variance of the initial values and of the score distribution.
    """

    scale: float = SCALE

    @property
    def recipe(self) -> Recipe:
        """Recipe shared by all methods."""
        return dataclasses.replace(RECIPE, deviation=math.sqrt(self.scale))

    @property
    def law(self) -> stats.VarianceGamma:
        """Distribution of inner products of the initial values."""
        return stats.VarianceGamma(self.recipe.dim, self.scale)

    def rows(self) -> dict[str, Method]:
        """Returns all methods of the tables, keyed by name."""
        of = partial(Method, recipe=self.recipe)
        density = partial(_confidence, self.law, rule="density")
        methods = (
            of("bpr"),
            of(
                "gbpr", loss=group_bpr, hyperparams={"rho": 0.4}, n_group=3,
                axis=("rho", (0.2, 0.4, 0.6, 0.8)),
            ),
            of(
                "mpr", lambda world: popular_and_not(world.train), loss=likely_and_unpopular,
                hyperparams={"balance": 0.5}, n_neg=2, n_pos=2,
                axis=("balance", (0.3, 0.5, 0.7, 0.9)),
            ),
            of("truncated bce", loss=losses.truncated_bce, **_DROPS),
            of("truncated bpr", loss=losses.truncated_bpr, **_DROPS),
            of("reweighted bce", loss=losses.reweighted_bce, **_TRUSTS),
            of("reweighted bpr", loss=losses.reweighted_bpr, **_TRUSTS),
            of("bprac", confidence=density()),
            # As in the text: the unnormalised confidence, of about 0.1, slows learning down.
            of("bprac, unscaled", confidence=density(normalize=False), published="bprac"),
            of("bprac, smoothed law", confidence=_confidence(rule="density")),
            of("posterior", confidence=_confidence()),
            of("prior", confidence=_confidence(rule="prior")),
        )  # fmt: skip
        return {method.label: method for method in methods}

    def tables(self) -> dict[str, tuple[Method, ...]]:
        """Returns the rows of each table."""
        rows = self.rows()
        judged = ("prior", "bprac", "bprac, unscaled", "bprac, smoothed law", "posterior")
        return {"3.2": tuple(rows[name] for name in judged), "3.3": tuple(rows.values())}

    def ablation(self) -> tuple[Method, ...]:
        """Returns an ablation of the factors that explain the published figures of table 3.3."""
        of = partial(Method, recipe=self.recipe, anchors="users")
        at = partial(of, rate=RATE)
        density = partial(_confidence, self.law, rule="density")
        return (
            at("bpr at that rate"),
            at("density × prior", confidence=density()),
            at("posterior", confidence=_confidence()),
            at("prior", confidence=_confidence(rule="prior")),
            at("rating", confidence=_confidence(rule="prior", rated=True)),
            at("density × rating", confidence=density(rated=True)),
            of("bpr, each interaction once", anchors="interactions"),
            of("bpr"),
            of("density × prior, unscaled", confidence=density(normalize=False)),
            # The prior is the rating divided by its maximum, 5; the rate compensates for this.
            of(
                "density × rating, unscaled", rate=5.0, published="bprac",
                confidence=density(rated=True, normalize=False),
            ),
        )  # fmt: skip


NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4)
ROBUST = ("bpr", "reweighted bpr", "bprac", "posterior")
"""Methods compared under injected noise."""
CONVERGING = ("bpr", "gbpr", "reweighted bpr", "bprac", "posterior")
