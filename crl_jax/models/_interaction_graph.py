"""Interaction graph of users and items on the device."""

from dataclasses import field, replace
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .._checks import check_choice
from .._mesh import TABLE, axis_size
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._bit_layout import BitLayout
from ._dense_layout import DenseLayout
from ._gather_layout import GatherLayout
from ._sharded_layout import ShardedLayout

Layout = Literal["auto", "rows", "dense", "bits"]
"""Layout of the adjacency matrix on the device: gathered rows, a matrix in bfloat16, a matrix of
one bit per entry, or by platform."""
MATRIX_LAYOUTS: dict[str, tuple[Layout, int, int]] = {
    "tpu": ("bits", 2**30, 4096),
    "tpu v4": ("dense", 2**32, 4096),
}
"""Layout that ``"auto"`` chooses by platform in place of rows, up to this number of bytes of its
matrix and of entries per interaction; ``"tpu v4"`` are those without products of 8-bit integers.

On CPUs and GPUs gathers are faster at any size. A training step of three layers on random graphs
takes an H100 with JAX 0.11.2 0.15 ms with rows and 0.16 ms with a dense matrix at the size of
MovieLens 100K, 0.45 and 0.67 ms at that of MovieLens 1M; at that of Gowalla it takes 0.77 ms with
rows, and a forward pass 15 ms with the matrix. On a TPU v5e, the compiler's cycles of rows and bits
are equal at about 5,000 entries per interaction; not measured on a device.
"""


@pytree_dataclass(eq=False)
class InteractionGraph:
    """Bipartite graph of users and items; a pytree. Constructed by :meth:`from_interactions`.

    Attributes:
      n_users: Number of users. Static.
      n_items: Number of items. Static.
      n_interactions: Number of edges. Static.
      user_degrees: Number of items of each user, ``[n_users]``.
      item_degrees: Number of users of each item, ``[n_items]``.
      edge_scale: Weight of each edge: 1, and more if others have been dropped.
      layout: Edges as gather indices, sharded gather indices or an adjacency matrix.
    """

    n_users: int = field(metadata=STATIC)
    n_items: int = field(metadata=STATIC)
    n_interactions: int = field(metadata=STATIC)
    user_degrees: Any
    item_degrees: Any
    edge_scale: Any
    layout: Any

    @classmethod
    def from_interactions(
        cls,
        train: Interactions,
        *,
        layout: Layout = "auto",
        droppable: bool = False,
        platform: str | None = None,
    ) -> "InteractionGraph":
        """Builds the graph on the default device.

        Args:
          train: Training interactions only: a model sees all edges that it propagates over.
          layout: ``"rows"`` gathers and sums rows; ``"dense"`` multiplies by a bfloat16 matrix of
            ``n_users × n_items``; ``"bits"`` multiplies by a matrix of one bit per entry, without
            its empty blocks and on TPUs in fixed point of 24 bits; ``"auto"`` chooses by the
            platform and that size.
          droppable: Whether to support :meth:`drop`, at twice the memory.
          platform: Platform that ``"auto"`` chooses for, a key of ``MATRIX_LAYOUTS`` or ``"cpu"``;
            by default that of the default device. Programs with the chosen layout can be compiled
            for any platform.

        Raises:
          ValueError: If the layout is unknown or the graph has 2**31 - 1 edges or more.
        """
        check_choice("layout", layout, get_args(Layout))
        if len(train) >= np.iinfo(np.int32).max:
            raise ValueError(
                f"`train` must have fewer than 2**31 - 1 interactions, got {len(train)}."
            )
        if layout == "auto":
            layout = _choose_layout(train, platform or _default_platform())
        kind = {"rows": GatherLayout, "dense": DenseLayout, "bits": BitLayout}[layout]
        return cls(
            n_users=train.n_users,
            n_items=train.n_items,
            n_interactions=len(train),
            user_degrees=jnp.asarray(train.degrees, jnp.int32),
            item_degrees=jnp.asarray(train.item_counts, jnp.int32),
            edge_scale=jnp.float32(1),
            layout=kind.from_interactions(train, droppable),
        )

    def shard(self, mesh: Mesh) -> "InteractionGraph":
        """Returns the graph for tables whose rows are sharded along the axis ``table`` of a mesh.

        Each device holds the edges of its rows. A graph with another layout than rows or with
        droppable edges is replicated on every device.
        """
        if isinstance(self.layout, BitLayout):
            return replace(self, layout=replace(self.layout, mesh=mesh))
        if axis_size(mesh, TABLE) == 1 or not isinstance(self.layout, GatherLayout):
            return self
        if self.layout.users.edges is not None:
            return self
        edges = self.layout.interactions()
        return replace(
            self, layout=ShardedLayout.from_edges(mesh, *edges, self.n_users, self.n_items)
        )

    def drop(self, key: Key[Array, ""], rate: float) -> "InteractionGraph":
        """Drops each edge with probability ``rate`` and rescales the others by ``1 / (1 - rate)``.

        Degrees remain those of the whole graph, so that expected sums do not change. Raises
        ``ValueError`` if the graph was built without ``droppable``.
        """
        users = self.layout.users if isinstance(self.layout, GatherLayout) else self.layout
        if getattr(users, "edges", None) is None:
            raise ValueError("`drop` needs a graph built with `droppable=True`.")
        keep = jax.random.bernoulli(key, 1 - rate, (self.n_interactions,))
        return replace(
            self, edge_scale=self.edge_scale / (1 - rate), layout=self.layout.mask_edges(keep)
        )

    def drop_nodes(self, key: Key[Array, ""], rate: float) -> "InteractionGraph":
        """Drops each user and item with probability ``rate``, together with their edges.

        Dropped nodes have degree 0; other degrees remain those of the whole graph. Remaining edges
        are rescaled by ``1 / (1 - rate)**2``, so that expected sums do not change.
        """

        def dropped(key: Array, degrees: Array) -> Array:
            return jnp.where(jax.random.bernoulli(key, 1 - rate, degrees.shape), degrees, 0)

        user_key, item_key = jax.random.split(key)
        return replace(
            self,
            user_degrees=dropped(user_key, self.user_degrees),
            item_degrees=dropped(item_key, self.item_degrees),
            edge_scale=self.edge_scale / (1 - rate) ** 2,
        )

    def renormalized(self) -> "InteractionGraph":
        """Returns the graph with degrees counted after dropping, and an edge weight of 1."""
        degrees = self.user_degrees, self.item_degrees
        present = self.layout.permute(*((d > 0).astype(jnp.float32)[:, None] for d in degrees))
        counts = self.layout.unpermute(*self.layout.neighbour_sums(present, present))
        users, items = (jnp.round(x[:, 0]).astype(jnp.int32) for x in counts)
        scale = jnp.ones_like(self.edge_scale)
        return replace(self, user_degrees=users, item_degrees=items, edge_scale=scale)


def _choose_layout(train: Interactions, platform: str) -> Layout:
    layout, n_bytes, entries_per_interaction = MATRIX_LAYOUTS.get(platform, ("rows", 0, 0))
    entries = train.n_users * train.n_items
    size = 2 * entries if layout == "dense" else entries / 8
    fits = size <= n_bytes and entries <= entries_per_interaction * len(train)
    return layout if fits else "rows"


def _default_platform() -> str:
    is_old = jax.devices()[0].device_kind in ("TPU v2", "TPU v3", "TPU v4")
    return "tpu v4" if is_old else jax.default_backend()
