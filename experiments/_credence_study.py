"""The study of noisy positives: its protocol, and which methods its tables compare."""

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, losses, stats, train, weights

from ._objectives import group_bpr, likely_and_unpopular, popular_and_not, ramp
from ._study import Method, Recipe, World

SCALE = 0.6
"""The variance of initial values and of the law of scores for MovieLens."""
ROUNDS, TRIPLETS = 10, 1000
"""Rounds of EM, and triplets of each per user."""
CREDENCE = Recipe(
    dim=27,
    learning_rate=0.05,
    weight_decay=0.01,
    deviation=math.sqrt(SCALE),
    epochs=ROUNDS * 11,  # 943,000 triplets are 10.5 times as many as there are interactions
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
CONFIDENCE = dataclasses.replace(
    CREDENCE, metrics=("confidence_auc",), main="confidence_auc", by_user=False
)
NOTES = [
    "Test data are half of the interactions with the top rating, or the test part from "
    "--test-rating up; all other interactions, whatever their rating, are positives in training. "
    "HIT_PRECISION is what the dissertation calls MAP.",
    "The confidence is judged, after training, by the AUC with which it tells training "
    "interactions rated above 1 from those rated 1.",
    "BPRAC's weights are divided by their mean, but for the row that is not scaled; the law is "
    f"that of embeddings N(0, {SCALE:g}), or smoothed off the scores, and the posterior takes the "
    "latter. The prior alone is BPRAC without a look at scores.",
    "Truncated losses need batches to drop from, and stand in the minibatch table alone.",
]


def load_world(
    loaded: data.Interactions | data.Split, test_rating: float | None, folder: str
) -> World:
    """The clean test set and the noisy training part of chapter 3.

    Args:
      loaded: Interactions with ratings. Parts are put together and cut anew, unless
        ``test_rating`` is given.
      test_rating: Test on the given test part where it is rated at least this, such as the
        random-exposure part of Yahoo!-R3, where it is 3.
      folder: Where the data came from.

    Raises:
      ValueError: If there are no ratings, or no test part to choose from.
    """
    if test_rating is None:
        if isinstance(loaded, data.Split):
            loaded = data.union(*(part for _, part in loaded.parts()))
        split = data.split_clean(loaded)
        assert split.test is not None
        return World(split.train, split.test, folder)
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
    return dataclasses.replace(world, train=data.union(log, added), masked=log)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Flat(stats.Law):
    """Every score is as good as another: what is left of the confidence is its prior."""

    def pdf(self, x: Any) -> Any:
        """One everywhere."""
        return jnp.ones_like(x)

    def cdf(self, x: Any) -> Any:
        """A half everywhere."""
        return jnp.full_like(x, 0.5)


def _credence(law: stats.Law, **changes: Any) -> Any:
    def make(world: World) -> train.Credence:
        log = world.train
        every = max(1, round(TRIPLETS * log.n_users / len(log)))
        return train.Credence(weights.credibility_prior(log), law, every=every, **changes)

    return make


_of = partial(Method, recipe=CREDENCE)
_GAUSSIAN = stats.VarianceGamma(CREDENCE.dim, SCALE)
BPR = _of("bpr")
GBPR = _of(
    "gbpr", loss=group_bpr, knobs={"rho": 0.4}, n_group=3, axis=("rho", (0.2, 0.4, 0.6, 0.8))
)
MPR = _of(
    "mpr",
    lambda world: popular_and_not(world.train),
    loss=likely_and_unpopular,
    knobs={"balance": 0.5},
    n_neg=2,
    n_pos=2,
    axis=("balance", (0.3, 0.5, 0.7, 0.9)),
)
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
REWEIGHTED_BPR = _of("reweighted bpr", loss=losses.reweighted_bpr, **_TRUSTS)
DENOISE = (
    _of("truncated bce", loss=losses.truncated_bce, **_DROPS),
    _of("truncated bpr", loss=losses.truncated_bpr, **_DROPS),
    _of("reweighted bce", loss=losses.reweighted_bce, **_TRUSTS),
    REWEIGHTED_BPR,
)
BPRAC = _of("bprac", credence=_credence(_GAUSSIAN))
# As the text has it: the confidence in its own unit, of about 0.1, slows learning down.
UNSCALED = _of("bprac, unscaled", credence=_credence(_GAUSSIAN, normalize=False), published="bprac")
SMOOTHED = _of("bprac, smoothed law", credence=_credence(stats.Smoothed()))
POSTERIOR = _of("bprac, posterior", credence=_credence(stats.Smoothed(), rule="posterior"))
PRIOR = _of("prior alone", credence=_credence(Flat()))
CREDIBLE = (BPRAC, UNSCALED, SMOOTHED, POSTERIOR, PRIOR)
TABLES = {"3.2": (PRIOR, *CREDIBLE[:-1]), "3.3": (BPR, GBPR, MPR, *DENOISE, *CREDIBLE)}
NOISE_RATES = (0.0, 0.1, 0.2, 0.3, 0.4)
ROBUST = (BPR, REWEIGHTED_BPR, BPRAC, POSTERIOR)
"""Compared under injected noise."""
CONVERGING = (BPR, GBPR, REWEIGHTED_BPR, BPRAC, POSTERIOR)
