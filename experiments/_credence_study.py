"""The study of noisy positives: its protocol, and which methods its tables compare."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, stats, tasks, weights

from ._study import Method, Recipe, World
from .objectives.noisy import ramp
from .objectives.pairwise import group_bpr, likely_and_unpopular, popular_and_not

SCALE = 0.6
"""The variance of initial values and of the law of scores for MovieLens; 0.2 for Yahoo!-R3."""
ROUNDS, TRIPLETS = 10, 1000
"""Rounds of EM, and triplets of each per user."""
RATE = 0.4
"""The mean of the weight 2Ff·rating over the triplets of a training: so much of the stated
learning rate the published code has in effect."""


def every(world: World) -> int:
    """Epochs of a round of EM."""
    return max(1, round(TRIPLETS * world.train.n_users / len(world.train)))


CREDENCE = Recipe(
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


def judged(recipe: Recipe) -> Recipe:
    """For tables of the confidence itself."""
    name = "confidence_auc"
    return dataclasses.replace(recipe, metrics=(name,), main=name, by_user=False)


NOTES = [
    "Test data are half of the interactions with the top rating, or the test part from "
    "--test-rating up; all other interactions, whatever their rating, are positives in training. "
    "HIT_PRECISION is what the dissertation calls MAP.",
    "The confidence is judged, after training, by the AUC with which it tells training "
    "interactions rated above 1 from those rated 1.",
    "BPRAC's weights are divided by their mean, but for rows that are not scaled. The law is that "
    "of embeddings with the variance of the initial values, or is smoothed off the scores; the "
    "posterior takes the latter. The prior is BPRAC without a look at scores.",
    "Truncated losses need batches to drop from, and stand in the minibatch table alone.",
]
ABLATION_NOTES = [
    "Anchors are drawn as the published code draws them: a user uniformly, then one of its "
    "interactions; 'each interaction once' is how the main table trains. That code multiplies the "
    "density by the rating, where the text has a prior by popularity, and does not divide by the "
    f"mean: its learning rate is in effect {RATE:g} of the one stated. The first six rows have "
    "that rate, and weights of mean 1; the last four have the stated one. The last row does what "
    "the published code of bprac does.",
]


def load_world(
    loaded: data.Interactions | data.Split,
    test_rating: float | None,
    folder: str,
    split: int = 0,
) -> World:
    """The clean test set and the noisy training part of chapter 3.

    Args:
      loaded: Interactions with ratings. Parts are put together and cut anew, unless
        ``test_rating`` is given.
      test_rating: Test on the given test part where it is rated at least this, such as the
        random-exposure part of Yahoo!-R3, where it is 3.
      folder: Where the data came from.
      split: Seed of the cut.

    Raises:
      ValueError: If there are no ratings, or no test part to choose from.
    """
    if test_rating is None:
        if isinstance(loaded, data.Split):
            loaded = data.union(*(part for _, part in loaded.parts()))
        cut = data.split_clean(loaded, seed=split)
        assert cut.test is not None
        return World(cut.train, cut.test, folder)
    if not isinstance(loaded, data.Split) or loaded.test is None or loaded.test.ratings is None:
        raise ValueError(f"--test-rating needs a test part with ratings in {folder}.")
    known = [part for name, part in loaded.parts() if name != "test"]
    chosen = loaded.test.select(loaded.test.ratings >= test_rating)
    if not len(chosen):
        raise ValueError(f"--test-rating {test_rating:g}: no test interaction is rated as high.")
    return World(data.union(*known), chosen, folder)


def check_judgeable(world: World) -> None:
    """Raises ``ValueError`` unless ratings tell what the confidence is judged by."""
    ratings = world.train.ratings
    if ratings is None or (ratings > 1).all() or not (ratings > 1).any():
        raise ValueError(
            f"--data {world.folder} needs training ratings of 1 and above to judge the confidence."
        )


def with_noise(world: World, rate: float, seed: int = 0) -> World:
    """Adds false positives to the training part.

    Rankings are scored as without it: what was added is not masked, and may come up.

    Args:
      world: The data.
      rate: How many, as a share of the training interactions. They are drawn uniformly from the
        pairs of users and items that stand in neither part.
      seed: Of the draw.
    """
    log, n_items = world.train, world.train.n_items
    count = round(rate * len(log))
    if not count:
        return world
    free = np.ones((log.n_users, n_items), bool)
    for part in (log, world.test):
        free[part.users, part.items] = False
    pairs = np.flatnonzero(free.ravel())
    if count > len(pairs):
        raise ValueError(f"`rate` must leave pairs to draw from, {len(pairs)}, got {count}.")
    drawn = np.random.default_rng((seed, 1)).choice(pairs, count, replace=False)
    added = data.Interactions.from_arrays(
        drawn // n_items, drawn % n_items, user_ids=log.user_ids, item_ids=log.item_ids
    )
    bare = dataclasses.replace(log, ratings=None, timestamps=None)  # as what was added is
    return dataclasses.replace(world, train=data.union(bare, added), masked=log)


def _credence(law: stats.Law | None = None, *, rated: bool = False, **changes: Any) -> Any:
    def make(world: World) -> tasks.Confidence:
        log, further = world.train, dict(changes)
        if law is not None:
            further["law"] = law
        prior: Any = weights.credibility_prior(log)
        if rated:
            assert log.ratings is not None
            prior = jnp.asarray(log.ratings / log.ratings.max())
        return tasks.Confidence(prior, every=every(world), **further)

    return make


_DROPS: dict[str, Any] = {
    "batches": True,
    "knobs": {"drop_rate": 0.1},
    "knob_schedule": ramp,
    "axis": ("drop_rate", (0.02, 0.05, 0.1, 0.2)),
    "published": "denoiserec",
}
_TRUSTS: dict[str, Any] = {
    "knobs": {"exponent": 0.25},
    "axis": ("exponent", (0.05, 0.1, 0.25, 0.5)),
    "published": "denoiserec",
}


@dataclass(frozen=True)
class Study:
    """The methods of chapter 3.

    Attributes:
      scale: Variance of initial values, and of the law of scores.
    """

    scale: float = SCALE

    @property
    def recipe(self) -> Recipe:
        """What all methods have in common."""
        return dataclasses.replace(CREDENCE, deviation=math.sqrt(self.scale))

    @property
    def law(self) -> stats.VarianceGamma:
        """The law of products of the initial values."""
        return stats.VarianceGamma(self.recipe.dim, self.scale)

    def rows(self) -> dict[str, Method]:
        """Every method of the tables by its name."""
        of = partial(Method, recipe=self.recipe)
        density = partial(_credence, self.law, rule="density")
        methods = (
            of("bpr"),
            of(
                "gbpr", loss=group_bpr, knobs={"rho": 0.4}, n_group=3,
                axis=("rho", (0.2, 0.4, 0.6, 0.8)),
            ),
            of(
                "mpr", lambda world: popular_and_not(world.train), loss=likely_and_unpopular,
                knobs={"balance": 0.5}, n_neg=2, n_pos=2,
                axis=("balance", (0.3, 0.5, 0.7, 0.9)),
            ),
            of("truncated bce", loss=losses.truncated_bce, **_DROPS),
            of("truncated bpr", loss=losses.truncated_bpr, **_DROPS),
            of("reweighted bce", loss=losses.reweighted_bce, **_TRUSTS),
            of("reweighted bpr", loss=losses.reweighted_bpr, **_TRUSTS),
            of("bprac", credence=density()),
            # As the text has it: the confidence in its own unit, of about 0.1, slows learning down.
            of("bprac, unscaled", credence=density(normalize=False), published="bprac"),
            of("bprac, smoothed law", credence=_credence(rule="density")),
            of("posterior", credence=_credence()),
            of("prior", credence=_credence(rule="prior")),
        )  # fmt: skip
        return {method.label: method for method in methods}

    def tables(self) -> dict[str, tuple[Method, ...]]:
        """The rows of each table."""
        rows = self.rows()
        judged = ("prior", "bprac", "bprac, unscaled", "bprac, smoothed law", "posterior")
        return {"3.2": tuple(rows[name] for name in judged), "3.3": tuple(rows.values())}

    def ablation(self) -> tuple[Method, ...]:
        """What the published figures of table 3.3 are made of."""
        of = partial(Method, recipe=self.recipe, anchors="users")
        at = partial(of, rate=RATE)
        density = partial(_credence, self.law, rule="density")
        return (
            at("bpr at that rate"),
            at("density × prior", credence=density()),
            at("posterior", credence=_credence()),
            at("prior", credence=_credence(rule="prior")),
            at("rating", credence=_credence(rule="prior", rated=True)),
            at("density × rating", credence=density(rated=True)),
            of("bpr, each interaction once", anchors="interactions"),
            of("bpr"),
            of("density × prior, unscaled", credence=density(normalize=False)),
            # The prior is the rating by its maximum, 5: the rate makes up for it.
            of(
                "density × rating, unscaled", rate=5.0, published="bprac",
                credence=density(rated=True, normalize=False),
            ),
        )  # fmt: skip


NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4)
ROBUST = ("bpr", "reweighted bpr", "bprac", "posterior")
"""Compared under injected noise."""
CONVERGING = ("bpr", "gbpr", "reweighted bpr", "bprac", "posterior")
