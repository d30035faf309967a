"""BERT text encoder."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from .._hyperparams import Range, check_fields

# Importing `flax.nnx` is slow, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx

Pooling = Literal["mean", "cls"]
"""Pooling of token vectors: their mean or the vector of the first token."""


@dataclass(frozen=True)
class BERT:
    r"""Configuration of a BERT encoder, for ``models.Network(models.BERT())``.

    The module maps :class:`crl_jax.data.Tokens` to features ``[batch, width]``; its method
    ``hidden`` returns the token vectors ``[batch, length, width]``. A layer is

    .. math::
        y = \mathrm{LN}\Big(x + W_O\,\mathrm{softmax}\Big(\frac{QK^\top}{\sqrt{d}}\Big) V\Big),
        \qquad \mathrm{LN}(y + W_2\,\mathrm{gelu}(W_1 y))

    after the sum of token, position and type-0 embeddings. Padding is masked. The mean of a text
    without tokens is 0.

    It computes in the dtype of its parameters, LayerNorm and softmax in float32. In training,
    dropout follows the embeddings, the attention weights and both sublayers. Its random key is one
    of the module's other variables and changes at each call. Equal texts in a batch have different
    dropout masks, which are the two views of SimCSE. Kernels and embeddings are initialised from
    N(0, 0.02²).

    Attributes:
      vocab_size: Number of tokens in the vocabulary, >= 1.
      width: Dimension of the token vectors, >= 1.
      n_layers: Number of layers, >= 1.
      n_heads: Number of attention heads; must divide ``width``.
      inner_width: Hidden dimension of the feed-forward sublayer, >= 1.
      n_positions: Number of positions, the maximum length of a text, >= 1.
      n_types: Number of token types, of which only the first is used, >= 1.
      dropout: Dropout rate, in [0, 1).
      epsilon: Added to variances by LayerNorm, in (0, 1].
      pooling: See :data:`Pooling`.

    Raises:
      ValueError: If a value is out of range.

    References:
      Devlin et al., `BERT <https://arxiv.org/abs/1810.04805>`_, 2019; Vaswani et al., `Attention Is
      All You Need <https://arxiv.org/abs/1706.03762>`_, 2017, Eq. 1 and section 3; Hendrycks and
      Gimpel, `Gaussian Error Linear Units <https://arxiv.org/abs/1606.08415>`_, 2016.
    """

    vocab_size: Annotated[int, Range(1)] = 30_522
    width: Annotated[int, Range(1)] = 768
    n_layers: Annotated[int, Range(1)] = 12
    n_heads: Annotated[int, Range(1)] = 12
    inner_width: Annotated[int, Range(1)] = 3_072
    n_positions: Annotated[int, Range(1)] = 512
    n_types: Annotated[int, Range(1)] = 2
    dropout: Annotated[float, Range(0, 1, high_open=True)] = 0.1
    epsilon: Annotated[float, Range(0, 1, low_open=True)] = 1e-12
    pooling: Pooling = "mean"

    def __post_init__(self):
        check_fields(self)
        if self.width % self.n_heads:
            raise ValueError(f"`n_heads` must divide `width`, {self.width}, got {self.n_heads}.")

    @property
    def n_features(self) -> int:
        """Dimension of the features."""
        return self.width

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._bert_modules import BERTModule

        return BERTModule(self, rngs)
