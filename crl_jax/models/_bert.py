"""BERT, an encoder of texts, as settings that build a Flax NNX module."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from .._checks import check_count, check_range

# Flax takes long to import, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx

Pooling = Literal["mean", "cls"]
"""How the vectors of tokens become one: their mean, or that of the first token."""


@dataclass(frozen=True)
class BERT:
    r"""BERT: ``models.Network(models.BERT())`` maps :class:`crl_jax.data.Tokens` to features.

    The module has three methods. Called, and as ``features``, it gives ``[batch, width]``;
    ``hidden`` gives the vector of each token, ``[batch, length, width]``. A layer is

    .. math::
        y = \mathrm{LN}\Big(x + W_O\,\mathrm{softmax}\Big(\frac{QK^\top}{\sqrt{d}}\Big) V\Big),
        \qquad \mathrm{LN}(y + W_2\,\mathrm{gelu}(W_1 y))

    after the sum of the embeddings of tokens, places and type 0. What only fills up changes
    nothing. A text without a token has a mean of 0.

    It computes in the type of its parameters; LayerNorm and the softmax are float32. In training,
    dropout leaves numbers out after the embeddings, of the weights of attention, and before each
    sum, and scales the others. Its random key is one of the module's other variables and moves at
    each call: two equal texts in a batch get different dropout, which is what makes the views of
    SimCSE. Kernels and embeddings start from N(0, 0.02²).

    Attributes:
      vocab_size: Tokens in the vocabulary, >= 1.
      width: Width of the vectors, >= 1.
      n_layers: Layers, >= 1.
      n_heads: Heads of attention; must divide ``width``.
      inner_width: Width between :math:`W_1` and :math:`W_2`, >= 1.
      n_positions: Places, the length of the longest text, >= 1.
      n_types: Types of tokens, of which the first is used, >= 1.
      dropout: Share that dropout leaves out, in [0, 1).
      epsilon: What LayerNorm adds to variances, > 0.
      pooling: See :data:`Pooling`.

    Raises:
      ValueError: If a setting is out of range.

    References:
      Devlin et al., `BERT <https://arxiv.org/abs/1810.04805>`_, 2019; Vaswani et al., `Attention Is
      All You Need <https://arxiv.org/abs/1706.03762>`_, 2017, Eq. 1 and section 3; Hendrycks and
      Gimpel, `Gaussian Error Linear Units <https://arxiv.org/abs/1606.08415>`_, 2016.
    """

    vocab_size: int = 30_522
    width: int = 768
    n_layers: int = 12
    n_heads: int = 12
    inner_width: int = 3_072
    n_positions: int = 512
    n_types: int = 2
    dropout: float = 0.1
    epsilon: float = 1e-12
    pooling: Pooling = "mean"

    def __post_init__(self):
        for name in (
            "vocab_size", "width", "n_layers", "n_heads", "inner_width", "n_positions", "n_types",
        ):  # fmt: skip
            check_count(name, getattr(self, name))
        if self.width % self.n_heads:
            raise ValueError(f"`n_heads` must divide `width`, {self.width}, got {self.n_heads}.")
        check_range("dropout", self.dropout, 0, 1, high_open=True, dtype=float)
        check_range("epsilon", self.epsilon, 0, 1, low_open=True, dtype=float)
        if self.pooling not in get_args(Pooling):
            raise ValueError(
                f"`pooling` must be one of {', '.join(get_args(Pooling))}, got {self.pooling!r}."
            )

    @property
    def n_features(self) -> int:
        """Width of the features."""
        return self.width

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """The module."""
        from ._bert_modules import BERTModule

        return BERTModule(self, rngs)
