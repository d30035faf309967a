"""Sums of neighbours where the rows of both tables lie on several devices.

Each device makes the sums of its own rows. The rows that these are made of come round: every device
hands the part that it has to the next one, until each has seen all parts. So no device ever holds
more of a table than its own part and the one that passes by.

The links are laid out by who makes the sum, and by the part that the summand is in.
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
from ._gather_layout import WIDTHS, take_inside

_BY_ROWS = PartitionSpec(TABLE)


@pytree_dataclass(eq=False)
class RingShards:
    """What the rows of one side are summed from; a tuple over widths.

    Attributes:
      summands: Rows of a part of the other side's table, ``[devices, parts, pieces, width]``; one
        past the last is of nobody.
      sums: The row that each piece is added to, ``[devices, parts, pieces]``; likewise.
    """

    summands: Any
    sums: Any

    @classmethod
    def from_links(
        cls, mesh: Mesh, own: Int[np.ndarray, "n"], other: Int[np.ndarray, "n"], n_own: int,
        n_other: int,
    ) -> "RingShards":  # fmt: skip
        """Lays links out; ``n_own`` and ``n_other`` rows lie on each device."""
        n = mesh.shape[TABLE]
        part = other // n_other
        order = np.lexsort((own, part))
        own, other, part = own[order], other[order] % n_other, part[order]
        # A row's links in one part follow each other; they are cut into pieces.
        first = np.flatnonzero(np.diff(part * (n * n_own) + own, prepend=-1))
        lengths = np.diff(first, append=len(own))
        counts = -(-lengths // WIDTHS[-1])
        row = np.repeat(np.arange(len(first)), counts)
        skipped = WIDTHS[-1] * (np.arange(len(row)) - (np.cumsum(counts) - counts)[row])
        begin, length = first[row] + skipped, np.minimum(lengths[row] - skipped, WIDTHS[-1])
        kind = np.searchsorted(WIDTHS, length)
        place = own[begin] // n_own * n + part[begin]
        summands, sums = [], []
        for i, width in enumerate(WIDTHS):
            of_width = np.flatnonzero(kind == i)
            of_width = of_width[np.argsort(place[of_width], kind="stable")]
            sizes = np.bincount(place[of_width], minlength=n * n)
            if not (most := int(sizes.max(initial=0))):
                continue
            cell = place[of_width]
            at = np.arange(len(of_width)) - (np.cumsum(sizes) - sizes)[cell]
            column = np.arange(width)
            inside = column < length[of_width, None]
            found = other[np.where(inside, begin[of_width, None] + column, 0)]
            laid = np.full((n * n, most, width), n_other, np.int32)
            laid[cell, at] = np.where(inside, found, n_other)
            to = np.full((n * n, most), n_own, np.int32)
            to[cell, at] = own[begin[of_width]] % n_own
            summands.append(_on_devices(mesh, laid.reshape(n, n, most, width)))
            sums.append(_on_devices(mesh, to.reshape(n, n, most)))
        return cls(tuple(summands), tuple(sums))

    def add(self, part: Array, rows: Float[Array, "k dim"], to: Array) -> Array:
        """Adds to the sums of this device what a part of the other table gives them."""
        for summands, sums in zip(self.summands, self.sums, strict=True):
            ids = lax.dynamic_index_in_dim(summands[0], part, keepdims=False)
            own = lax.dynamic_index_in_dim(sums[0], part, keepdims=False)
            taken = (take_inside(rows, ids[:, j]) for j in range(ids.shape[1]))
            to = to.at[own].add(reduce(jnp.add, taken), mode="drop")
        return to


@pytree_dataclass(eq=False)
class ShardedLayout:
    """The graph on several devices.

    Attributes:
      users: What users are summed from.
      items: What items are summed from.
      mesh: The devices; rows lie along the axis ``table``. Static.
      n_users: Number of users. Static.
      n_items: Number of items. Static.
    """

    users: RingShards
    items: RingShards
    mesh: Mesh = field(metadata=STATIC)
    n_users: int = field(metadata=STATIC)
    n_items: int = field(metadata=STATIC)

    @classmethod
    def from_links(
        cls, mesh: Mesh, users: Int[np.ndarray, "n"], items: Int[np.ndarray, "n"], n_users: int,
        n_items: int,
    ) -> "ShardedLayout":  # fmt: skip
        """Lays links out on the devices of a mesh."""
        each = [-(-n // mesh.shape[TABLE]) for n in (n_users, n_items)]
        return cls(
            users=RingShards.from_links(mesh, users, items, each[0], each[1]),
            items=RingShards.from_links(mesh, items, users, each[1], each[0]),
            mesh=mesh, n_users=n_users, n_items=n_items,
        )  # fmt: skip

    def enter(self, users: Array, items: Array) -> tuple[Array, Array]:
        """Tables with as many rows on each device."""
        made = (filled(x, self.mesh.shape[TABLE]) for x in (users, items))
        over = NamedSharding(self.mesh, _BY_ROWS)
        users, items = (lax.with_sharding_constraint(x, over) for x in made)
        return users, items

    def leave(self, users: Array, items: Array) -> tuple[Array, Array]:
        """Back again."""
        return users[: self.n_users], items[: self.n_items]

    def sums(self, tables: tuple[Array, Array], scales: tuple[Array, Array]) -> tuple[Array, Array]:
        """The sums over each one's neighbours, scaled."""
        ring = jax.shard_map(
            _sums, mesh=self.mesh, in_specs=_BY_ROWS, out_specs=_BY_ROWS, check_vma=False
        )
        return ring(self.users, self.items, tables, scales)


def _sums(
    users: RingShards, items: RingShards, tables: tuple[Array, Array], scales: tuple[Array, Array]
) -> tuple[Array, Array]:
    n = lax.axis_size(TABLE)
    here = lax.axis_index(TABLE)
    pass_on = partial(lax.ppermute, axis_name=TABLE, perm=[(i, (i - 1) % n) for i in range(n)])

    def turn(carry: Any, i: Array) -> tuple[Any, None]:
        passing, made = carry
        part = (here + i) % n
        made = (
            users.add(part, passing[1], made[0]),
            items.add(part, passing[0], made[1]),
        )
        return (jax.tree.map(pass_on, passing), made), None

    # One row more, of nobody.
    passing = tuple(jnp.pad(x, ((0, 1), (0, 0))) for x in tables)
    start = passing, tuple(jnp.zeros_like(x) for x in tables)
    (_, made), _ = lax.scan(turn, start, jnp.arange(n, dtype=jnp.int32))
    return scales[0] * made[0], scales[1] * made[1]


def _on_devices(mesh: Mesh, laid: np.ndarray) -> Array:
    over = NamedSharding(mesh, _BY_ROWS)
    return jax.make_array_from_callback(laid.shape, over, lambda part: laid[part])
