"""Graph isomorphism networks for batches of small graphs."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from .._hyperparams import FINITE, Range, check_fields

# Importing `flax.nnx` is slow, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@dataclass(frozen=True)
class GIN:
    r"""Configuration of a graph isomorphism network, for ``models.Network(models.GIN(n_in))``.

    .. math::
        h_v^{(l)} = \mathrm{norm}\Bigl(\mathrm{relu}\bigl(g_l\bigl((1 + \epsilon)\, h_v^{(l-1)}
        + \sum_{u \sim v} h_u^{(l-1)}\bigr)\bigr)\Bigr), \qquad
        f = \bigl[\textstyle\sum_v h_v^{(1)}, \dots, \sum_v h_v^{(L)}\bigr]

    where g is an MLP of two linear layers and the norm is batch normalisation over valid nodes. The
    module maps a :class:`GraphBatch` to features ``[packs * graphs, n_features]``. It computes in
    the dtype of the node features; sums, means and variances are at least float32.

    Running averages have momentum 0.1, as in PyTorch. Kernels are initialised by Xavier's uniform
    initializer, biases by 0.

    Attributes:
      n_in: Number of node features, >= 1.
      width: Width of each layer, >= 1.
      n_layers: Number of layers L, >= 1.
      epsilon: The ε, additional weight of a node over its neighbours.

    Raises:
      ValueError: If a value is out of range.

    References:
      Xu et al., `How Powerful are Graph Neural Networks? <https://arxiv.org/abs/1810.00826>`_,
      2019, Eq. 4.1 and 4.2; You et al., `Graph Contrastive Learning with Augmentations
      <https://arxiv.org/abs/2010.13902>`_, 2020, and its code ``unsupervised_TU/gin.py`` for the
      order of ReLU and norm.
    """

    n_in: Annotated[int, Range(1)]
    width: Annotated[int, Range(1)] = 32
    n_layers: Annotated[int, Range(1)] = 3
    epsilon: Annotated[float, FINITE] = 0.0

    def __post_init__(self):
        check_fields(self)

    @property
    def n_features(self) -> int:
        """Dimension of the features."""
        return self.width * self.n_layers

    def __call__(self, rngs: "nnx.Rngs") -> Any:
        """Builds the module."""
        from ._gin_modules import GINModule

        return GINModule(self, rngs)
