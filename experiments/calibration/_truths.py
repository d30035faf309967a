"""Problems whose false negatives are known, each a function of a seed and the options."""

from collections.abc import Callable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool

from crl_jax import augment, data, losses, models, samplers, tasks, train

from ..numerical import _model as model
from ..recommend._options import DataOptions
from ..recommend._problem import Problem, load_problem
from ._options import Config
from ._scores import Scores, isotonic_oracle

_N_HELD_OUT = 10
"""Number of held-out positives per anchor of planted scores and of labelled images."""
_TEMPERATURE = 0.2
"""Temperature of SimCLR on digits."""
_SIMCLR_EPOCHS, _BPR_EPOCHS = 15, 20


def planted(config: Config, seed: int, *, alpha: float, tau_plus: float = 0.1) -> Scores:
    """Scores of the densities that BCL assumes, with τ⁺ and α known."""
    setting = model.Setting(alpha, 0.0, tau_plus, 1.0, 0.5, alpha, tau_plus)
    sample = model.draw(
        jax.random.key(seed), setting, n_anchors=config.anchors, n_neg=config.n_neg,
        n_pos=2 * _N_HELD_OUT,
    )  # fmt: skip
    cdf = sample.neg + 0.5  # the distribution function of a uniform population
    false = (1 - alpha) * (1 - cdf) + alpha * cdf
    true = alpha * (1 - cdf) + (1 - alpha) * cdf
    oracle = tau_plus * false / (tau_plus * false + (1 - tau_plus) * true)
    return _planted(sample.neg, sample.pos, ~sample.is_true, oracle)


def planted_priors(config: Config, seed: int) -> Scores:
    """Scores that BNS assumes: order statistics of two draws, and a known prior of each item."""
    key, n = jax.random.key(seed), config.n_neg
    v = jax.random.uniform(key, (config.anchors, 3 * n + 2 * _N_HELD_OUT))
    for_prior, for_label, for_score, for_pos = jnp.split(v, (n, 2 * n, 3 * n), axis=-1)
    prior = 0.2 * for_prior**2
    is_false = for_label < prior
    cdf = model.quantile(jnp.where(is_false, 0.0, 1.0), for_score)
    pos, oracle = model.quantile(0.0, for_pos), 1 - samplers.unbiasedness(cdf, prior)
    return _planted(cdf, pos, is_false, oracle)._replace(prior=prior)


def _planted(neg: Array, pos: Array, is_false: Array, oracle: Array) -> Scores:
    pos, held_out = jnp.split(pos, 2, axis=-1)
    all_unlabelled, all_positives = jnp.ones(neg.shape, bool), jnp.ones(pos.shape, bool)
    return Scores(
        neg,
        all_unlabelled,
        is_false,
        all_unlabelled,
        pos,
        all_positives,
        held_out,
        all_positives,
        oracle,
    )


def simulated(config: Config, seed: int, *, n_exposed: int) -> Scores:
    """Simulated interactions, whose likes are known, and a matrix factorisation trained by BPR."""
    simulation = data.simulate(n_users=config.users, n_items=config.items, n_exposed=n_exposed,
                          seed=seed)  # fmt: skip
    split = data.split_by_ratio(simulation.interactions, test=0.2, seed=seed)
    # Items of the test part are known positives: no unlabelled samples.
    unlabelled = ~(_pairs(split.train) | _pairs(split.test))
    return _train_and_score(split.train, split.test, unlabelled, simulation.likes, unlabelled, seed)


def exposed(config: Config, seed: int) -> Scores:
    """Data of the user with ratings of randomly exposed items, which are the known labels."""
    problem = _load_exposed(config, seed)
    assert problem.exposed is not None
    assert problem.valid is not None
    unlabelled = ~_pairs(problem.known)
    labelled = _pairs(problem.exposed) & unlabelled
    return _train_and_score(
        problem.train, problem.valid, unlabelled, _pairs(problem.test), labelled, seed
    )


@lru_cache(maxsize=1)  # the first seed is read before the first problem
def _load_exposed(config: Config, seed: int) -> Problem:
    assert config.data is not None
    options = DataOptions(
        data=str(config.data), test_data=config.test_data, test_rating=config.test_rating,
        valid_fraction=0.2, split_seed=seed, **config.arguments(),
    )  # fmt: skip
    problem = load_problem(options)
    if len(problem.columns) < 2:  # a single file, of which a part would be cut at random
        raise ValueError(
            f"--data {config.data} has no test part of randomly exposed items; name its file by "
            "--test-data."
        )
    return problem


def _train_and_score(
    known: data.Interactions,
    held_out: data.Interactions,
    unlabelled: Bool[np.ndarray, "users items"],
    likes: Bool[np.ndarray, "users items"],
    labelled: Bool[np.ndarray, "users items"],
    seed: int,
) -> Scores:
    """Trains on known interactions, and scores all items."""
    fitted = tasks.fit_ranking(
        known, loss=losses.bpr, epochs=_BPR_EPOCHS, seeds=seed,
        optimizer=train.Optimizer(5e-3, weight_decay=1e-4),
    )  # fmt: skip
    users, items = fitted.tables()
    neg = np.asarray(users @ items.T)
    pairs, held_out_pairs = _pairs(known), _pairs(held_out)
    prior = jnp.broadcast_to(samplers.popularity_prior(known), neg.shape)
    oracle = isotonic_oracle(neg, likes, labelled, unlabelled)
    scores = jnp.asarray(neg)
    return Scores(
        scores, jnp.asarray(unlabelled), jnp.asarray(likes), jnp.asarray(labelled),
        scores, jnp.asarray(pairs), scores, jnp.asarray(held_out_pairs), jnp.asarray(oracle),
        density=float(pairs.mean()), prior=prior,
    )  # fmt: skip


def _pairs(log: data.Interactions) -> Bool[np.ndarray, "users items"]:
    """Returns the interactions as a dense mask."""
    mask = np.zeros((log.n_users, log.n_items), bool)
    mask[log.users, log.items] = True
    return mask


class _Perceptron(nnx.Module):
    """Two layers of features, and a projection head that only the loss uses."""

    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(64, 256, rngs=rngs)
        self.second = nnx.Linear(256, 256, rngs=rngs)
        self.head = nnx.Linear(256, 64, rngs=rngs)

    def features(self, x: Array) -> Array:
        return nnx.relu(self.second(nnx.relu(self.first(x.reshape(len(x), 64)))))

    def __call__(self, x: Array) -> Array:
        return self.head(self.features(x))


_ENCODER = models.Network(_Perceptron)


def digits(config: Config, seed: int, *, trained: bool) -> Scores:
    """Digits: cosines of the pixels of two views, or of embeddings that SimCLR has learned."""
    images = data.load_images("digits").train
    views = augment.ImageAugmentation(
        size=8, scale=(0.5, 1.0), flip_rate=0.0, blur_rate=0.0, mean=0.5, std=0.25
    )
    examples, labels = jnp.asarray(images.images), np.asarray(images.labels)
    if not trained:
        return _score_images(_pixels, views, examples, labels, config, seed)
    fitted = train.fit(
        tasks.SimCLR(_ENCODER, views, {"temperature": _TEMPERATURE}),
        train.Optimizer(2e-3, weight_decay=1e-6, schedule=train.cosine),
        train.ArrayBatches(tasks.LabelledExamples(examples, jnp.asarray(labels))),
        train.TrainConfig(batch_size=128),
        epochs=_SIMCLR_EPOCHS,
        seeds=seed,
    )
    apply = partial(_encode, fitted.get_params(0))
    return _score_images(apply, views, examples, labels, config, seed)


def _encode(params: Any, views: Array) -> Array:
    return _ENCODER.apply(params, {}, views)[0]


def cifar10(config: Config, seed: int) -> Scores:
    """CIFAR-10: cosines of the pixels of two views."""
    assert config.images is not None
    images = _load_images(config.images).train
    rows = np.sort(np.random.default_rng(seed).permutation(len(images))[: config.examples])
    views = augment.ImageAugmentation(size=32, mean=0.5, std=0.25)
    examples, labels = jnp.asarray(images.images[rows]), np.asarray(images.labels)[rows]
    return _score_images(_pixels, views, examples, labels, config, seed)


@cache
def _load_images(path: Path) -> data.ImageSplit:
    return data.load_images(path)


def _pixels(views: Array) -> Array:
    return views.reshape(len(views), -1)


def _score_images(
    encode: Callable[[Array], Array],
    augmentation: augment.ImageAugmentation,
    images: Array,
    labels: np.ndarray,
    config: Config,
    seed: int,
) -> Scores:
    """Cosines of first views of some images, the anchors, with second views of all.

    The other view of the anchor is its positive in training; other images of its class are false
    negatives, except for a few, which are held-out positives.
    """
    rng, n = np.random.default_rng(seed), len(images)
    anchors = np.sort(rng.permutation(n)[: config.image_anchors])
    view = jax.jit(jax.vmap(augmentation))
    first, second = (
        losses.normalize(encode(view(jax.random.split(key, len(rows)), rows)))
        for key, rows in zip(jax.random.split(jax.random.key(seed)), (images[anchors], images))
    )
    neg = np.asarray(first @ second.T)
    is_same = labels[anchors][:, None] == labels[None]
    is_other = np.ones(neg.shape, bool)
    is_other[np.arange(len(anchors)), anchors] = False
    # Ten of each anchor's class, chosen at random.
    order = np.argsort(rng.random(neg.shape) + ~(is_same & is_other), axis=1)[:, :_N_HELD_OUT]
    held_out = np.zeros(neg.shape, bool)
    np.put_along_axis(held_out, order, True, axis=1)
    unlabelled = is_other & ~held_out
    oracle = isotonic_oracle(neg, is_same, unlabelled, unlabelled)
    pos = np.take_along_axis(neg, anchors[:, None], axis=1)
    held_out_scores = np.take_along_axis(neg, order, axis=1)
    mask = jnp.asarray(unlabelled)
    return Scores(
        jnp.asarray(neg), mask, jnp.asarray(is_same), mask,
        jnp.asarray(pos), jnp.ones(pos.shape, bool),
        jnp.asarray(held_out_scores), jnp.ones(held_out_scores.shape, bool),
        jnp.asarray(oracle), temperature=_TEMPERATURE,
    )  # fmt: skip


Truth = Callable[[Config, int], Scores]
"""Function ``truth(config, seed)``."""
TRUTHS: Mapping[str, Truth] = {
    "planted-0.9": partial(planted, alpha=0.9),
    "planted-1": partial(planted, alpha=1.0),
    "planted-priors": planted_priors,
    "simulated-dense": partial(simulated, n_exposed=200),
    "simulated-sparse": partial(simulated, n_exposed=30),
    "digits-pixels": partial(digits, trained=False),
    "digits-trained": partial(digits, trained=True),
    "cifar10-pixels": cifar10,
    "exposed": exposed,
}
"""Known truths by name; the last two need ``--images`` and ``--data``."""


def available(config: Config) -> Mapping[str, Truth]:
    """Returns the truths whose data the options name."""
    missing = {"cifar10-pixels": config.images is None, "exposed": config.data is None}
    return {name: truth for name, truth in TRUTHS.items() if not missing.get(name)}


def read_files(config: Config) -> None:
    """Reads the data that the options name, so that errors come before the first problem.

    Raises:
      ValueError: If data have another form.
      OSError: If data are missing.
    """
    if config.images is not None:
        _load_images(config.images)
    if config.data is not None:
        _load_exposed(config, config.seed)
