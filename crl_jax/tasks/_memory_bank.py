"""Instance discrimination with a memory bank of the features of all examples."""

from dataclasses import field
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .._hyperparams import Range
from .._pytree import STATIC, pytree_dataclass
from ..losses import normalize
from ..train import LossOutput, StepContext, stream
from ..weights import MeasuredAlphaState
from ._momentum import cosine_similarity
from ._score_task import LossInputs, check_n_examples, class_masks
from ._simclr import SimCLR
from ._views import ViewBatch, cast_like


class MemoryBankState(NamedTuple):
    """Model state of :class:`MemoryBank`.

    Attributes:
      network_state: Non-trainable variables of the network.
      bank: Normalized features of all examples, ``[n, dim]``.
      labels: Classes of the examples seen so far, ``[n]``; -1 where unknown.
      alpha: Running estimate of α, or None.
    """

    network_state: Any
    bank: Float[Array, "n dim"]
    labels: Int[Array, "n"]
    alpha: MeasuredAlphaState | None = None


@pytree_dataclass
class MemoryBank(SimCLR):
    r"""Instance discrimination: an example is contrasted with stored features of all examples.

    The bank holds a unit vector :math:`v_i` of each example, random at first. The anchor is the
    embedding :math:`f_i` of the first view of example i, its positive :math:`v_i`; the negatives
    are :math:`v_j` of sampled examples j, shared by the batch, without those with j = i. After a
    step, :math:`v_i \leftarrow m\,v_i + (1 - m)\,f_i`, normalized. No gradient reaches the bank.
    The second view is not used.

    Differences from the published code: the loss is a contrastive loss of the sampled negatives, as
    in the comparison of He et al., instead of noise-contrastive estimation with a constant estimate
    of the partition function; negatives are drawn for a batch instead of for each example.

    Precision: that of :func:`crl_jax.losses.tower_scores`.

    Attributes:
      n_examples: Number of examples in the data. Static.
      momentum: Momentum :math:`m` of the features, in [0, 1].
      dim: Dimension of the embeddings. Static.
      n_neg: Number of negatives, drawn uniformly with replacement; None for all examples. Static.

    The other attributes are those of :class:`SimCLR`.

    References:
      Wu et al., `Unsupervised Feature Learning via Non-Parametric Instance Discrimination
      <https://arxiv.org/abs/1805.01978>`_, 2018, Eq. 2 and section 3.1; He et al., `Momentum
      Contrast for Unsupervised Visual Representation Learning
      <https://arxiv.org/abs/1911.05722>`_, 2020, section 3.2.
    """

    n_examples: Annotated[int, Range(2)] = field(kw_only=True, metadata=STATIC)
    momentum: Annotated[Any, Range(0, 1)] = 0.5
    dim: Annotated[int, Range(1)] = field(default=128, metadata=STATIC)
    n_neg: Annotated[int | None, Range(1)] = field(default=4096, metadata=STATIC)

    def check_data(self, data: Any) -> None:
        """Raises ``ValueError`` for another number of examples, or without the needed labels."""
        super().check_data(data)
        check_n_examples(self.n_examples, data)

    def init(self, key: Key[Array, ""]) -> tuple[Any, MemoryBankState]:
        """Initializes the network, and a bank of random directions."""
        params, network_state = self.init_network(stream(key, "params"))
        bank = normalize(jax.random.normal(stream(key, "model_state"), (self.n_examples, self.dim)))
        labels = jnp.full(self.n_examples, -1, jnp.int32)
        return params, MemoryBankState(network_state, bank, labels, self.initial_alpha())

    def loss(
        self, params: Any, model_state: MemoryBankState, batch: ViewBatch, ctx: StepContext
    ) -> LossOutput:
        """Computes the mean over the first views of the real examples."""
        bank, index = model_state.bank, batch.indices
        assert index is not None
        z, network_state = self.network.apply(
            params, model_state.network_state, cast_like(params, batch.first), train=True
        )
        anchor = normalize(z)
        if self.n_neg is None:
            sampled, keys = jnp.arange(self.n_examples, dtype=jnp.int32), bank
        else:
            sampled = jax.random.randint(ctx.key, (self.n_neg,), 0, self.n_examples, jnp.int32)
            keys = bank[sampled]
        neg = jnp.matmul(anchor, keys.astype(anchor.dtype).T, preferred_element_type=jnp.float32)
        inputs = LossInputs(
            cosine_similarity(anchor, bank[index]), neg, index[:, None] != sampled[None, :],
            class_masks(batch.labels, model_state.labels[sampled]),
        )  # fmt: skip
        loss, alpha, metrics = self.score_loss(inputs, model_state.alpha, ctx)

        m = jnp.asarray(self.momentum, bank.dtype)
        features = jax.lax.stop_gradient(anchor).astype(bank.dtype)
        features = normalize(m * bank[index] + (1 - m) * features)
        seen = jnp.where(ctx.where, index, self.n_examples)  # padding is dropped
        bank, labels = bank.at[seen].set(features, mode="drop"), model_state.labels
        if batch.labels is not None:
            labels = labels.at[seen].set(batch.labels, mode="drop")
        return loss, (MemoryBankState(network_state, bank, labels, alpha), metrics)
