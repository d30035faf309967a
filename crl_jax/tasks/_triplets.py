"""Triplets drawn by labels: a query, a key of its class, and a key of another."""

from dataclasses import field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._checks import check_count
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize
from ..samplers import randint_below
from ..train import ArrayBatches, Batch, StepContext
from ._augment import draw_views
from ._base import AlphaState, alpha_of
from ._labels import LabelledExamples, LossInputs, same_class
from ._simclr import SimCLR, cast_like


@pytree_dataclass
class ClassPool:
    """Labelled examples in the order of their classes, from which keys are drawn.

    Attributes:
      data: The examples as they were given, every leaf ``[n, ...]``.
      labels: The class of each, ``[n]``.
      order: Places of the examples in ``data``, class by class, ``[n]``.
      rank: Where each example stands in ``order``, ``[n]``.
      start: Where each class begins in ``order``, ``[n_classes]``.
      count: How many examples each class has, ``[n_classes]``.
    """

    data: Any
    labels: Int[Array, "n"]
    order: Int[Array, "n"]
    rank: Int[Array, "n"]
    start: Int[Array, "n_classes"]
    count: Int[Array, "n_classes"]

    @classmethod
    def from_labels(cls, data: LabelledExamples) -> "ClassPool":
        """Of labelled examples.

        Raises:
          ValueError: If a label is below 0, or all are of one class.
        """
        labels = np.asarray(data.labels)
        if labels.size and labels.min() < 0:
            raise ValueError("`data` must have labels of all examples, got one below 0.")
        count = np.bincount(labels)
        if (count > 0).sum() < 2:
            raise ValueError("`data` must have two classes or more, got one.")
        order = np.argsort(labels, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        whole = (labels, order, rank, np.cumsum(count) - count, count)
        return cls(
            jax.tree.map(jnp.asarray, data.examples), *(jnp.asarray(x, jnp.int32) for x in whole)
        )

    def draw_keys(
        self, key: Key[Array, ""], place: Int[Array, "batch"]
    ) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
        """Places of another example of each one's class, and of one of another class.

        Both uniformly. So classes are drawn as often as they occur. The only example of a class is
        its own key.
        """
        pos_key, neg_key = jax.random.split(key)
        own = self.labels[place]
        start, count = self.start[own], self.count[own]
        among = randint_below(pos_key, place.shape, jnp.maximum(count - 1, 1))
        among = among + (among >= self.rank[place] - start).astype(jnp.int32)  # passes over itself
        pos = start + jnp.where(count > 1, among, 0)
        other = randint_below(neg_key, place.shape, self.order.shape[0] - count)
        neg = other + jnp.where(other >= start, count, 0)
        return self.order[pos], self.order[neg]


@pytree_dataclass
class ResampledBatches(ArrayBatches):
    """Examples drawn uniformly with replacement, so many in an epoch.

    Attributes:
      data: Every leaf ``[n, ...]``.
      n_draws: Draws in an epoch, >= 1. Static.
    """

    n_draws: int = field(default=1, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        check_count("n_draws", self.n_draws)

    @property
    def n(self) -> int:
        """How many examples an epoch takes."""
        return self.n_draws

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """An example for each place of an epoch."""
        n = jax.tree.leaves(self.data)[0].shape[0]
        return randint_below(key, position.shape, jnp.int32(n))


class Triplets(NamedTuple):
    """A batch: queries, a key of each one's class, and a key of another.

    Attributes:
      query: The queries.
      pos: An example of the class of each.
      neg: An example of another class than that of each.
      labels: The classes of all queries, then of all ``pos``, then of all ``neg``, ``[3 batch]``.
    """

    query: Any
    pos: Any
    neg: Any
    labels: Int[Array, "of_all"]


@pytree_dataclass
class ClassTriplets(SimCLR):
    r"""Supervised pre-training with pairs drawn by label: a query, a key like it, one unlike it.

    .. math::
        \ell_i = -\log \frac{e^{\cos(q_i, k^+_i) / t}}
                            {\sum_j e^{\cos(q_i, k^+_j) / t} + \sum_j e^{\cos(q_i, k^-_j) / t}}

    with :func:`crl_jax.losses.info_nce`, where :math:`k^+_i` is drawn uniformly from the class of
    the query :math:`q_i` and :math:`k^-_i` from all other classes together, hence in proportion to
    their frequencies. All keys of the batch are in the sum, as published: also those of others that
    are of the query's own class, whose share among the negatives the history has as
    ``false_negatives``. Losses that correct for them go into ``loss_fn``.

    Batches are of the examples of ``pool``, of which only the places count: by
    :class:`crl_jax.train.ArrayBatches` each is a query once in an epoch, and by
    :class:`ResampledBatches` queries are drawn, too, as published.

    Attributes:
      network: See :class:`SimCLR`.
      augment: See :class:`SimCLR`; each of the three sees its own.
      pool: What keys are drawn from, :meth:`ClassPool.from_labels` labelled examples.
      hyperparams: See :class:`SimCLR`; the published temperature is 0.07.
      loss_fn: See :class:`SimCLR`.
      alpha: See :class:`SimCLR`.
      pretrained: See :class:`SimCLR`.

    References:
      Shi, *基于对比学习的文章类型判别* (Telling Types of Articles by Contrastive Learning, 2021),
      section 1.3 for the loss (after its Table 1), section 1.4 and Figure 2 for its denominator,
      section 2.1 for the draws, and Table 2 for the settings; Gao et al., `SimCSE
      <https://arxiv.org/abs/2104.08821>`_, 2021, Eq. 5, for the same denominator.
    """

    pool: ClassPool = field(kw_only=True)

    def batch(self, key: Key[Array, ""], examples: Batch) -> Any:
        """A key of its class and one of another for each example, and a view of all three."""
        draw_key, *view_keys = jax.random.split(key, 4)
        pos, neg = self.pool.draw_keys(draw_key, examples.place)
        places = examples.place, pos, neg
        query, like, unlike = (self._views(*each) for each in zip(view_keys, places))
        return Triplets(query, like, unlike, self.pool.labels[jnp.concatenate(places)])

    def _views(self, key: Key[Array, ""], place: Int[Array, "batch"]) -> Any:
        """Views of the examples at these places of the pool."""
        examples = jax.tree.map(lambda leaf: leaf[place], self.pool.data)
        return draw_views(self.augment, jax.random.split(key, place.shape[0]), examples)

    def loss(
        self, params: Any, model_state: Any, batch: Any, ctx: StepContext
    ) -> tuple[Array, tuple[Any, dict[str, Array]]]:
        """The mean over the real queries."""
        _, rest = self.network_variables(params, model_state)
        together = jax.tree.map(
            lambda *parts: jnp.concatenate(parts), batch.query, batch.pos, batch.neg
        )
        z, rest = self.network.apply(params, rest, cast_like(params, together), train=True)
        query, *keys = jnp.split(normalize(z), 3)
        scores = _triplet_scores(query, jnp.concatenate(keys), ctx)
        n = ctx.where.shape[0]
        classes = same_class(batch.labels[:n], batch.labels[n:])
        loss, alpha, metrics = self.score_loss(scores, classes, alpha_of(model_state), ctx)
        return loss, (rest if alpha is None else AlphaState(rest, alpha), metrics)


def _triplet_scores(
    query: Float[Array, "batch dim"], keys: Float[Array, "keys dim"], ctx: StepContext
) -> LossInputs:
    """Cosines with the keys of all real queries, of which the own positive is no negative."""
    scores = jnp.matmul(query, keys.T, preferred_element_type=jnp.float32)
    n = query.shape[0]
    own = jnp.arange(2 * n)[None, :] == jnp.arange(n)[:, None]
    real = jnp.tile(ctx.where, 2)[None, :]
    return LossInputs(jnp.diagonal(scores), scores, ~own & real)
