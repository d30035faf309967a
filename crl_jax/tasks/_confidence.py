"""The expectation step of BPRAC: how credible every training interaction is."""

import dataclasses
import warnings
from dataclasses import field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_range
from .._pytree import STATIC, pytree_dataclass
from ..models import Encoder, Tables
from ..samplers import Prior, as_prior, lookup_prior
from ..stats import Distribution, OrderStatisticMixture, SmoothedEmpirical, lack_of_fit
from ..train import Callback, TrainingLoop, jit
from ..weights import confidence_density, confidence_posterior

# Interactions scored at once: the rows they gather stay in the cache.
_BLOCK = 2**14


def _prior_alone(scores: Array, *, prior: Array, distribution: Distribution) -> Array:
    del scores, distribution
    return prior


_RULES = {"density": confidence_density, "posterior": confidence_posterior, "prior": _prior_alone}


@pytree_dataclass
class Confidence:
    r"""Bayesian personalised ranking with autonomous credence (BPRAC): EM around any loss.

    Every ``every`` epochs the *expectation* step estimates from the current scores how credible
    each interaction is; in the epochs up to the next, the *maximisation* step, these numbers
    multiply the losses of the interactions, and in row-wise training the L2 terms of their rows
    too, as published (which wants an optimiser that is linear in the rows). For T rounds of K
    triplets ``every`` is K divided by the number of interactions, and the training has
    T · ``every`` epochs.

    By default the law of the scores is read off the interactions at every expectation step
    (:class:`crl_jax.stats.SmoothedEmpirical`), as that of the larger or the smaller of two scores
    (:class:`crl_jax.stats.OrderStatisticMixture`, with the mean of the prior), and the weight is
    the posterior:
    that fits any encoder at any stage of its training. The published method has a law in closed
    form and the density: ``Confidence(prior, VarianceGamma(27, 0.6), rule="density")``.

    Attributes:
      prior: Prior :math:`P(c_{ui} = 1)` in [0, 1]: one per item ``[n_items]``, such as
        :func:`crl_jax.weights.credibility_prior`; one per interaction ``[n]``; one per pair
        ``[n_users, n_items]``; or a function ``prior(users [batch], items [batch, n]) ->
        [batch, n]``.
      law: Law of one of the two scores that an interaction has the larger or the smaller of. One in
        closed form must be that of the encoder's scores: the published :math:`\lambda = 0.6` goes
        with embeddings that start from :math:`\mathcal N(0, 0.6)`.
        :func:`crl_jax.stats.lack_of_fit`
        tells whether it is, and :func:`fit_ranking` warns where it is not.
      every: Epochs from one expectation step to the next, >= 1.
      rule: ``"posterior"`` is :func:`crl_jax.weights.confidence_posterior`, ``"density"``
        :func:`crl_jax.weights.confidence_density`, as published, ``"prior"`` the prior alone,
        without a
        look at scores: what the other two are to be compared with. Static.
      n_sample: Interactions, drawn with replacement, whose scores the law is fitted to; where there
        are no more, all of them, once. Static.
      normalize: Whether the weights are divided by their mean, static: the learning rate then
        means what it means without weights. Their common factor is arbitrary.

    References:
      "Contrastive Learning for Personalized Recommendation", algorithm 1; section 3.6 names
      encoders without a law in closed form as open.
    """

    prior: Prior
    distribution: Distribution = field(default_factory=SmoothedEmpirical)
    every: Int[Array, ""] | int = 10
    rule: Literal["density", "posterior", "prior"] = field(default="posterior", metadata=STATIC)
    n_sample: int = field(default=2**16, metadata=STATIC)
    normalize: bool = field(default=True, metadata=STATIC)

    def __post_init__(self) -> None:
        numbers = isinstance(self.prior, (int, float, list, tuple))
        prior = jnp.asarray(self.prior, jnp.float32) if numbers else as_prior(self.prior)
        object.__setattr__(self, "prior", prior)
        check_range("prior", self.prior, 0, 1)
        check_range("every", self.every, 1, jnp.inf)
        if isinstance(self.every, float):
            raise ValueError(f"`every` must be an integer, got {self.every}.")
        check_range("n_sample", self.n_sample, 2, jnp.inf)
        if self.rule not in _RULES:
            raise ValueError(f"`rule` must be one of {', '.join(_RULES)}, got {self.rule!r}.")

    @property
    def _table(self) -> Array | None:
        """The prior as an array; None for a function."""
        return None if isinstance(self.prior, jax.tree_util.Partial) else jnp.asarray(self.prior)

    @property
    def may_lack_fit(self) -> bool:
        """Whether there is a law that the scores can differ from: one that is not read off them."""
        return self.rule != "prior" and type(self.distribution).fit is Distribution.fit

    def check(self, n_users: int, n_items: int, n: int) -> None:
        """Raises ``ValueError`` unless it fits so many users, items and interactions."""
        if jnp.shape(self.every):
            raise ValueError(f"`every` must be one integer, got the shape {jnp.shape(self.every)}.")
        fitting = (n_items,), (n,), (n_users, n_items)
        if self._table is not None and self._table.shape not in fitting:
            raise ValueError(
                f"`prior` must be a function or have one of the shapes {fitting}, per item, "
                f"interaction or pair, got {self._table.shape}."
            )

    def select(self, keep: Bool[np.ndarray, "n"], n_items: int) -> "Confidence":
        """For some of the interactions: cuts a prior of interactions as they are cut."""
        table = self._table
        if table is None or table.shape != keep.shape or table.shape == (n_items,):
            return self
        return dataclasses.replace(self, prior=table[keep])

    def estimate(
        self,
        key: Key[Array, ""],
        encoder: Encoder,
        tables: Tables,
        users: Int[Array, "n"],
        items: Int[Array, "n"],
        n_items: int,
    ) -> Float[Array, "n"]:
        r"""The expectation step over all interactions, which are scored in blocks.

        Args:
          key: Random key of the sample that the law is fitted to.
          encoder: Tells what a score is.
          tables: What it makes of its parameters.
          users: User of each interaction.
          items: Item of each interaction.
          n_items: Size of the catalogue, which tells a prior of items from one of interactions.

        Returns:
          The :math:`\hat c_{ui}`, divided by their mean with ``normalize``; 1 for all if all of
          them are 0.
        """
        scores = _score(encoder, tables, users, items)
        prior = self._prior_at(users, items, n_items)
        distribution = self.distribution.fit(self._sample(key, scores))
        if distribution is not self.distribution:  # it was read off what is seen
            distribution = OrderStatisticMixture(distribution, jnp.mean(prior))
        values = _RULES[self.rule](scores, prior=prior, distribution=distribution)
        if not self.normalize:
            return values
        mean = jnp.mean(values)
        return jnp.where(mean > 0, values / jnp.where(mean > 0, mean, 1), 1)

    def lack_of_fit(
        self,
        key: Key[Array, ""],
        encoder: Encoder,
        tables: Tables,
        users: Int[Array, "n"],
        items: Int[Array, "n"],
    ) -> Float[Array, ""]:
        """How far the scores of a sample of the interactions are from the law.

        Args:
          key: Random key of the sample.
          encoder: Tells what a score is.
          tables: What it makes of its parameters.
          users: User of each interaction.
          items: Item of each interaction.

        Returns:
          :func:`crl_jax.stats.lack_of_fit` of ``n_sample`` interactions, drawn with replacement;
          0 for a
          law that is read off them, and for the prior alone.
        """
        if not self.may_lack_fit:
            return jnp.zeros(())
        place = jax.random.randint(key, (self.n_sample,), 0, users.shape[0], jnp.int32)
        sample = _score(encoder, tables, users[place], items[place])
        return lack_of_fit(sample, distribution=self.distribution)

    def _prior_at(self, users: Array, items: Array, n_items: int) -> Array:
        """The prior of each interaction."""
        table = self._table
        if table is None or table.ndim != 1 or table.shape == (n_items,):
            return map_blocks(
                lambda pairs: lookup_prior(self.prior, pairs[0], pairs[1][:, None])[:, 0],
                (users, items),
                _BLOCK,
            )
        if table.shape != users.shape:
            raise ValueError(
                f"`prior` must have the shape {(n_items,)} or {users.shape}, got {table.shape}."
            )
        return table

    def _sample(self, key: Key[Array, ""], scores: Float[Array, "n"]) -> Float[Array, "sample"]:
        """The scores that the law is fitted to."""
        n = scores.shape[0]
        if n <= self.n_sample:
            return scores
        return scores[jax.random.randint(key, (self.n_sample,), 0, n, jnp.int32)]


def _score(
    encoder: Encoder, tables: Tables, users: Int[Array, "n"], items: Int[Array, "n"]
) -> Float[Array, "n"]:
    """Scores of pairs, in blocks."""

    def score(pairs: tuple[Array, Array]) -> Array:
        return encoder.score(tables, pairs[0], pairs[1][:, None])[:, 0]

    return map_blocks(score, (users, items), _BLOCK)


# A law in closed form never fits exactly; beyond this, density and scores part.
_TOLERATED_MISFIT = 0.1


@jit
def worst_lack_of_fit(
    confidence: Confidence,
    encoder: Encoder,
    params: Any,
    users: Int[Array, "n"],
    items: Int[Array, "n"],
) -> Float[Array, ""]:
    """The largest misfit of several runs, whose parameters lead with ``runs``."""

    def of_run(own: Any) -> Array:
        key = jax.random.key(0)
        return confidence.lack_of_fit(key, encoder, encoder.encode(own), users, items)

    return jnp.nanmax(jax.vmap(of_run)(params), initial=0)


class LackOfFitWarning(Callback):
    """Warns where the scores of some run cannot be of the law, and confidence misleads.

    Args:
      confidence: The expectation step.
      encoder: Tells what a score is.
      users: User of each interaction.
      items: Item of each interaction.
    """

    def __init__(self, confidence: Confidence, encoder: Encoder, users: Array, items: Array):
        self._fixed, self._pairs, self._warned = (confidence, encoder), (users, items), False

    def on_start(self, loop: TrainingLoop) -> None:
        """Judges the initial values."""
        if loop.epoch == 0:
            self._judge(loop, "before the first epoch")

    def on_end(self, loop: TrainingLoop) -> None:
        """Judges what training came to, unless it began wrong."""
        if not self._warned:
            self._judge(loop, "after the last epoch")

    def _judge(self, loop: TrainingLoop, when: str) -> None:
        worst = float(
            worst_lack_of_fit(*self._fixed, loop.unpadded_state().state.params, *self._pairs)
        )
        if worst <= _TOLERATED_MISFIT:
            return
        self._warned = True
        warnings.warn(
            f"The law of `confidence` does not fit the scores {when}: they leave it by "
            f"{worst:.2f}, where {_TOLERATED_MISFIT} is tolerated (stats.misfit, 0 to 1). The "
            "confidence may tell less than its prior alone. Scale the initial values and the law "
            "alike, or let stats.Smoothed() read the law off the scores.",
            stacklevel=5,
        )
