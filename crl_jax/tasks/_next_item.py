"""Next-item prediction: sequential recommendation."""

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, Key

from .._blocks import map_blocks
from .._checks import check_count, check_sequences
from .._floats import at_least_float32
from .._hyperparams import Range, check_hyperparams
from .._pytree import STATIC, pytree_dataclass
from ..losses import bce, masked_mean, tiled_catalogue_loss
from ..metrics import top_k
from ..models import Network, Tables
from ..samplers import randint_below, sample_absent
from ..train import Batch, LossOutput, StepContext, Task, stream
from ._views import check_network

NextItemNegatives = Literal["unseen", "any", "all"]
"""Negatives of a position: drawn uniformly from the items that are not in the sequence of the user,
``"unseen"``; from all other items, ``"any"``; or all other items, ``"all"``."""


class SequenceBatch(NamedTuple):
    """Windows of a batch.

    Attributes:
      items: Consecutive items, padded on the left by negative ids, ``[batch, window + 1]``.
      neg: Negatives of each position but the last, ``[batch, window, n_neg]``; None for all items.
    """

    items: Int[Array, "batch width"]
    neg: Int[Array, "batch window n_neg"] | None


@pytree_dataclass
class NextItem(Task):
    r"""Next-item prediction: each position of a sequence is an anchor, the next item its positive.

    The data are item sequences, int ``[n, width]`` with items in ``[0, n_items)``, padded on the
    left by negative ids, such as the ``train`` part of :func:`crl_jax.data.leave_one_out`. An
    example is the sequence of a user; a batch has its last ``window + 1`` items. Scores are inner
    products :math:`s_{ti} = h_t^\top v_i` of the vector of position t and that of item i.

    The loss is the mean over the positions of all windows of the batch, as published, so that users
    with longer windows have a larger weight.

    SASRec is the default: BCE with one unseen negative per position. gSASRec is
    :func:`crl_jax.losses.gbce` with many negatives ``"any"``. The full softmax is
    :func:`crl_jax.losses.info_nce` with negatives ``"all"``, whose scores are in memory for
    ``tile`` positions at a time, see :func:`crl_jax.losses.tiled_catalogue_loss`.

    Precision: scores in training have the platform's default precision, those of :meth:`tables` are
    in full float32.

    Attributes:
      network: Network of sequences, such as ``models.Network(models.SASRec(n_items))``, with a
        method ``item_vectors``. Static.
      n_items: Number of items. Static.
      window: Number of positions per sequence, at most that of the network. Static.
      loss_fn: ``loss(pos, neg, *, where, reduce_fn, **hyperparams)``, such as any loss of one
        positive in :mod:`crl_jax.losses`. Static.
      hyperparams: Hyper-parameters of the loss.
      negatives: See :data:`NextItemNegatives`. Static.
      n_neg: Number of negatives per position that are drawn. Static.
      tile: Number of positions per tile with ``"all"``; by default chosen by the size of the
        catalogue. Static.

    Raises:
      ValueError: If a field is invalid, or, before training, if the data are no sequences of items.

    References:
      Kang and McAuley, `Self-Attentive Sequential Recommendation
      <https://arxiv.org/abs/1808.09781>`_, 2018, Eq. 7; Petrov and Macdonald, `gSASRec
      <https://arxiv.org/abs/2308.07192>`_, 2023; Klenitskiy and Vasilev, `Turning Dross Into Gold
      Loss <https://arxiv.org/abs/2309.07602>`_, 2023.
    """

    network: Network = field(metadata=STATIC)
    n_items: Annotated[int, Range(2)] = field(metadata=STATIC)
    window: Annotated[int, Range(1)] = field(default=200, metadata=STATIC)
    loss_fn: Callable[..., Array] = field(default=bce, metadata=STATIC)
    hyperparams: dict[str, Any] = field(default_factory=dict)
    negatives: NextItemNegatives = field(default="unseen", kw_only=True, metadata=STATIC)
    n_neg: Annotated[int, Range(1)] = field(default=1, kw_only=True, metadata=STATIC)
    tile: Annotated[int | None, Range(1)] = field(default=None, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        check_network("network", self.network)
        check_hyperparams(self.loss_fn, self.hyperparams)

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` unless the data are sequences, one of which has two items."""
        self._check_items("data", data)
        if not (np.asarray(data)[:, :-1] >= 0).any():
            raise ValueError("`data` must have a sequence of two items or more.")

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initializes the network."""
        return self.network.init(stream(key, "params"))

    def batch(self, key: Key[Array, ""], examples: Batch) -> SequenceBatch:
        """Cuts the windows and draws negatives, which need no parameters."""
        sequences, n = examples.data, self.n_neg
        items = sequences[:, -(self.window + 1) :]
        shape = (len(items), items.shape[1] - 1, n)
        if self.negatives == "all":
            return SequenceBatch(items, None)
        if self.negatives == "unseen":
            samples = sample_absent(key, sequences, self.n_items, shape[1] * n)
            return SequenceBatch(items, samples.reshape(shape))
        other = randint_below(key, shape, jnp.int32(self.n_items - 1))
        return SequenceBatch(items, other + (other >= items[:, 1:, None]))

    def loss(
        self, params: Any, model_state: Any, batch: SequenceBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean loss over the positions of the real sequences."""
        inputs, targets = batch.items[:, :-1], batch.items[:, 1:]
        hidden, variables = self.network.apply(params, model_state, inputs, train=True)
        vectors = self._item_vectors(params, model_state)
        valid = ctx.where[:, None] & (inputs >= 0)
        targets = jnp.maximum(targets, 0)
        if batch.neg is None:
            flat = hidden.reshape(-1, hidden.shape[-1])
            loss = tiled_catalogue_loss(
                self.loss_fn, flat, vectors, targets.reshape(-1), where=valid.reshape(-1),
                rows=self.tile, **self.hyperparams,
            )  # fmt: skip
            return loss, (variables, {})
        # No item is unseen by users of the whole catalogue.
        where = valid[..., None] & (batch.neg < self.n_items)
        neg_items = jnp.minimum(batch.neg, self.n_items - 1)
        pos = _scores(hidden, jnp.take(vectors, targets[..., None], axis=0))[..., 0]
        neg = _scores(hidden, jnp.take(vectors, neg_items, axis=0))
        each = self.loss_fn(pos, neg, where=where, reduce_fn=None, **self.hyperparams)
        return masked_mean(each, where=jnp.any(where, axis=-1)), (variables, {})

    def tables(
        self, params: Any, model_state: Any, histories: Int[Array, "n width"], *,
        block_size: int = 256,
    ) -> Tables:  # fmt: skip
        """Vectors of histories and items, whose inner products score the next item.

        Use them with :func:`crl_jax.metrics.evaluate` and :func:`crl_jax.models.inner_scores`.

        Args:
          params: Parameters of the task.
          model_state: Model state of the task.
          histories: Items of each user, padded on the left by negative ids; their last ``window``
            items are used. Users need not be those of the training.
          block_size: Number of histories per block, which bounds the memory; static.

        Raises:
          ValueError: If ``histories`` are no sequences of items below ``n_items`` with padding on
            the left alone, or ``block_size`` is below 1.
        """
        check_count("block_size", block_size)

        def encode(block: Any) -> Any:
            return self.network.apply(params, model_state, block)[0][:, -1]

        items = self._item_vectors(params, model_state)
        self._check_items("histories", histories)
        if len(histories):
            users = map_blocks(encode, histories[:, -self.window :], block_size)
        else:
            users = items[:0]
        return Tables(*at_least_float32(users, items))

    def top_k(
        self, params: Any, model_state: Any, histories: Int[Array, "n width"], k: int, *,
        exclude_seen: bool = True,
    ) -> tuple[Float[Array, "n k"], Int[Array, "n k"]]:  # fmt: skip
        """Returns the scores and indices of the k items that are most likely next.

        Args:
          params, model_state, histories: As for :meth:`tables`.
          k: Number of items, ``1 <= k <= n_items``. Static.
          exclude_seen: Whether items of the history are excluded; the lists of long histories may
            then be padded by item -1 with score -inf. Static.

        Raises:
          ValueError: As :meth:`tables`, or if ``k`` is out of range.
        """
        tables = self.tables(params, model_state, histories)
        scores = jnp.matmul(tables.users, tables.items.T, precision=jax.lax.Precision.HIGHEST)
        if exclude_seen:
            seen = jnp.where(histories < 0, self.n_items, histories)  # dropped if out of range
            rows = jnp.arange(len(seen), dtype=seen.dtype)[:, None]
            scores = scores.at[rows, seen].set(-jnp.inf, mode="drop")
        values, items = top_k(scores, k)
        return values, jnp.where(values > -jnp.inf, items, -1)

    def _check_items(self, name: str, rows: Any) -> None:
        """Raises ``ValueError`` unless ``rows`` are sequences of known items."""
        check_sequences(name, rows)
        if isinstance(rows, Tracer):
            return
        largest = np.asarray(rows).max(initial=-1)  # on the host, where nothing is compiled
        if largest >= self.n_items:
            raise ValueError(
                f"`{name}` must have items below `n_items` {self.n_items}, got {largest}."
            )

    def _item_vectors(self, params: Any, model_state: Any) -> Float[Array, "n_items dim"]:
        vectors = self.network.apply(params, model_state, method="item_vectors")[0]
        if vectors.shape[0] != self.n_items:
            raise ValueError(
                f"`n_items` must be {vectors.shape[0]}, the number of items of the network, got "
                f"{self.n_items}."
            )
        return vectors


def _scores(
    hidden: Float[Array, "batch window dim"], items: Float[Array, "batch window n dim"]
) -> Float[Array, "batch window n"]:
    """Inner products of positions with their own items, accumulated in at least float32."""
    wide = at_least_float32(hidden[:0])[0].dtype
    return jnp.einsum("bld,blnd->bln", hidden, items, preferred_element_type=wide)
