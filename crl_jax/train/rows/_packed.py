"""Tables packed to whole vectors of a TPU, so that a step copies no table.

TPUs store arrays in tiles of 128 lanes. A table of 64 columns is padded to 128 in row-major order,
which row access needs, and is not padded in column-major order, which is therefore its default.
XLA converts the whole table from one to the other in each step. A packed table has rows of a
multiple of 128 numbers, for which both orders are equally large: two rows of 64 and their optimizer
states are one *slot*. A step reads and writes whole slots, by a single gather and a single scatter.

Such slots need the memory of a second table and state. Large tables of whole tiles, to which tables
are padded on a mesh, are therefore packed *in place*: the rows of 128 consecutive ids occupy
the same tiles in both formats, so that the table and each array of its state are permuted block by
block, and a step gathers from each of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Float, Int

from ..._mesh import LANES, filled
from ..._pytree import STATIC, pytree_dataclass
from ._rules import RowTransformation
from ._tables import GatheredRows, TableState, positions, represent

_SUBLANES = 8
"""Number of sublanes of a vector register: a tile has 8 x 128 numbers of 32 bits."""
IN_PLACE = 2**18
"""Number of rows from which a table is packed in place, at the cost of more gathers per step."""


@dataclass(frozen=True)
class Packing:
    """Static description of a packed table.

    Attributes:
      n_rows: Number of rows of the table.
      dim: Number of columns of the table.
      tree: Structure of the state of the row transformation.
      in_slot: For each leaf of this state, whether it is stored in the slots, as all leaves of the
        shape and dtype of the table are.
      in_place: Whether the table and each of these leaves are packed in their own memory.
    """

    n_rows: int
    dim: int
    tree: Any
    in_slot: tuple[bool, ...]
    in_place: bool = False

    @property
    def per_slot(self) -> int:
        """Number of rows per slot."""
        return max(1, LANES // self.dim)

    @property
    def width(self) -> int:
        """Number of columns of joined slots."""
        used = (1 + sum(self.in_slot)) * self.per_slot * self.dim
        return -(-used // LANES) * LANES

    def join(self, arrays: list[Array]) -> list[Float[Array, "slots _"]]:
        """Joins rows and the leaves of their state, all ``[slots * per_slot, dim]``, to slots.

        One array of all of them, or one array for each if they are packed in place.
        """
        parts = [x.reshape(-1, self.per_slot * self.dim) for x in arrays]
        return parts if self.in_place else [filled(jnp.concatenate(parts, axis=1), LANES, axis=1)]

    def split(self, slots: list[Float[Array, "slots _"]]) -> list[Array]:
        """Inverse of :meth:`join`."""
        columns = self.per_slot * self.dim
        if not self.in_place:
            starts = range(0, (1 + sum(self.in_slot)) * columns, columns)
            slots = [lax.slice_in_dim(slots[0], i, i + columns, axis=1) for i in starts]
        return [x.reshape(-1, self.dim) for x in slots]

    def address(self, slots: Int[Array, "m"], n_slots: int) -> Int[Array, "m"]:
        """Index of each slot in the packed arrays; ``n_slots`` if there is no such slot.

        In place, the vectors of a tile of 128 ids are in :math:`dim/8` tiles of 8 vectors, which
        are as far apart as the columns of the table.
        """
        if not self.in_place:
            return slots
        column = slots % self.dim  # a tile of ids has as many slots as the table has columns
        stride = n_slots * _SUBLANES // self.dim
        index = column // _SUBLANES * stride + slots // self.dim * _SUBLANES + column % _SUBLANES
        return jnp.where(slots < n_slots, index, n_slots)

    def merge(self, inside: list[Array], others: Any) -> Any:
        """State of the row transformation, from the leaves of the slots and all others."""
        first, second = iter(inside), iter(others)
        return self.tree.unflatten([next(first if is_in else second) for is_in in self.in_slot])

    def divide(self, rule_state: Any) -> tuple[list[Array], tuple[Array, ...]]:
        """Inverse of :meth:`merge`."""
        leaves = list(zip(self.tree.flatten_up_to(rule_state), self.in_slot))
        return [x for x, is_in in leaves if is_in], tuple(x for x, is_in in leaves if not is_in)


@pytree_dataclass(eq=False)
class PackedState:
    """Counterpart of :class:`TableState` for a packed table.

    Attributes:
      slots: Slots of the leaves of the state, one array for each if they are packed in place, else
        none, since the slots of the table have them.
      others: Leaves of the state that are not stored in the slots, ``[slots * per_slot, ...]``.
      position: Position of each slot in the last batch that read it, int32 ``[slots]``.
      packing: Description of the table. Static.
    """

    slots: tuple[Array, ...]
    others: tuple[Array, ...]
    position: Int[Array, "slots"]
    packing: Packing = field(metadata=STATIC)


class _GatheredSlots(NamedTuple):
    """State of gathered rows: all rows of the slots that a batch reads.

    Attributes:
      rows: Row values, ``[m * per_slot, dim]``.
      rule_state: State of the row transformation, every leaf ``[m * per_slot, ...]``.
      target: Index in ``rows`` of each requested id's row, int32 ``[m]``.
    """

    rows: Array
    rule_state: Any
    target: Array


def needs_packing(dim: int) -> bool:
    """Whether a table of this width is stored with padding in row-major order."""
    return dim % LANES != 0


def is_in_place(n_rows: int) -> bool:
    """Whether a table with this number of rows is packed in place, if its columns divide a tile."""
    return n_rows >= IN_PLACE and n_rows % LANES == 0


def pack(table: Float[Array, "n dim"], state: TableState) -> tuple[Array, Any]:
    """Packs a table and its state, to be passed to :func:`gather_packed` and others.

    Tables of whole vectors are returned unchanged.
    """
    n, dim = table.shape
    if not needs_packing(dim):
        return table, state
    leaves, tree = jax.tree.flatten(state.rule_state)
    in_slot = tuple(x.shape == table.shape and x.dtype == table.dtype for x in leaves)
    in_place = is_in_place(n) and table.dtype == jnp.float32
    in_place &= dim % _SUBLANES == LANES % dim == 0
    packing = Packing(n, dim, tree, in_slot, in_place)
    each = packing.per_slot
    inside, others = packing.divide(state.rule_state)
    inside = [table, *inside]
    if in_place:
        n_positions = n // each if len(state.position) else 0
        table, *slots = map(_pack_in_place, inside)
        return table, PackedState(tuple(slots), others, jnp.zeros(n_positions, jnp.int32), packing)
    slots = jnp.zeros((-(-n // each), packing.width), table.dtype)

    def pack_block(slots: Array, start: Any, size: int) -> Array:
        rows = [_column_major(lax.dynamic_slice_in_dim(x, start, size)) for x in inside]
        (block,) = packing.join([filled(x, each) for x in rows])
        return lax.dynamic_update_slice_in_dim(slots, block, start // each, 0)

    slots = _fold_blocks(pack_block, slots, n, each)
    others = tuple(filled(x, each) for x in others)
    n_positions = len(slots) if len(state.position) else 0
    return slots, PackedState((), others, jnp.zeros(n_positions, jnp.int32), packing)


def unpack(
    table: Array, state: Any, into: tuple[Float[Array, "n dim"], TableState]
) -> tuple[Array, TableState]:
    """Inverse of :func:`pack`; overwrites the arguments of :func:`pack` in their memory."""
    if not isinstance(state, PackedState):
        return table, state
    packing, (old, old_state) = state.packing, into
    if packing.in_place:
        table, *slots = (_unpack_in_place(x, packing.dim) for x in (table, *state.slots))
        return table, TableState(packing.merge(slots, state.others), old_state.position)
    inside = [old, *packing.divide(old_state.rule_state)[0]]
    n, each = packing.n_rows, packing.per_slot

    def unpack_block(rows: list[Array], start: Any, size: int) -> list[Array]:
        slots = lax.dynamic_slice_in_dim(table, start // each, -(-size // each))
        return [
            lax.dynamic_update_slice_in_dim(old, _column_major(new[:size]), start, 0)
            for old, new in zip(rows, packing.split([slots]))
        ]

    rows, *leaves = _fold_blocks(unpack_block, inside, n, each)
    rule_state = packing.merge(leaves, [x[:n] for x in state.others])
    return rows, TableState(rule_state, old_state.position)


def unpacked_table(table: Array, state: Any) -> Float[Array, "n dim"]:
    """The rows of a packed table, as an array of the size of the table."""
    if not isinstance(state, PackedState):
        return table
    packing = state.packing
    if packing.in_place:
        tiles = table.reshape(packing.dim // _SUBLANES, -1, _SUBLANES, LANES)
        return tiles.swapaxes(0, 1).reshape(packing.n_rows, packing.dim)
    return packing.split([table])[0][: packing.n_rows]


# Number of rows packed at a time: converting all at once would need memory for padded tables.
_BLOCK = 1 << 13


def _column_major(x: Array) -> Array:
    """Constrains a block of rows to the layout of tables, so that XLA does not convert tables."""
    return with_layout_constraint(x, Layout((1, 0)))


def _fold_blocks(
    function: Callable[[Any, Any, int], Any], carry: Any, n: int, per_slot: int
) -> Any:
    """Calls ``carry = function(carry, start, size)`` for blocks of whole slots, then for the rest.

    Blocks may overlap.
    """
    whole = n - n % per_slot
    if whole:
        size = min(whole, max(1, _BLOCK // per_slot) * per_slot)
        carry = lax.fori_loop(
            0, -(-whole // size),
            lambda i, carry: function(carry, jnp.minimum(i * size, whole - size), size), carry,
        )  # fmt: skip
    return function(carry, whole, n - whole) if whole < n else carry


def _pack_in_place(table: Float[Array, "n dim"]) -> Float[Array, "slots 128"]:
    """Packs a table of whole tiles in its own memory, see :meth:`Packing.address`."""
    n, dim = table.shape
    columns = table.T.reshape(dim // _SUBLANES, _SUBLANES, n // LANES, LANES)
    # The order of tiles in memory. The constraints make XLA reinterpret the table, not copy it.
    columns = with_layout_constraint(columns, Layout((0, 2, 1, 3)))
    tiles = _row_major(columns.swapaxes(1, 2))

    def pack_block(block: Array) -> Array:
        rows = block.transpose(1, 3, 0, 2)  # [tiles, 128, dim / 8, 8]
        return rows.reshape(-1, dim // _SUBLANES, _SUBLANES, LANES).swapaxes(0, 1)

    return _map_tiles(pack_block, tiles).reshape(-1, LANES)


def _unpack_in_place(slots: Float[Array, "slots 128"], dim: int) -> Float[Array, "n dim"]:
    """Inverse of :func:`_pack_in_place`."""
    n = len(slots) * LANES // dim
    tiles = _row_major(slots.reshape(dim // _SUBLANES, n // LANES, _SUBLANES, LANES))

    def unpack_block(block: Array) -> Array:
        rows = block.swapaxes(0, 1).reshape(-1, LANES, dim // _SUBLANES, _SUBLANES)
        return rows.transpose(2, 0, 3, 1)

    columns = _map_tiles(unpack_block, tiles).swapaxes(1, 2)
    columns = with_layout_constraint(columns, Layout((0, 2, 1, 3)))
    return columns.reshape(dim, n).T


def _map_tiles(function: Callable[[Array], Array], tiles: Array) -> Array:
    """Replaces blocks of ``tiles``, along their second axis, by functions of them."""
    n = tiles.shape[1]
    size = min(n, max(1, _BLOCK // LANES))

    def replace(tiles: Array, start: Any, size: int) -> Array:
        # Without the barrier, XLA would read parts of a block after others were overwritten.
        block = lax.optimization_barrier(lax.dynamic_slice_in_dim(tiles, start, size, 1))
        block = _row_major(function(block))
        return lax.dynamic_update_slice_in_dim(_row_major(tiles), block, start, 1)

    tiles = lax.fori_loop(0, n // size, lambda i, tiles: replace(tiles, i * size, size), tiles)
    return replace(tiles, n - n % size, n % size) if n % size else tiles


def _row_major(x: Array) -> Array:
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))


def gather_packed(
    rule: RowTransformation,
    table: Array,
    state: PackedState,
    ids: Int[Array, "m"],
    step: Int[Array, ""],
    deterministic: bool,
) -> tuple[GatheredRows, PackedState]:
    """:func:`gather` from a packed table."""
    packing, own, n_slots = state.packing, positions(ids), len(table)
    each = packing.per_slot
    is_row = ids < packing.n_rows
    slots, member = jnp.where(is_row, ids // each, n_slots), ids % each
    others = jax.tree.map(lambda x: x[_members(slots, each)], state.others)
    address = packing.address(slots, n_slots)
    rows, *inside = packing.split([x[address] for x in (table, *state.slots)])
    rule_state = packing.merge(inside, others)
    position, target, unique = state.position, own * each + member, slots
    if not rule.additive:
        position, inverse = represent(position, slots, deterministic)
        target = inverse * each + member
        unique = jnp.where(inverse == own, slots, n_slots)
    if rule.flush is not None:
        rows, rule_state = rule.flush(rows, rule_state, step)
    target = jnp.where(is_row, target, len(rows))
    chosen = (member[:, None] == np.arange(each)[None])[:, :, None]
    values = jnp.sum(jnp.where(chosen, rows.reshape(len(ids), each, -1), 0), axis=1)
    gathered = GatheredRows(values, own, unique, _GatheredSlots(rows, rule_state, target))
    return gathered, PackedState(state.slots, state.others, position, packing)


def scatter_packed(
    rule: RowTransformation,
    table: Array,
    state: PackedState,
    gathered: GatheredRows,
    grads: Float[Array, "m dim"],
    step: Int[Array, ""],
) -> tuple[Array, PackedState]:
    """:func:`scatter` into a packed table.

    Rows of a slot that the batch does not read have zero gradients.
    """
    packing, (rows, rule_state, target) = state.packing, gathered.rule_state
    grads = jnp.zeros_like(rows).at[target].add(grads.astype(rows.dtype), mode="drop")
    updates, rule_state = rule.update(grads, rule_state, rows, step)
    address = packing.address(gathered.ids, len(table))
    if rule.additive:
        (slots,) = packing.join([updates.astype(table.dtype)])
        return table.at[address].add(slots, mode="drop"), state
    inside, others = packing.divide(rule_state)
    written = packing.join([(rows + updates).astype(table.dtype), *inside])
    table, *slots = (
        x.at[address].set(y, mode="drop") for x, y in zip((table, *state.slots), written)
    )
    members = _members(gathered.ids, packing.per_slot)
    others = tuple(x.at[members].set(y, mode="drop") for x, y in zip(state.others, others))
    return table, PackedState(tuple(slots), others, state.position, packing)


def _members(slots: Int[Array, "m"], per_slot: int) -> Int[Array, "rows"]:
    """Indices of all rows of the slots."""
    return (slots[:, None] * per_slot + np.arange(per_slot, dtype=np.int32)[None]).ravel()
