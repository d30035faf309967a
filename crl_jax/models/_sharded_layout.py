"""Neighbour sums of tables whose rows are sharded over devices.

Each device computes the sums of its rows. The summands travel in a ring: each device passes the
shard that it holds to the next one until all devices have seen all shards. A device therefore holds
at most its own shard and the visiting one.

Interactions are laid out by the device of the sum and the shard of the summand.
"""

from dataclasses import field
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from .._mesh import TABLE, filled
from .._pytree import STATIC, pytree_dataclass
from ._gather_layout import WIDTHS, Pair, gather_rows

_BY_ROWS = PartitionSpec(TABLE)


@pytree_dataclass(eq=False)
class RingShards:
    """Indices of the summands of users or of items; tuples over widths."""

    # Rows of a shard of the other table, [devices, shards, pieces, width], and the row to which
    # each piece is added, [devices, shards, pieces]; one past the last row for padding.
    summands: Any
    sums: Any

    @classmethod
    def from_edges(
        cls, mesh: Mesh, own: Int[np.ndarray, "n"], other: Int[np.ndarray, "n"], n_own: int,
        n_other: int,
    ) -> "RingShards":  # fmt: skip
        """Lays out interactions; each device has ``n_own`` and ``n_other`` rows."""
        n = mesh.shape[TABLE]
        shard = other // n_other
        order = np.lexsort((own, shard))
        own, other, shard = own[order], other[order] % n_other, shard[order]
        # The interactions of a row in one shard are contiguous; they are cut into pieces.
        first = np.flatnonzero(np.diff(shard * (n * n_own) + own, prepend=-1))
        lengths = np.diff(first, append=len(own))
        counts = -(-lengths // WIDTHS[-1])
        row = np.repeat(np.arange(len(first)), counts)
        skipped = WIDTHS[-1] * (np.arange(len(row)) - (np.cumsum(counts) - counts)[row])
        begin, length = first[row] + skipped, np.minimum(lengths[row] - skipped, WIDTHS[-1])
        kind = np.searchsorted(WIDTHS, length)
        cells = own[begin] // n_own * n + shard[begin]
        summands, sums = [], []
        for i, width in enumerate(WIDTHS):
            pieces = np.flatnonzero(kind == i)
            pieces = pieces[np.argsort(cells[pieces], kind="stable")]
            sizes = np.bincount(cells[pieces], minlength=n * n)
            if not (n_max := int(sizes.max(initial=0))):
                continue
            cell = cells[pieces]
            slots = np.arange(len(pieces)) - (np.cumsum(sizes) - sizes)[cell]
            column = np.arange(width)
            inside = column < length[pieces, None]
            rows = other[np.where(inside, begin[pieces, None] + column, 0)]
            indices = np.full((n * n, n_max, width), n_other, np.int32)
            indices[cell, slots] = np.where(inside, rows, n_other)
            targets = np.full((n * n, n_max), n_own, np.int32)
            targets[cell, slots] = own[begin[pieces]] % n_own
            summands.append(_put_on_devices(mesh, indices.reshape(n, n, n_max, width)))
            sums.append(_put_on_devices(mesh, targets.reshape(n, n, n_max)))
        return cls(tuple(summands), tuple(sums))

    def add(self, shard: Array, rows: Float[Array, "k dim"], total: Array) -> Array:
        """Adds the contributions of one shard of the other table to the sums of this device."""
        for summands, sums in zip(self.summands, self.sums, strict=True):
            ids = lax.dynamic_index_in_dim(summands[0], shard, keepdims=False)
            targets = lax.dynamic_index_in_dim(sums[0], shard, keepdims=False)
            gathered = (gather_rows(rows, ids[:, j]) for j in range(ids.shape[1]))
            total = total.at[targets].add(reduce(jnp.add, gathered), mode="drop")
        return total


@pytree_dataclass(eq=False)
class ShardedLayout:
    """Indices for ring sums over the axis ``table`` of a mesh, along which rows are sharded."""

    users: RingShards
    items: RingShards
    mesh: Mesh = field(metadata=STATIC)
    n_users: int = field(metadata=STATIC)
    n_items: int = field(metadata=STATIC)

    @classmethod
    def from_edges(
        cls, mesh: Mesh, users: Int[np.ndarray, "n"], items: Int[np.ndarray, "n"], n_users: int,
        n_items: int,
    ) -> "ShardedLayout":  # fmt: skip
        """Builds the layout from the user and item of each interaction."""
        each = [-(-n // mesh.shape[TABLE]) for n in (n_users, n_items)]
        return cls(
            users=RingShards.from_edges(mesh, users, items, each[0], each[1]),
            items=RingShards.from_edges(mesh, items, users, each[1], each[0]),
            mesh=mesh, n_users=n_users, n_items=n_items,
        )  # fmt: skip

    def permute(self, users: Array, items: Array) -> Pair:
        """Pads tables to the same number of rows on each device."""
        padded = (filled(x, self.mesh.shape[TABLE]) for x in (users, items))
        sharding = NamedSharding(self.mesh, _BY_ROWS)
        users, items = (lax.with_sharding_constraint(x, sharding) for x in padded)
        return users, items

    def unpermute(self, users: Array, items: Array) -> Pair:
        """Inverse of :meth:`permute`."""
        return users[: self.n_users], items[: self.n_items]

    def neighbour_sums(self, tables: Pair, scales: Pair) -> Pair:
        """Scaled sums over the neighbours of each user and item."""
        ring = jax.shard_map(
            _ring_sums, mesh=self.mesh, in_specs=_BY_ROWS, out_specs=_BY_ROWS, check_vma=False
        )
        return ring(self.users, self.items, tables, scales)


def _ring_sums(users: RingShards, items: RingShards, tables: Pair, scales: Pair) -> Pair:
    n = lax.axis_size(TABLE)
    device = lax.axis_index(TABLE)
    rotate = partial(lax.ppermute, axis_name=TABLE, perm=[(i, (i - 1) % n) for i in range(n)])

    def step(carry: Any, i: Array) -> tuple[Any, None]:
        rotating, sums = carry
        shard = (device + i) % n
        sums = (
            users.add(shard, rotating[1], sums[0]),
            items.add(shard, rotating[0], sums[1]),
        )
        return (jax.tree.map(rotate, rotating), sums), None

    # One more row, for padding.
    rotating = tuple(jnp.pad(x, ((0, 1), (0, 0))) for x in tables)
    start = rotating, tuple(jnp.zeros_like(x) for x in tables)
    (_, sums), _ = lax.scan(step, start, jnp.arange(n, dtype=jnp.int32))
    return scales[0] * sums[0], scales[1] * sums[1]


def _put_on_devices(mesh: Mesh, indices: np.ndarray) -> Array:
    sharding = NamedSharding(mesh, _BY_ROWS)
    return jax.make_array_from_callback(indices.shape, sharding, lambda shard: indices[shard])
