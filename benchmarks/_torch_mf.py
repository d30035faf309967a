"""Reference implementation of matrix factorisation in PyTorch, optimised for speed.

There is no Python loop over samples. The shuffled order, negatives and extra positives of an epoch
are drawn at once; both tables are gathered once per step; Adam is one of PyTorch's own kernels.
The fastest of the interchangeable gather and update implementations depends on machine and batch
size, so the caller selects it (:data:`GATHERS`, :data:`ADAMS`, compilation, threads).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

GATHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index": lambda table, ids: table[ids],
    "index_select": lambda table, ids: table.index_select(0, ids.reshape(-1)).view(
        *ids.shape, table.shape[1]
    ),
    "embedding": lambda table, ids: F.embedding(ids, table),
}
ADAMS: dict[str, dict[str, Any]] = {
    "loop": {},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
Loss = Callable[[Tensor, Tensor], Tensor]
"""Signature ``loss(pos [B, 1 + M], neg [B, N])``; returns a scalar."""


def bpr(pos: Tensor, neg: Tensor) -> Tensor:
    """Bayesian personalised ranking."""
    return F.softplus(neg - pos).mean()


def debiased_pairwise(pos: Tensor, neg: Tensor, *, tau_plus: float, floor: float = 1e-2) -> Tensor:
    """Debiased pairwise loss, "Contrastive Learning for Personalized Recommendation", 5.17."""
    main_pos, extra_pos = pos[:, :1], pos[:, 1:]
    unlabelled = torch.sigmoid(main_pos - neg).mean(1)
    positive = torch.sigmoid(main_pos - extra_pos).mean(1)
    return -torch.log(((unlabelled - tau_plus * positive) / (1 - tau_plus)).clamp(min=floor)).mean()


@dataclass(frozen=True)
class Problem:
    """Training interactions as tensors, sorted by user."""

    users: Tensor
    items: Tensor
    indptr: Tensor
    degrees: Tensor
    is_positive: Tensor
    """Mask of the positive pairs, bool ``[n_users * n_items]``."""
    n_users: int
    n_items: int

    @classmethod
    def from_pairs(
        cls, users: np.ndarray, items: np.ndarray, n_users: int, n_items: int
    ) -> "Problem":
        """Creates a problem from distinct pairs in any order."""
        pairs = np.sort(users.astype(np.int64) * n_items + items)
        is_positive = torch.zeros(n_users * n_items, dtype=torch.bool)
        is_positive[torch.from_numpy(pairs)] = True
        degrees = np.bincount(pairs // n_items, minlength=n_users)
        return cls(
            users=torch.from_numpy(pairs // n_items),
            items=torch.from_numpy(pairs % n_items),
            indptr=torch.from_numpy(np.concatenate(([0], np.cumsum(degrees)))),
            degrees=torch.from_numpy(degrees),
            is_positive=is_positive,
            n_users=n_users,
            n_items=n_items,
        )

    def sample_unseen(self, users: Tensor, n: int) -> Tensor:
        """Samples ``n`` items per user, uniformly from the user's items without interaction.

        Samples that hit a positive are drawn again. While the bitmap of all pairs fits in memory,
        it is several times as fast as a binary search in the sorted positives.
        """
        row_offsets = (users * self.n_items).repeat_interleave(n)
        items = torch.randint(self.n_items, row_offsets.shape)
        hits = self.is_positive[row_offsets + items].nonzero().squeeze(1)
        while len(hits):
            items[hits] = torch.randint(self.n_items, hits.shape)
            hits = hits[self.is_positive[row_offsets[hits] + items[hits]]]
        return items.view(-1, n)

    def sample_seen(self, users: Tensor, n: int) -> Tensor:
        """Samples ``n`` items per user uniformly, with replacement, from the user's positives."""
        offsets = torch.rand(len(users), n) * self.degrees[users][:, None]
        return self.items[self.indptr[users][:, None] + offsets.long()]


class Trainer:
    """Trains two tables using Adam with L2 added to the gradient, over all interactions."""

    def __init__(
        self, problem: Problem, batch_loss: Callable[..., Tensor], *,
        n_neg: int, n_pos: int, adam: str, dim: int, learning_rate: float, weight_decay: float,
        batch_size: int, seed: int,
    ):  # fmt: skip
        torch.manual_seed(seed)
        self.problem, self.batch_loss = problem, batch_loss
        self.n_neg, self.n_pos, self.batch_size = n_neg, n_pos, batch_size
        self.tables = [
            torch.nn.init.xavier_normal_(torch.empty(rows, dim)).requires_grad_()
            for rows in (problem.n_users, problem.n_items)
        ]
        self.adam = torch.optim.Adam(
            self.tables, lr=learning_rate, weight_decay=weight_decay, **ADAMS[adam]
        )

    def epoch(self) -> float:
        """Runs one epoch over all interactions in a new random order; returns the mean loss."""
        problem = self.problem
        order = torch.randperm(len(problem.users))
        users = problem.users[order]
        columns = [problem.items[order][:, None]]
        if self.n_pos:
            columns.append(problem.sample_seen(users, self.n_pos))
        columns.append(problem.sample_unseen(users, self.n_neg))
        items = torch.cat(columns, dim=1)
        total = torch.zeros(())
        for u, i in zip(users.split(self.batch_size), items.split(self.batch_size)):
            self.adam.zero_grad(set_to_none=True)
            loss = self.batch_loss(*self.tables, u, i)
            loss.backward()
            self.adam.step()
            total += loss.detach() * len(u)  # no .item(), so that nothing waits for the value
        return total.item() / len(users)

    def scores(self) -> np.ndarray:
        """Returns the scores of all pairs, ``[n_users, n_items]``."""
        with torch.inference_mode():
            return (self.tables[0] @ self.tables[1].T).numpy()


def make_batch_loss(loss: Loss, gather: str, n_pos: int) -> Callable[..., Tensor]:
    """Returns ``batch_loss(user_table, item_table, users, items)``, fit for ``torch.compile``."""
    take = GATHERS[gather]

    def batch_loss(user_table: Tensor, item_table: Tensor, users: Tensor, items: Tensor) -> Tensor:
        scores = (take(user_table, users)[:, None] * take(item_table, items)).sum(-1)
        return loss(scores[:, : 1 + n_pos], scores[:, 1 + n_pos :])

    return batch_loss
