"""The expectation step of BPRAC: how credible every training interaction is."""

from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_range
from ..models import Functional
from ..samplers._priors import Prior, as_prior, prior_of
from ..stats import Law
from ..weights import confidence, confidence_posterior

# Interactions scored at once: the rows they gather stay in the cache.
_BLOCK = 2**14
_RULES = {"density": confidence, "posterior": confidence_posterior}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Credence:
    r"""Bayesian personalised ranking with autonomous credence (BPRAC): EM around any loss.

    Every ``every`` epochs the *expectation* step estimates from the current scores how credible
    each interaction is; in the epochs up to the next, the *maximisation* step, these numbers
    multiply the losses of the interactions. For T rounds of K triplets ``every`` is K divided by
    the number of interactions, and the training has T · ``every`` epochs.

    Where scores have no law in closed form, or the encoder is no matrix factorisation,
    :class:`crl_jax.stats.Smoothed` takes it from the scores of ``n_sample`` of the interactions
    at every expectation step.

    Attributes:
      prior: Prior :math:`P(c_{ui} = 1)` in [0, 1]: one per item ``[n_items]``, such as
        :func:`crl_jax.weights.credibility_prior`; one per interaction ``[n]``; one per pair
        ``[n_users, n_items]``; or a function ``prior(users [batch], items [batch, n]) ->
        [batch, n]``.
      law: Law of the scores.
      every: Epochs from one expectation step to the next, >= 1.
      rule: ``"density"`` is :func:`crl_jax.weights.confidence`, as published, ``"posterior"``
        :func:`crl_jax.weights.confidence_posterior`. Static.
      n_sample: Interactions, drawn with replacement, whose scores the law is fitted to, static.
      normalize: Whether the weights are divided by their mean, static: the learning rate then
        means what it means without weights. Their common factor is arbitrary.

    References:
      "Contrastive Learning for Personalized Recommendation", algorithm 1; section 3.6 names
      encoders without a law in closed form as open.
    """

    prior: Prior
    law: Law
    every: Int[Array, ""] | int = 10
    rule: Literal["density", "posterior"] = field(default="density", metadata={"static": True})
    n_sample: int = field(default=2**16, metadata={"static": True})
    normalize: bool = field(default=True, metadata={"static": True})

    def __post_init__(self) -> None:
        object.__setattr__(self, "prior", as_prior(self.prior))
        check_range("every", self.every, 1, jnp.inf)
        check_range("n_sample", self.n_sample, 2, jnp.inf)
        if self.rule not in _RULES:
            raise ValueError(f"`rule` must be density or posterior, got {self.rule!r}.")

    def check_prior(self, n_users: int, n_items: int, n: int) -> None:
        """Raises ``ValueError`` unless the prior fits so many users, items and interactions."""
        shape = getattr(self.prior, "shape", None)
        fitting = (n_items,), (n,), (n_users, n_items)
        if shape is not None and shape not in fitting:
            raise ValueError(
                f"`prior` must have one of the shapes {fitting}, per item, interaction or pair, "
                f"got {shape}."
            )

    def estimate(
        self,
        key: Key[Array, ""],
        model: Functional,
        params: Any,
        users: Int[Array, "n"],
        items: Int[Array, "n"],
        n_items: int,
    ) -> Float[Array, "n"]:
        r"""The expectation step over all interactions, in blocks.

        Args:
          key: Random key of the sample that the law is fitted to.
          model: The encoder's functions.
          params: Its parameters.
          users: User of each interaction.
          items: Item of each interaction.
          n_items: Size of the catalogue, which tells a prior of items from one of interactions.

        Returns:
          The :math:`\hat c_{ui}`, divided by their mean with ``normalize``; 1 for all if all of
          them are 0.
        """
        shape = getattr(self.prior, "shape", None)
        own = self.prior if shape == users.shape and shape != (n_items,) else None

        def score(pairs: tuple[Array, Array]) -> Array:
            return model.score(params, pairs[0], pairs[1][:, None])[:, 0]

        def credible(part: tuple[Array, Array, Any]) -> Array:
            users, items, prior = part
            if prior is None:
                prior = prior_of(self.prior, users, items[:, None])[:, 0]
            return _RULES[self.rule](score((users, items)), prior=prior, law=law)

        drawn = jax.random.randint(key, (self.n_sample,), 0, users.shape[0], jnp.int32)
        law = self.law.fit(map_blocks(score, (users[drawn], items[drawn]), _BLOCK))
        values = map_blocks(credible, (users, items, own), _BLOCK)
        if not self.normalize:
            return values
        mean = jnp.mean(values)
        return jnp.where(mean > 0, values / jnp.where(mean > 0, mean, 1), 1)
