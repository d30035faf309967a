"""SASRec encoder of item sequences."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from .._hyperparams import Range, check_fields

# Importing `flax.nnx` is slow, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@dataclass(frozen=True)
class SASRec:
    r"""Configuration of a SASRec encoder, for ``models.Network(models.SASRec(n_items))``.

    The module maps item sequences, int ``[batch, length]``, to a vector per position,
    ``[batch, length, width]``, whose inner products with the item vectors score the next item. Its
    method ``item_vectors`` returns these vectors, ``[n_items, width]``, which are also the input
    embeddings. A vector depends on the item at its position and those before it. Sequences end in
    the last column; negative ids are padding, and vectors of their positions are arbitrary. Block b
    is

    .. math::
        y &= x + \mathrm{softmax}\Big(\frac{QK^\top}{\sqrt{d}}\Big) V, \qquad
            (Q, K, V) = \mathrm{LN}(x)\,(W_Q, W_K, W_V) \\
        z &= y + W_2\,\mathrm{relu}(W_1 \mathrm{LN}(y) + b_1) + b_2

    after the sum of :math:`\sqrt{d}` times the item embedding and the position embedding, and a
    LayerNorm follows the last block. Positions are counted from the end and padded keys are masked,
    so that vectors do not depend on the amount of padding.

    It computes in the dtype of its parameters, LayerNorm and softmax in float32. In training,
    dropout follows the embeddings, the attention weights and both sublayers, with a random key as
    that of :class:`BERT`. Kernels and embeddings are initialised from N(0, 0.02²).

    Attributes:
      n_items: Number of items, >= 1.
      width: Dimension of the vectors, >= 1.
      n_layers: Number of self-attention blocks, >= 1.
      n_heads: Number of attention heads; must divide ``width``.
      n_positions: Maximum length of a sequence, >= 1.
      dropout: Dropout rate, in [0, 1).
      epsilon: Added to variances by LayerNorm, in (0, 1].

    Raises:
      ValueError: If a value is out of range.

    References:
      Kang and McAuley, `Self-Attentive Sequential Recommendation
      <https://arxiv.org/abs/1808.09781>`_, 2018, section III. The factor :math:`\sqrt{d}` is that
      of the published code.
    """

    n_items: Annotated[int, Range(1)]
    width: Annotated[int, Range(1)] = 64
    n_layers: Annotated[int, Range(1)] = 2
    n_heads: Annotated[int, Range(1)] = 1
    n_positions: Annotated[int, Range(1)] = 200
    dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.2
    epsilon: Annotated[float, Range(0, 1, low_open=True)] = 1e-8

    def __post_init__(self):
        check_fields(self)
        if self.width % self.n_heads:
            raise ValueError(f"`n_heads` must divide `width`, {self.width}, got {self.n_heads}.")

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._sasrec_modules import SASRecModule

        return SASRecModule(self, rngs)
