"""Expectation step of BPRAC: the credibility of training interactions."""

import dataclasses
import warnings
from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_shape
from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..models import Encoder, Tables
from ..samplers import Prior, as_prior, check_prior, lookup_prior
from ..stats import Distribution, OrderStatisticMixture, SmoothedEmpirical, lack_of_fit
from ..train import Callback, TrainingLoop, jit
from ..weights import confidence_density, confidence_posterior

# Interactions per block, small enough for the CPU cache.
_BLOCK = 2**14


@pytree_dataclass
class InteractionPrior:
    """Prior credibility per training interaction, for :class:`ConfidenceEM`.

    Attributes:
      values: Probabilities in [0, 1], in the order of the training interactions, ``[n]``.
    """

    values: Annotated[Float[Array | np.ndarray, "n"], Range(0, 1)]


@pytree_dataclass
class ConfidenceEM:
    r"""Bayesian personalised ranking with autonomous credence (BPRAC): EM around any loss.

    Every ``every`` epochs the *expectation* step estimates the confidence in each interaction from
    the current scores. Until the next one, the *maximisation* step, training multiplies the losses
    of the interactions by it, and in row-wise training their L2 terms, as published (which requires
    an optimizer that is linear in the rows). T rounds of K triplets correspond to ``every`` = K /
    number of interactions and T · ``every`` epochs.

    By default each expectation step fits the distribution of scores to the interactions
    (:class:`crl_jax.stats.SmoothedEmpirical`), modelled as the larger or the smaller of two scores
    (:class:`crl_jax.stats.OrderStatisticMixture`, weighted by the mean prior), and the weight is
    the posterior; this is valid for any encoder at any stage of training. The published method uses
    a closed-form distribution and the density:
    ``ConfidenceEM(prior, VarianceGamma(27, 0.6), rule="density")``.

    Precision: scores are computed in full float32, and the distribution fitted to them.

    Attributes:
      prior: Prior :math:`P(c_{ui} = 1)` in [0, 1]: per item or per pair, see
        :data:`crl_jax.samplers.Prior`, such as :func:`crl_jax.weights.credibility_prior`; or
        :class:`InteractionPrior` per interaction.
      distribution: Distribution of one of the two scores. A closed-form distribution must match the
        scores of the encoder: the published :math:`\lambda = 0.6` requires embeddings initialised
        from :math:`\mathcal N(0, 0.6)`. :func:`crl_jax.stats.lack_of_fit` measures the deviation,
        and :func:`fit_ranking` warns of a large one.
      every: Epochs between expectation steps, >= 1.
      rule: ``"posterior"`` for :func:`crl_jax.weights.confidence_posterior`, ``"density"`` for
        :func:`crl_jax.weights.confidence_density`, as published, or ``"prior"`` for the prior
        alone, a baseline that ignores scores. Static.
      n_sample: Number of interactions, sampled with replacement, to which the distribution is
        fitted; all of them if there are fewer. Static.
      normalize: Whether to divide the weights by their mean, so that the learning rate keeps its
        meaning. Static.

    References:
      "Contrastive Learning for Personalized Recommendation", algorithm 1; section 3.6 leaves
      encoders without a closed-form score distribution open.
    """

    prior: Annotated[Prior | InteractionPrior, Range(0, 1)]
    distribution: Distribution = field(default_factory=SmoothedEmpirical)
    every: Annotated[Int[Array, ""] | int, Range(1)] = 10
    rule: Literal["density", "posterior", "prior"] = field(default="posterior", metadata=STATIC)
    n_sample: Annotated[int, Range(2)] = field(default=2**16, metadata=STATIC)
    normalize: bool = field(default=True, metadata=STATIC)

    def __post_init__(self) -> None:
        prior = self.prior
        if not isinstance(prior, InteractionPrior):
            is_list = isinstance(prior, (int, float, list, tuple))
            prior = jnp.asarray(prior, jnp.float32) if is_list else as_prior(prior)
            object.__setattr__(self, "prior", prior)
        if isinstance(self.every, float):
            raise ValueError(f"`every` must be an integer, got {self.every}.")

    @property
    def may_lack_fit(self) -> bool:
        """Whether the weights depend on a closed-form distribution, which scores may not follow."""
        return self.rule != "prior" and type(self.distribution).fit is Distribution.fit

    def check(self, n_users: int, n_items: int, n: int) -> None:
        """Raises ``ValueError`` unless the prior matches the training interactions."""
        if jnp.shape(self.every):
            raise ValueError(f"`every` must be one integer, got the shape {jnp.shape(self.every)}.")
        if isinstance(self.prior, InteractionPrior):
            check_shape("prior", self.prior.values, (n,))
        else:
            check_prior(self.prior, n_users, n_items)

    def select(self, keep: Bool[np.ndarray, "n"]) -> "ConfidenceEM":
        """Restricts a prior per interaction to a subset of the interactions."""
        if not isinstance(self.prior, InteractionPrior):
            return self
        prior = InteractionPrior(jnp.asarray(self.prior.values, jnp.float32)[keep])
        return dataclasses.replace(self, prior=prior)

    def estimate(
        self,
        key: Key[Array, ""],
        encoder: Encoder,
        tables: Tables,
        users: Int[Array, "n"],
        items: Int[Array, "n"],
    ) -> Float[Array, "n"]:
        r"""Expectation step over all interactions, computed in blocks.

        Args:
          key: Random key of the sample to which the distribution is fitted.
          encoder: Computes scores.
          tables: Embeddings computed from the current parameters.
          users: User of each interaction.
          items: Item of each interaction.

        Returns:
          The :math:`\hat c_{ui}`, divided by their mean with ``normalize``; 1 if all of them are 0.
        """
        scores = _map_pairs(partial(_score, encoder, tables), users, items)
        if isinstance(self.prior, InteractionPrior):
            check_shape("prior", self.prior.values, users.shape)
            prior = jnp.asarray(self.prior.values, jnp.float32)
        else:
            prior = _map_pairs(partial(lookup_prior, self.prior), users, items)
        n, sample = len(scores), scores
        if n > self.n_sample:
            sample = scores[jax.random.randint(key, (self.n_sample,), 0, n, jnp.int32)]
        distribution = self.distribution.fit(sample)
        if distribution is not self.distribution:  # fitted to observed scores
            distribution = OrderStatisticMixture(distribution, jnp.mean(prior))
        values = prior
        if self.rule != "prior":
            rule = confidence_density if self.rule == "density" else confidence_posterior
            values = rule(scores, prior=prior, distribution=distribution)
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
        """Deviation of the scores of sampled interactions from the distribution.

        Arguments as for :meth:`estimate`.

        Returns:
          :func:`crl_jax.stats.lack_of_fit` of ``n_sample`` interactions, drawn with replacement; 0
          unless ``may_lack_fit``.
        """
        if not self.may_lack_fit:
            return jnp.zeros(())
        index = jax.random.randint(key, (self.n_sample,), 0, users.shape[0], jnp.int32)
        sample = _map_pairs(partial(_score, encoder, tables), users[index], items[index])
        return lack_of_fit(sample, distribution=self.distribution)


def _score(encoder: Encoder, tables: Tables, users: Array, items: Array) -> Array:
    """Scores in full float32: a distribution is fitted to them."""
    with jax.default_matmul_precision("highest"):
        return encoder.score(tables, users, items)


def _map_pairs(fn: Callable[[Array, Array], Array], users: Array, items: Array) -> Array:
    """Computes ``fn(users, items[:, None])[:, 0]`` in blocks."""
    return map_blocks(lambda pairs: fn(pairs[0], pairs[1][:, None])[:, 0], (users, items), _BLOCK)


# A closed-form distribution never fits exactly; above this value the weights are misleading.
_MAX_LACK_OF_FIT = 0.1


@jit
def _worst_lack_of_fit(
    confidence: ConfidenceEM, encoder: Encoder, params: Any, users: Array, items: Array
) -> Float[Array, ""]:
    """Maximum lack of fit over runs; parameters have a leading axis ``runs``."""

    def lack_of_fit(params: Any) -> Array:
        key = jax.random.key(0)
        return confidence.lack_of_fit(key, encoder, encoder.encode(params), users, items)

    return jnp.nanmax(jax.vmap(lack_of_fit)(params), initial=0)


class LackOfFitWarning(Callback):
    """Warns if the scores of any run deviate from the distribution of a :class:`ConfidenceEM`."""

    def __init__(self, confidence: ConfidenceEM, encoder: Encoder, users: Array, items: Array):
        self._fixed, self._pairs, self._warned = (confidence, encoder), (users, items), False

    def on_start(self, loop: TrainingLoop) -> None:
        """Checks the scores of the initial parameters."""
        if loop.epoch == 0:
            self._check(loop, "before the first epoch")

    def on_end(self, loop: TrainingLoop) -> None:
        """Checks the scores of the trained parameters, unless a warning was issued before."""
        if not self._warned:
            self._check(loop, "after the last epoch")

    def _check(self, loop: TrainingLoop, when: str) -> None:
        params = loop.unpadded_state().state.params
        worst = float(_worst_lack_of_fit(*self._fixed, params, *self._pairs))
        if worst <= _MAX_LACK_OF_FIT:
            return
        self._warned = True
        warnings.warn(
            f"The distribution of `confidence` does not fit the scores {when}: lack of fit "
            f"{worst:.2f} exceeds {_MAX_LACK_OF_FIT} (stats.lack_of_fit, 0 to 1). The confidence "
            "may be worse than its prior alone. Match the initial scale of the embeddings and the "
            "distribution, or use stats.SmoothedEmpirical(), which is fitted to the scores.",
            stacklevel=5,
        )
