"""Neighbour sums by gathers: no scatter, no edge weights and no array of the length of the edges.

The sum of a row with few neighbours is a chain of gathered rows, which XLA fuses to a loop that
holds the sum in registers. Rows of similar degree form a block, padded to one width. A longer row
is cut into pieces, which are summed in the same way; the row is then the sum of its pieces, again
a row with few entries.

Users and items are permuted into the order of these blocks, so that the concatenated sums of one
layer are the table that the next layer gathers from. Each side has one additional padding row of
zeros, from which padded entries are gathered.
"""

from dataclasses import replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Int64

from .._pytree import pytree_dataclass
from ..data import Interactions

WIDTHS = (4, 8, 16, 32)
"""Widths of blocks. Rows are padded to the next width; those longer than the last are cut."""

Pair = tuple[Array, Array]
"""Arrays of users and of items."""

_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)


@pytree_dataclass(eq=False)
class NeighbourSums:
    """Indices of the rows that are summed to each row of another table."""

    blocks: Any  # for each width the indices of the summands, [rows, width]
    # Indices for the pieces of longer rows, [n_pieces + 1, width], the last one empty, and sums of
    # pieces to the longer rows; None if no row is longer.
    pieces: Any
    piece_sums: Any

    def __call__(
        self, table: Float[Array, "n dim"], scale: Float[Array, "n_sums 1"], true: Bool[Array, ""]
    ) -> Float[Array, "n_sums dim"]:
        """Scaled sums; ``true`` is a True that the compiler cannot evaluate."""
        parts = self._block_sums(table, scale, true)
        return _unfused(lambda parts: jnp.concatenate(parts), parts, true)

    def _block_sums(self, table: Array, scale: Array, true: Array) -> list[Array]:
        parts, pieces = _unfused(lambda table: self._sum_all(table, scale), table, true)
        if self.piece_sums is not None:
            start = sum(len(block) for block in self.blocks)
            parts += self.piece_sums._block_sums(pieces, scale[start:], true)
        return parts

    def _sum_all(self, table: Array, scale: Array) -> tuple[list[Array], Array | None]:
        sums, start = [], 0
        for block in self.blocks:
            sums.append(scale[start : start + len(block)] * _sum_rows(table, block))
            start += len(block)
        return sums, None if self.pieces is None else _sum_rows(table, self.pieces)

    def map(self, function: Any, *others: "NeighbourSums") -> "NeighbourSums":
        """Applies ``function`` to the indices that refer to the table."""
        blocks = tuple(map(function, self.blocks, *(other.blocks for other in others)))
        if self.pieces is None:
            return replace(self, blocks=blocks)
        pieces = function(self.pieces, *(other.pieces for other in others))
        return replace(self, blocks=blocks, pieces=pieces)


@pytree_dataclass(eq=False)
class BipartiteSide:
    """Permutation of users or of items, and the summands of each."""

    order: Any  # user or item at each position, [n + 1]; n at the position of the padding row
    position: Any  # position of each user or item, [n]
    sums: Any  # positions on the other side that are summed for each position
    edges: Any  # interaction of each entry of `sums`, n for padding; None if none can be dropped

    def permute(self, table: Float[Array, "n dim"]) -> Float[Array, "_numbers dim"]:
        """Permutes a table, with zeros in the padding row."""
        return table.at[self.order].get(mode="fill", fill_value=0)

    def unpermute(self, table: Float[Array, "_numbers dim"]) -> Float[Array, "n dim"]:
        """Inverse of :meth:`permute`."""
        return gather_rows(table, self.position)


@pytree_dataclass(eq=False)
class GatherLayout:
    """Indices of the rows to gather, for users and items."""

    users: Any
    items: Any

    @classmethod
    def from_interactions(cls, train: Interactions, droppable: bool) -> "GatherLayout":
        """Builds the layout of a log; edges can be dropped if ``droppable``."""
        degrees = train.degrees, train.item_counts
        orders = [_order(d) for d in degrees]
        positions = [np.argsort(order) for order in orders]

        def side(i: int, neighbours: np.ndarray, interactions: np.ndarray) -> BipartiteSide:
            begins = np.append(0, np.cumsum(degrees[i]))[orders[i]]
            lengths = np.append(degrees[i], 0)[orders[i]]
            other = positions[1 - i]
            sums = _sums(begins, lengths, np.append(other[neighbours], other[-1]))
            numbers = np.append(interactions, len(train))
            edges = _sums(begins, lengths, numbers) if droppable else None
            return BipartiteSide(_int32(orders[i]), _int32(positions[i][:-1]), sums, edges)

        by_item = np.argsort(train.items, kind="stable")
        users = side(0, train.items, np.arange(len(train)))
        return cls(users, side(1, train.users[by_item], by_item))

    def permute(self, users: Array, items: Array) -> Pair:
        """Permutes both tables."""
        return self.users.permute(users), self.items.permute(items)

    def unpermute(self, users: Array, items: Array) -> Pair:
        """Inverse of :meth:`permute`."""
        return self.users.unpermute(users), self.items.unpermute(items)

    def neighbour_sums(self, tables: Pair, scales: Pair) -> Pair:
        """Scaled sums over the neighbours of each user and item, of permuted tables."""
        (users, items), (user_scale, item_scale) = tables, scales
        # The barrier hides the value of a graph that is a constant of the program.
        true = lax.optimization_barrier(self.users.order)[0] >= 0
        return self.users.sums(items, user_scale, true), self.items.sums(users, item_scale, true)

    def interactions(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Returns user and item of each interaction on the host."""
        orders = [np.asarray(side.order) for side in (self.users, self.items)]
        user, item = _entries(self.users.sums)
        item = orders[1][item]
        valid = item < len(orders[1]) - 1
        return orders[0][user[valid]], item[valid]

    def mask_edges(self, keep: Bool[Array, "n"]) -> "GatherLayout":
        """Keeps the interactions where ``keep`` is True; others become padding."""
        keep = jnp.append(keep, False)

        def side(this: BipartiteSide, other: BipartiteSide) -> BipartiteSide:
            assert this.edges is not None
            padding = jnp.argmax(other.order).astype(jnp.int32)
            sums = this.sums.map(lambda row, edge: jnp.where(keep[edge], row, padding), this.edges)
            return replace(this, sums=sums)

        return replace(self, users=side(self.users, self.items), items=side(self.items, self.users))


def _entries(sums: NeighbourSums) -> tuple[np.ndarray, np.ndarray]:
    """Row and index of each summand, padding included."""
    rows, entries, start = [], [], 0
    for block in map(np.asarray, sums.blocks):
        rows.append(np.repeat(start + np.arange(len(block)), block.shape[1]))
        entries.append(block.ravel())
        start += len(block)
    if sums.piece_sums is not None:
        row, piece = _entries(sums.piece_sums)
        pieces = np.asarray(sums.pieces)
        rows.append(np.repeat(start + row, pieces.shape[1]))
        entries.append(pieces[piece].ravel())
    return np.concatenate(rows), np.concatenate(entries)


def _sum_rows(table: Float[Array, "n dim"], rows: Int[Array, "m width"]) -> Float[Array, "m dim"]:
    # XLA would materialise a gather of [m, width, dim]; a chain of sums becomes one fused loop.
    return reduce(jnp.add, (gather_rows(table, rows[:, j]) for j in range(rows.shape[1])))


def gather_rows(table: Float[Array, "n dim"], rows: Int[Array, "m"]) -> Float[Array, "m dim"]:
    """Gathers rows without bounds checks."""
    inside = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(table, rows[:, None], _ROWS, (1, table.shape[1]), mode=inside)


def _unfused(function: Any, x: Any, true: Array) -> Any:
    """Computes ``function(x)`` in a separate loop, not fused with its consumers.

    Fused into a gather it would be recomputed for each row; and a concatenation is a copy of
    memory if it is separate, but a branch per element in a fused loop. XLA on CPUs removes an
    optimisation barrier before it fuses loops; a conditional it removes only afterwards.
    """

    def on_cpu(x: Any, true: Array) -> Any:
        shapes = jax.eval_shape(function, x)
        zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return lax.cond(true, function, lambda _: zeros(), x)

    def default(x: Any, true: Array) -> Any:
        del true
        return lax.optimization_barrier(function(x))

    return lax.platform_dependent(x, true, cpu=on_cpu, default=default)


def _order(degrees: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n_and_one"]:
    """Rows in the order of their blocks; the padding row ``n`` has no neighbours."""
    lengths = np.append(degrees, 0)
    block = np.zeros(len(lengths), np.int64)
    longer = np.ones(len(lengths), bool)
    while longer.any():
        block[longer] += np.searchsorted(WIDTHS, lengths[longer])
        longer &= lengths > WIDTHS[-1]
        lengths = -(-lengths // WIDTHS[-1])
    return np.argsort(block, kind="stable")


def _sums(
    begins: Int64[np.ndarray, " m"],
    lengths: Int64[np.ndarray, " m"],
    entries: Int64[np.ndarray, " n_and_one"],
) -> NeighbourSums:
    """Sums of ``entries[begins:begins + lengths]``, padded with the last entry."""
    blocks = []
    for low, width in zip((-1, *WIDTHS), WIDTHS):
        rows = (low < lengths) & (lengths <= width)
        if rows.any():
            blocks.append(_int32(_padded(begins[rows], lengths[rows], width, entries)))
    long = lengths > WIDTHS[-1]
    if not long.any():
        return NeighbourSums(tuple(blocks), None, None)
    width = WIDTHS[-1]
    begins, lengths = begins[long], lengths[long]
    counts = -(-lengths // width)
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    skipped = width * (np.arange(len(row)) - first[row])
    pieces = _padded(
        np.append(begins[row] + skipped, 0), np.append(lengths[row] - skipped, 0), width, entries
    )
    piece_sums = _sums(first, counts, np.arange(len(row) + 1))
    return NeighbourSums(tuple(blocks), _int32(pieces), piece_sums)


def _padded(begins: Any, lengths: Any, width: int, entries: Any) -> Int64[np.ndarray, "m width"]:
    offset = np.arange(width)
    inside = offset < lengths[:, None]
    return entries[np.where(inside, begins[:, None] + offset, -1)]


def _int32(array: Any) -> Int[Array, "..."]:
    return jnp.asarray(np.asarray(array, np.int32))
