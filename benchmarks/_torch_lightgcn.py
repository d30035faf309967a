"""Reference implementation of LightGCN in PyTorch, optimised for speed.

The normalised adjacency is one CSR matrix. It is symmetric, so the backward pass of a product is
the same product, without a transpose. A step propagates once; the negatives of an epoch are drawn
at once; L2 applies to the batch's embeddings before any layer, as in the published code.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .propagation import normalise_graph


class SymmetricProduct(torch.autograd.Function):
    """``matrix @ table`` for a symmetric sparse matrix that requires no gradient."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, table: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the product."""
        ctx.matrix = matrix
        return matrix @ table

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[None, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Computes the gradient, which is the same product."""
        return None, ctx.matrix @ grad_output


def normalised_adjacency(
    users: np.ndarray, items: np.ndarray, n_users: int, n_items: int
) -> Tensor:
    """Returns D^{-1/2} A D^{-1/2} in CSR format, users first."""
    matrix = normalise_graph(users, items, n_users, n_items, np.float32)
    parts = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    return torch.sparse_csr_tensor(*parts, torch.from_numpy(matrix.data), size=matrix.shape)


def propagate(matrix: Tensor, table: Tensor, n_layers: int) -> Tensor:
    """Returns the mean of the layers 0 to ``n_layers``."""
    layer, total = table, table
    for _ in range(n_layers):
        layer = SymmetricProduct.apply(matrix, layer)
        total = total + layer
    return total / (n_layers + 1)


class Trainer:
    """Trains one table of users and items with fused Adam and BPR over all interactions.

    Args:
      users: User of each interaction, ``[n]``.
      items: Item of each interaction, ``[n]``.
      n_users: Number of users.
      n_items: Number of items.
      dim: Embedding dimension.
      n_layers: Number of propagation layers; scores use the mean of all layers.
      batch_size: Interactions per step.
      learning_rate: Adam's learning rate.
      l2: Factor of the mean of half the squared norm of a triplet's rows before any layer.
    """

    def __init__(
        self, users: np.ndarray, items: np.ndarray, n_users: int, n_items: int, *,
        dim: int, n_layers: int, batch_size: int, learning_rate: float, l2: float,
    ):  # fmt: skip
        torch.manual_seed(0)
        self.n_users, self.n_items = n_users, n_items
        # A bitmap of all pairs is fast, but would take more memory than everything else combined.
        self.pairs = torch.from_numpy(np.sort(users.astype(np.int64) * n_items + items))
        self.matrix = normalised_adjacency(users, items, n_users, n_items)
        self.n_layers, self.batch_size, self.l2 = n_layers, batch_size, l2
        self.table = torch.nn.init.normal_(torch.empty(n_users + n_items, dim), std=0.1)
        self.table.requires_grad_()
        self.adam = torch.optim.Adam([self.table], lr=learning_rate, fused=True)

    def epoch(self) -> float:
        """Runs one epoch over all interactions in a new random order; returns the mean loss."""
        pairs = self.pairs[torch.randperm(len(self.pairs))]
        users = pairs // self.n_items
        items = torch.stack([pairs % self.n_items, self.sample_unseen(users)])
        triplets = torch.cat([users[None], items + self.n_users])
        losses = [self.step(batch) for batch in triplets.split(self.batch_size, 1)]
        return torch.stack(losses).mean().item()

    def sample_unseen(self, users: Tensor) -> Tensor:
        """Samples one item per user, uniformly from the user's items without interaction."""
        items = torch.randint(self.n_items, users.shape)
        pending = torch.arange(len(users))
        while len(pending):
            sampled_pairs = users[pending] * self.n_items + items[pending]
            positions = torch.searchsorted(self.pairs, sampled_pairs).clamp_(
                max=len(self.pairs) - 1
            )
            pending = pending[self.pairs[positions] == sampled_pairs]
            items[pending] = torch.randint(self.n_items, pending.shape)
        return items

    def step(self, triplets: Tensor) -> Tensor:
        """Takes a step on nodes ``[3, B]``: users, positives, negatives; returns the BPR loss."""
        self.adam.zero_grad(set_to_none=True)
        propagated = propagate(self.matrix, self.table, self.n_layers)
        rows = propagated.index_select(0, triplets.reshape(-1)).view(*triplets.shape, -1)
        user, pos, neg = rows.unbind()
        loss = F.softplus((user * (neg - pos)).sum(-1)).mean()
        initial_rows = self.table.index_select(0, triplets.reshape(-1))
        (loss + self.l2 * 0.5 * initial_rows.square().sum() / triplets.shape[1]).backward()
        self.adam.step()
        return loss.detach()

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the embeddings of users and of items after propagation."""
        with torch.inference_mode():
            propagated = propagate(self.matrix, self.table, self.n_layers).numpy()
        return propagated[: self.n_users], propagated[self.n_users :]
