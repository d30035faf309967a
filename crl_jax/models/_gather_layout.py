"""Sums of neighbours by gathering rows: no scatter, no weights, nothing as long as the edges.

A row with few neighbours is one sum of gathered rows, which XLA fuses to a loop that holds the sum
in registers. Rows of like lengths make a block. A longer row is cut into pieces, which are summed
in the same way, and then the row is the sum of its pieces: again a row with few neighbours.

Users and items are numbered by these blocks, so that the sums of one layer, one block below the
other, are the table that the next one gathers from. One number on each side is of nobody: its row
is zero, and what a block lacks in neighbours it takes from there.
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

WIDTHS = (4, 8, 16, 32)
"""Widths of blocks. A row is filled up to the next one; one longer than the last is cut."""

_ROWS = lax.GatherDimensionNumbers(
    offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)
)


@pytree_dataclass(eq=False)
class NeighbourSums:
    """Which rows of a table are summed to which row of the next.

    Attributes:
      blocks: For each width ``[rows, width]``: the rows that make a sum.
      pieces: The same for the pieces of longer rows ``[n_pieces + 1, width]``, the last one empty.
        None where no row is longer.
      rest: The sums of pieces that make the longer rows.
    """

    blocks: Any
    pieces: Any
    rest: Any

    def __call__(
        self, table: Float[Array, "n dim"], scale: Float[Array, "n_sums 1"], true: Bool[Array, ""]
    ) -> Float[Array, "n_sums dim"]:
        """The sums, each times its own scale; ``true`` is true, but not to the compiler."""
        parts = self._parts(table, scale, true)
        return _apart(lambda parts: jnp.concatenate(parts), parts, true)

    def _parts(self, table: Array, scale: Array, true: Array) -> list[Array]:
        parts, pieces = _apart(lambda table: self._sum_all(table, scale), table, true)
        if self.rest is not None:
            done = sum(len(block) for block in self.blocks)
            parts += self.rest._parts(pieces, scale[done:], true)
        return parts

    def _sum_all(self, table: Array, scale: Array) -> tuple[list[Array], Array | None]:
        sums, done = [], 0
        for block in self.blocks:
            sums.append(scale[done : done + len(block)] * _sum_rows(table, block))
            done += len(block)
        return sums, None if self.pieces is None else _sum_rows(table, self.pieces)

    def map(self, change: Any, *others: "NeighbourSums") -> "NeighbourSums":
        """With ``change`` of the rows that are taken from the table itself."""
        blocks = tuple(map(change, self.blocks, *(other.blocks for other in others)))
        if self.pieces is None:
            return replace(self, blocks=blocks)
        pieces = change(self.pieces, *(other.pieces for other in others))
        return replace(self, blocks=blocks, pieces=pieces)


@pytree_dataclass(eq=False)
class BipartiteSide:
    """Users or items: their numbers, and what they are summed from.

    Attributes:
      order: Who has each number, ``[n + 1]``; nobody is written ``n``.
      number: The number of each, ``[n]``.
      sums: The rows of the other side's table that make each row of this side's.
      edges: The interaction of each entry of ``sums``; where there is none, their count. None
        where no interaction is ever dropped.
    """

    order: Any
    number: Any
    sums: Any
    edges: Any

    def enter(self, table: Float[Array, "n dim"]) -> Float[Array, "_numbers dim"]:
        """A table by number, zero for nobody."""
        return table.at[self.order].get(mode="fill", fill_value=0)

    def leave(self, table: Float[Array, "_numbers dim"]) -> Float[Array, "n dim"]:
        """Back again."""
        return take_inside(table, self.number)


@pytree_dataclass(eq=False)
class GatherLayout:
    """The graph as rows to gather, for both sides."""

    users: Any
    items: Any

    @classmethod
    def from_csr(
        cls,
        indptr: Int64[np.ndarray, " rows"],
        items: Int[np.ndarray, " n"],
        n_items: int,
        droppable: bool,
    ) -> "GatherLayout":
        """Lays out interactions in CSR form."""
        n_users, n = len(indptr) - 1, len(items)
        users = np.repeat(np.arange(n_users), np.diff(indptr))
        by_item = np.argsort(items, kind="stable")
        item_degrees = np.bincount(items, minlength=n_items)
        user_order, item_order = _order(np.diff(indptr)), _order(item_degrees)
        user_number, item_number = np.argsort(user_order), np.argsort(item_order)

        def side(
            order: np.ndarray,
            number: np.ndarray,
            indptr: np.ndarray,
            others: np.ndarray,
            other_number: np.ndarray,
            edges: np.ndarray,
        ) -> BipartiteSide:
            lengths = np.append(np.diff(indptr), 0)[order]
            begins = indptr[order]
            made = _sums(begins, lengths, np.append(other_number[others], other_number[-1]))
            dropped = _sums(begins, lengths, np.append(edges, n)) if droppable else None
            return BipartiteSide(_int32(order), _int32(number[:-1]), made, dropped)

        item_indptr = np.concatenate(([0], np.cumsum(item_degrees)))
        return cls(
            users=side(user_order, user_number, indptr, items, item_number, np.arange(n)),
            items=side(item_order, item_number, item_indptr, users[by_item], user_number, by_item),
        )

    def enter(self, users: Array, items: Array) -> tuple[Array, Array]:
        """Tables by number."""
        return self.users.enter(users), self.items.enter(items)

    def leave(self, users: Array, items: Array) -> tuple[Array, Array]:
        """Back again."""
        return self.users.leave(users), self.items.leave(items)

    def sums(self, tables: tuple[Array, Array], scales: tuple[Array, Array]) -> tuple[Array, Array]:
        """The sums over each one's neighbours, scaled, of tables by number."""
        (users, items), (user_scale, item_scale) = tables, scales
        # The barrier hides the numbers of a graph that a program holds as a constant.
        true = lax.optimization_barrier(self.users.order)[0] >= 0
        return (
            self.users.sums(items, user_scale, true),
            self.items.sums(users, item_scale, true),
        )

    def links(self) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """User and item of each interaction, on the host."""
        orders = [np.asarray(side.order) for side in (self.users, self.items)]
        user, item = _entries(self.users.sums)
        item = orders[1][item]
        real = item < len(orders[1]) - 1
        return orders[0][user[real]], item[real]

    def kept(self, keep: Bool[Array, "n"]) -> "GatherLayout":
        """Without the interactions that ``keep`` does not have: nobody takes their places."""
        known = jnp.append(keep, False)

        def side(own: BipartiteSide, other: BipartiteSide) -> BipartiteSide:
            assert own.edges is not None
            nobody = jnp.argmax(other.order).astype(jnp.int32)
            sums = own.sums.map(lambda row, edge: jnp.where(known[edge], row, nobody), own.edges)
            return replace(own, sums=sums)

        return replace(self, users=side(self.users, self.items), items=side(self.items, self.users))


def _entries(sums: NeighbourSums) -> tuple[np.ndarray, np.ndarray]:
    """Which row each entry is summed to, and the entry, those that fill up among them."""
    rows, entries, done = [], [], 0
    for block in map(np.asarray, sums.blocks):
        rows.append(np.repeat(done + np.arange(len(block)), block.shape[1]))
        entries.append(block.ravel())
        done += len(block)
    if sums.rest is not None:
        row, piece = _entries(sums.rest)
        pieces = np.asarray(sums.pieces)
        rows.append(np.repeat(done + row, pieces.shape[1]))
        entries.append(pieces[piece].ravel())
    return np.concatenate(rows), np.concatenate(entries)


def _sum_rows(table: Float[Array, "n dim"], rows: Int[Array, "m width"]) -> Float[Array, "m dim"]:
    # Not a gather of [m, width, dim] and a reduction: XLA would write that out, where a chain of
    # sums becomes one loop over vectors.
    return reduce(jnp.add, (take_inside(table, rows[:, j]) for j in range(rows.shape[1])))


def take_inside(table: Float[Array, "n dim"], rows: Int[Array, "m"]) -> Float[Array, "m dim"]:
    """Rows of a table that it is known to have."""
    inside = lax.GatherScatterMode.PROMISE_IN_BOUNDS
    return lax.gather(table, rows[:, None], _ROWS, (1, table.shape[1]), mode=inside)


def _apart(make: Any, made_of: Any, true: Array) -> Any:
    """``make(made_of)`` by itself, not in one loop with what uses it.

    In a loop that gathers from it, it would be made again for each row; and a concatenation is a
    copy of memory by itself, but a choice for each number within another loop. XLA's compiler for
    CPUs takes an optimisation barrier away before it fuses loops, and a branch after.
    """
    if jax.default_backend() != "cpu":
        return lax.optimization_barrier(make(made_of))
    made = jax.eval_shape(make, made_of)
    zeros = partial(jax.tree.map, lambda x: jnp.zeros(x.shape, x.dtype), made)
    return lax.cond(true, make, lambda _: zeros(), made_of)


def _order(degrees: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, " n_and_one"]:
    """Rows in the order of their blocks; nobody, the row ``n``, has no neighbour."""
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
    """The sums of ``entries[begins:begins + lengths]``, filled up with the last entry."""
    blocks = []
    for low, width in zip((-1, *WIDTHS), WIDTHS):
        rows = (low < lengths) & (lengths <= width)
        if rows.any():
            blocks.append(_int32(_filled(begins[rows], lengths[rows], width, entries)))
    long = lengths > WIDTHS[-1]
    if not long.any():
        return NeighbourSums(tuple(blocks), None, None)
    width = WIDTHS[-1]
    begins, lengths = begins[long], lengths[long]
    counts = -(-lengths // width)
    first = np.cumsum(counts) - counts
    row = np.repeat(np.arange(len(counts)), counts)
    skipped = width * (np.arange(len(row)) - first[row])
    pieces = _filled(
        np.append(begins[row] + skipped, 0), np.append(lengths[row] - skipped, 0), width, entries
    )
    rest = _sums(first, counts, np.arange(len(row) + 1))
    return NeighbourSums(tuple(blocks), _int32(pieces), rest)


def _filled(begins: Any, lengths: Any, width: int, entries: Any) -> Int64[np.ndarray, "m width"]:
    place = np.arange(width)
    inside = place < lengths[:, None]
    return entries[np.where(inside, begins[:, None] + place, -1)]


def _int32(array: Any) -> Int[Array, "..."]:
    return jnp.asarray(np.asarray(array, np.int32))
