"""Triplets sampled by class: a query, a positive of its class, and a negative of another."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..samplers import randint_below
from ..train import ArrayBatches, Batch, LossOutput, StepContext
from ._score_task import LabelledExamples, LossInputs, class_masks
from ._simclr import SimCLR
from ._views import draw_views


@pytree_dataclass
class ClassPool:
    """Labelled examples sorted by class, from which positives and negatives are sampled.

    Attributes:
      data: The examples in their original order, every leaf ``[n, ...]``.
      labels: Class of each, ``[n]``.
      order: Indices of the examples, sorted by class, ``[n]``.
      rank: Position of each example in ``order``, ``[n]``.
      start: Position in ``order`` of the first example of each class, ``[n_classes]``.
      count: Number of examples of each class, ``[n_classes]``.
    """

    data: Any
    labels: Int[Array, "n"]
    order: Int[Array, "n"]
    rank: Int[Array, "n"]
    start: Int[Array, "n_classes"]
    count: Int[Array, "n_classes"]

    @classmethod
    def from_labels(cls, data: LabelledExamples) -> "ClassPool":
        """Sorts labelled examples by class.

        Raises:
          ValueError: If a label is negative, or there are fewer than two classes.
        """
        labels = np.asarray(data.labels)
        if labels.size and labels.min() < 0:
            raise ValueError("`data` must have a class for every example, got a negative label.")
        count = np.bincount(labels)
        if (count > 0).sum() < 2:
            raise ValueError("`data` must have two classes or more, got one.")
        order = np.argsort(labels, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        arrays = (labels, order, rank, np.cumsum(count) - count, count)
        return cls(
            jax.tree.map(jnp.asarray, data.examples), *(jnp.asarray(x, jnp.int32) for x in arrays)
        )

    def sample_pairs(
        self, key: Key[Array, ""], index: Int[Array, "batch"]
    ) -> tuple[Int[Array, "batch"], Int[Array, "batch"]]:
        """Samples another example of each one's class, and one of the other classes, uniformly.

        Negative classes thus occur in proportion to their frequencies. The only example of a class
        is its own positive.

        Args:
          key: Random key.
          index: Indices of the queries.

        Returns:
          Indices of the positives and of the negatives.
        """
        pos_key, neg_key = jax.random.split(key)
        label = self.labels[index]
        start, count = self.start[label], self.count[label]
        offset = randint_below(pos_key, index.shape, jnp.maximum(count - 1, 1))
        offset = offset + (offset >= self.rank[index] - start).astype(jnp.int32)  # skips the query
        pos = start + jnp.where(count > 1, offset, 0)
        other = randint_below(neg_key, index.shape, self.order.shape[0] - count)
        neg = other + jnp.where(other >= start, count, 0)
        return self.order[pos], self.order[neg]


@pytree_dataclass
class ResampledBatches(ArrayBatches):
    """Batches of examples sampled uniformly with replacement.

    Attributes:
      data: Every leaf ``[n, ...]``.
      n_draws: Number of samples per epoch, >= 1. Static.
    """

    n_draws: Annotated[int, Range(1)] = field(default=1, kw_only=True, metadata=STATIC)

    @property
    def n(self) -> int:
        """Number of samples per epoch."""
        return self.n_draws

    def order(self, key: Key[Array, ""], position: Int[Array, "*shape"]) -> Int[Array, "*shape"]:
        """Samples the index of the example at each position of an epoch."""
        n = jax.tree.leaves(self.data)[0].shape[0]
        return randint_below(key, position.shape, jnp.int32(n))


class Triplets(NamedTuple):
    """Batch of triplets.

    Attributes:
      query: Queries.
      pos: Example of each query's class.
      neg: Example of another class.
      labels: Classes of all queries, then of all ``pos``, then of all ``neg``, ``[3 batch]``.
    """

    query: Any
    pos: Any
    neg: Any
    labels: Int[Array, "three_batches"]


@pytree_dataclass
class ClassTriplets(SimCLR):
    r"""Supervised pre-training with triplets sampled by class.

    .. math::
        \ell_i = -\log \frac{e^{\cos(q_i, k^+_i) / t}}
                            {\sum_j e^{\cos(q_i, k^+_j) / t} + \sum_j e^{\cos(q_i, k^-_j) / t}}

    with :func:`crl_jax.losses.info_nce`. The positive :math:`k^+_i` is sampled uniformly from the
    class of the query :math:`q_i`, and :math:`k^-_i` from all other classes together, hence in
    proportion to their frequencies. As published, the sum contains all keys of the batch, including
    those of other queries that share the query's class; the history reports their share of the
    negatives as ``false_negatives``. A debiased ``loss_fn`` corrects for them.

    Batches contain examples of ``pool``, by index: with :class:`crl_jax.train.ArrayBatches` each
    is a query once per epoch; with :class:`ResampledBatches` queries are resampled, as published.

    Attributes:
      augment: See :class:`SimCLR`; the three views are independent.
      pool: Examples sorted by class, see :meth:`ClassPool.from_labels`.
      hyperparams: See :class:`SimCLR`; the published temperature is 0.07.

    The other attributes are those of :class:`SimCLR`.

    References:
      Shi, *基于对比学习的文章类型判别* (Article type classification based on contrastive learning,
      2021), section 1.3 for the loss (after its Table 1), section 1.4 and Figure 2 for its
      denominator, section 2.1 for the sampling, and Table 2 for the settings; Gao et al., `SimCSE
      <https://arxiv.org/abs/2104.08821>`_, 2021, Eq. 5, for the same denominator.
    """

    pool: ClassPool = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.pool, ClassPool):
            raise ValueError(
                "`pool` must be a tasks.ClassPool, such as ClassPool.from_labels(data), "
                f"got {type(self.pool).__name__}."
            )

    def check_data(self, data: Any) -> None:
        """Accepts any data: the classes are those of ``pool``."""

    def batch(self, key: Key[Array, ""], examples: Batch) -> Any:
        """Samples a positive and a negative for each example, and a view of all three."""
        sample_key, *view_keys = jax.random.split(key, 4)
        pos, neg = self.pool.sample_pairs(sample_key, examples.indices)
        indices = examples.indices, pos, neg
        query, pos, neg = (self._views(*x) for x in zip(view_keys, indices))
        return Triplets(query, pos, neg, self.pool.labels[jnp.concatenate(indices)])

    def _views(self, key: Key[Array, ""], index: Int[Array, "batch"]) -> Any:
        examples = jax.tree.map(lambda leaf: leaf[index], self.pool.data)
        return draw_views(self.augment, jax.random.split(key, index.shape[0]), examples)

    def loss(self, params: Any, model_state: Any, batch: Any, ctx: StepContext) -> LossOutput:
        """Computes the mean over the real queries."""
        views = batch.query, batch.pos, batch.neg
        (query, *keys), variables = self.encode_views(params, model_state, *views)
        scores = jnp.matmul(query, jnp.concatenate(keys).T, preferred_element_type=jnp.float32)
        n = ctx.where.shape[0]
        # The keys of padding are no negatives, nor is a query's own positive.
        where = jnp.arange(2 * n)[None, :] != jnp.arange(n)[:, None]
        where = where & jnp.tile(ctx.where, 2)[None, :]
        classes = class_masks(batch.labels[:n], batch.labels[n:])
        inputs = LossInputs(jnp.diagonal(scores), scores, where, classes)
        return self.state_loss(inputs, model_state, variables, ctx)
