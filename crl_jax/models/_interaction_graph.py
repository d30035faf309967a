"""The graph of users and items on the device."""

from dataclasses import field, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Key

from .._mesh import TABLE, axis_size
from .._pytree import STATIC, pytree_dataclass
from ..data import Interactions
from ._dense_layout import DenseLayout
from ._gather_layout import GatherLayout
from ._sharded_layout import ShardedLayout

Layout = Literal["auto", "rows", "dense"]
DENSE_BYTES = {"cpu": 0, "gpu": 2**28, "tpu": 2**32}
"""Up to how many bytes "auto" lays a graph out densely; 0 for other backends.

On CPUs rows are faster at any size. A GPU gathers rows well, and a matrix pays only where a product
costs less than the start of a dozen kernels. A TPU gathers slowly and multiplies fast.
"""


@pytree_dataclass(eq=False)
class InteractionGraph:
    """Which user is linked to which item; a pytree. Make one with :meth:`from_interactions`.

    Attributes:
      n_users: Number of users. Static.
      n_items: Number of items. Static.
      n_interactions: Number of links. Static.
      user_degrees: How many items each user has, ``[n_users]``.
      item_degrees: How many users each item has, ``[n_items]``.
      edge_scale: What each link counts for: 1, and more while others are dropped.
      layout: The links as sums, on one device or on several, or as a matrix.
    """

    n_users: int = field(metadata=STATIC)
    n_items: int = field(metadata=STATIC)
    n_interactions: int = field(metadata=STATIC)
    # JAX puts placeholders there when it takes a graph apart.
    user_degrees: Any
    item_degrees: Any
    edge_scale: Any
    layout: Any

    @classmethod
    def from_interactions(
        cls, train: Interactions, *, layout: Layout = "auto", droppable: bool = False
    ) -> "InteractionGraph":
        """Lays out interactions on the default device.

        Args:
          train: The interactions to learn from, and no others: what a model propagates over it
            has seen.
          layout: ``"rows"`` gathers and sums rows; ``"dense"`` multiplies by a bfloat16 matrix of
            ``n_users × n_items``; ``"auto"`` chooses by the backend and that size.
          droppable: Whether :meth:`drop` is to work; it takes twice the memory.

        Raises:
          ValueError: If there is no such layout, or the graph is too large to be numbered.
        """
        if layout not in ("auto", "rows", "dense"):
            raise ValueError(f"`layout` must be auto, rows or dense, got {layout!r}.")
        if len(train) >= np.iinfo(np.int32).max:
            raise ValueError(f"`train` must have fewer than 2**31 - 1 links, got {len(train)}.")
        if layout == "auto":
            budget = DENSE_BYTES.get(jax.default_backend(), 0)
            layout = "dense" if 2 * train.n_users * train.n_items <= budget else "rows"
        kind = DenseLayout if layout == "dense" else GatherLayout
        return cls(
            n_users=train.n_users,
            n_items=train.n_items,
            n_interactions=len(train),
            user_degrees=jnp.asarray(np.diff(train.indptr).astype(np.int32)),
            item_degrees=jnp.asarray(
                np.bincount(train.items, minlength=train.n_items).astype(np.int32)
            ),
            edge_scale=jnp.float32(1),
            layout=kind.from_csr(train.indptr, train.items, train.n_items, droppable),
        )

    def shard(self, mesh: Mesh) -> "InteractionGraph":
        """The same graph for tables whose rows lie along the axis ``table`` of a mesh.

        Each device holds the links of its own rows. A graph whose links can be dropped, or that is
        dense, stays as it is, whole on every device.
        """
        if axis_size(mesh, TABLE) == 1 or not isinstance(self.layout, GatherLayout):
            return self
        if self.layout.users.edges is not None:
            return self
        links = self.layout.links()
        return replace(
            self, layout=ShardedLayout.from_links(mesh, *links, self.n_users, self.n_items)
        )

    def drop(self, key: Key[Array, ""], rate: float) -> "InteractionGraph":
        """Drops each link with probability ``rate``, in both directions; the others count more.

        Degrees stay those of the whole graph. The sums keep their expected values: links that
        stay count for ``1 / (1 - rate)``.

        Raises:
          ValueError: If the graph was made without ``droppable``.
        """
        users = self.layout.users if isinstance(self.layout, GatherLayout) else self.layout
        if getattr(users, "edges", None) is None:
            raise ValueError("`drop` needs a graph made with `droppable=True`.")
        keep = jax.random.bernoulli(key, 1 - rate, (self.n_interactions,))
        return replace(self, edge_scale=self.edge_scale / (1 - rate), layout=self.layout.kept(keep))

    def drop_nodes(self, key: Key[Array, ""], rate: float) -> "InteractionGraph":
        """Drops each user and each item with probability ``rate``, and their links with them.

        Who is dropped has degree 0; the other degrees stay those of the whole graph. The sums keep
        their expected values: links that stay count for ``1 / (1 - rate)**2``.
        """

        def left(key: Array, degrees: Array) -> Array:
            return jnp.where(jax.random.bernoulli(key, 1 - rate, degrees.shape), degrees, 0)

        of_users, of_items = jax.random.split(key)
        return replace(
            self,
            user_degrees=left(of_users, self.user_degrees),
            item_degrees=left(of_items, self.item_degrees),
            edge_scale=self.edge_scale / (1 - rate) ** 2,
        )

    def renormalized(self) -> "InteractionGraph":
        """With the degrees that :meth:`drop` and :meth:`drop_nodes` left; each link counts 1."""
        degrees = self.user_degrees, self.item_degrees
        there = self.layout.enter(*((of > 0).astype(jnp.float32)[:, None] for of in degrees))
        counts = self.layout.leave(*self.layout.sums(there, there))
        users, items = (jnp.round(of[:, 0]).astype(jnp.int32) for of in counts)
        scale = jnp.ones_like(self.edge_scale)
        return replace(self, user_degrees=users, item_degrees=items, edge_scale=scale)
