"""Positives of every user on the device, and uniform sampling of seen and unseen items."""

import math
from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, Key, UInt32

from .._pytree import STATIC, pytree_dataclass
from .._search import rows_contain, search_rows, with_block_ends
from ..data import Interactions

_MAX_WORDS = 2**26
# Users per block of lookups in a pool.
_BLOCK = 256


@pytree_dataclass
class Positives:
    """Positives of all users in CSR format on the device, ready for sampling.

    Attributes:
      indptr: Row starts, int32 ``[n_users + 1]``.
      items: Items, ascending within a user, int32 ``[n]``.
      gaps: ``items[p] - (p - row start)``, the number of *unseen* items below ``items[p]``.
        Ascending within a user, so that a search finds the r-th unseen item. Padded for it.
      gap_ends: Parts of ``gaps`` for a search on TPUs, see ``_search.with_block_ends``.
      bitmap: One bit per pair, item j of user u in bit ``j % 32`` of word ``[u, j // 32]``, uint32
        ``[n_users, ceil(n_items / 32)]``; None to search instead.
      n_items: Number of items in the catalogue. Static.
      rounds: Steps of a binary search in the longest row. Static.
    """

    indptr: Int[Array, "n_users_plus_1"]
    items: Int[Array, "n"]
    gaps: Int[Array, "padded"]
    gap_ends: tuple[Int[Array, "_"], ...]
    bitmap: UInt32[Array, "n_users words"] | None
    n_items: int = field(metadata=STATIC)
    rounds: int = field(metadata=STATIC)

    @classmethod
    def from_interactions(cls, data: Interactions, *, bitmap: bool = False) -> "Positives":
        """Copies the rows of ``data`` to the default device.

        Args:
          data: The interactions, fewer than 2^31.
          bitmap: Whether to build the bitmap, for samplers with :attr:`Sampler.uses_bitmap`; a
            bitmap above 256 MB is never built.
        """
        degrees = np.diff(data.indptr)
        if data.indptr[-1] >= 2**31:
            raise ValueError(
                f"`data` must have fewer than 2^31 interactions, got {len(data.items)}."
            )
        offset = np.arange(len(data.items)) - np.repeat(data.indptr[:-1], degrees)
        rounds = int(degrees.max(initial=0)).bit_length()
        gaps, ends = with_block_ends((data.items - offset).astype(np.int32), rounds)
        return cls(
            indptr=jnp.asarray(data.indptr, jnp.int32),
            items=jnp.asarray(data.items, jnp.int32),
            gaps=jnp.asarray(gaps),
            gap_ends=tuple(map(jnp.asarray, ends)),
            bitmap=_bitmap(data, degrees) if bitmap else None,
            n_items=int(data.n_items),
            rounds=rounds,
        )

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.indptr.shape[0] - 1

    def n_unseen(self, users: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """Number of unseen items of each user."""
        return self.n_items - (self.indptr[users + 1] - self.indptr[users])

    def contains(
        self, users: Int[Array, "*batch"], items: Int[Array, "*batch n"]
    ) -> Bool[Array, "*batch n"]:
        """Whether the users have seen the items in the same row."""
        # Row bounds broadcast along the last axis.
        items = jnp.moveaxis(items.astype(jnp.int32), -1, 0)
        low, high = self.indptr[users], self.indptr[users + 1]
        return jnp.moveaxis(rows_contain(self.items, items, low, high, self.rounds), 0, -1)

    def seen(self, users: Int[Array, "batch"], items: Int[Array, "n"]) -> Bool[Array, "n batch"]:
        """Whether each user has seen each of the same ``n`` items; users are the last axis."""
        if self.bitmap is None:
            return self.contains(users, jnp.broadcast_to(items, (*users.shape, *items.shape))).T
        # Both gathers copy whole rows: a tenth of the cost of one lookup per pair.
        words = self.bitmap[users].T[items >> 5]
        return (words >> (items & 31).astype(jnp.uint32)[:, None]) & 1 == 1

    def seen_in_pool(
        self, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Bool[Array, "batch n"]:
        """Transpose of :meth:`seen`, computed once however often it is used.

        XLA would repeat the bit lookup in every loop over the scores that it masks, which takes
        several times as long as the loops. The output of ``lax.map`` is materialised.
        """
        return jax.lax.map(
            lambda user: self.seen(user[None], items)[:, 0], users, batch_size=_BLOCK
        )

    def seen_bits(self, users: Int[Array, "batch"]) -> UInt32[Array, "words batch"]:
        """Packed bits of each user: item j is bit ``j % 32`` of word ``[j // 32, user]``."""
        if self.bitmap is None:
            return pack_bits(self.seen(users, jnp.arange(self.n_items, dtype=jnp.int32)))
        return self.bitmap[users].T


def sample_unseen(
    key: Key[Array, ""], users: Int[Array, "*batch"], positives: Positives, n: int
) -> Int[Array, "*batch n"]:
    r"""Draws ``n`` items per user uniformly from the unseen items (RNS).

    With :math:`r` uniform on :math:`\{0, …, |\mathcal I| - |\mathcal I_u^+| - 1\}`, the r-th unseen
    item is :math:`r + \#\{p : \text{gap}_p \le r\}`, found by binary search in the user's row.
    There is no rejection, so that the cost does not depend on the number of seen items.

    Args:
      key: Random key.
      users: User indices, any shape.
      positives: Positives of every user.
      n: Draws per user, with replacement. Static.

    Returns:
      Int32 item indices ``[*batch, n]``. For users without unseen items the result is
      ``n_items``, which is out of range; callers exclude such users (:func:`crl_jax.train.fit`
      does).

    References:
      The RNS baseline of Rendle et al., BPR, 2009, without accidental positives.
    """
    low, high = positives.indptr[users], positives.indptr[users + 1]
    # Users are the last axis, so that row bounds broadcast along it; the other layout takes four
    # times as long on a CPU.
    rank = randint_below(key, (n, *users.shape), positives.n_items - (high - low))
    first = search_rows(positives.gaps, rank, low, high, positives.rounds, ends=positives.gap_ends)
    return jnp.moveaxis(rank + (first - low[None]), 0, -1)


def sample_absent(
    key: Key[Array, ""], lists: Int[Array, "batch length"], n_items: int, n: int
) -> Int[Array, "batch n"]:
    """Draws ``n`` items per list uniformly, with replacement, from the items that it lacks.

    The method is that of :func:`sample_unseen`, for lists that are part of a batch.

    Args:
      key: Random key.
      lists: Item indices in any order; negative entries are padding, and repetitions are allowed.
      n_items: Number of items in the catalogue. Static.
      n: Draws per list. Static.

    Returns:
      Int32 item indices; ``n_items``, which is out of range, for lists of the whole catalogue.

    >>> items = sample_absent(jax.random.key(0), jnp.array([[3, -1, 0, 0], [1, 2, 0, 3]]), 4, 20)
    >>> print(jnp.unique(items[0]), jnp.unique(items[1]))
    [1 2] [4]
    """
    lists = lists.astype(jnp.int32)  # narrower integers may not hold n_items
    listed = jnp.sort(jnp.where(lists < 0, n_items, lists), axis=1)
    is_repeated = jnp.pad(listed[:, 1:] == listed[:, :-1], ((0, 0), (1, 0)))
    listed = jnp.sort(jnp.where(is_repeated, n_items, listed), axis=1)
    n_absent = n_items - jnp.sum(listed < n_items, axis=1, dtype=jnp.int32)
    column = jnp.arange(lists.shape[1], dtype=listed.dtype)
    gaps = jnp.where(listed < n_items, listed - column[None], n_items).astype(jnp.int32)
    rank = randint_below(key, (n, len(lists)), n_absent)
    low = jnp.arange(len(lists), dtype=jnp.int32) * lists.shape[1]
    high, rounds = low + lists.shape[1], lists.shape[1].bit_length()
    below = search_rows(gaps.ravel(), rank, low, high, rounds) - low[None]
    return jnp.where(n_absent > 0, rank + below, n_items).T


def sample_seen(
    key: Key[Array, ""], users: Int[Array, "*batch"], positives: Positives, n: int
) -> Int[Array, "*batch n"]:
    """Draws ``n`` items per user uniformly, with replacement, from the seen items.

    Arguments as for :func:`sample_unseen`; each user must have at least one positive.
    """
    low, high = positives.indptr[users], positives.indptr[users + 1]
    index = low[None] + randint_below(key, (n, *users.shape), high - low)
    return jnp.moveaxis(positives.items[index], 0, -1)


def pack_bits(bits: Bool[Array, "n batch"]) -> UInt32[Array, "words batch"]:
    """Packs row i into bit ``i % 32`` of word ``i // 32``; the last word is padded with 0."""
    padded = jnp.pad(bits, ((0, -bits.shape[0] % 32), (0, 0))).astype(jnp.uint32)
    shifts = jnp.arange(32, dtype=jnp.uint32)[None, :, None]
    return jnp.sum(padded.reshape(-1, 32, bits.shape[1]) << shifts, axis=1, dtype=jnp.uint32)


def _bitmap(data: Interactions, degrees: np.ndarray) -> Array | None:
    """Returns the interactions as packed bits, or None above the size limit."""
    shape = (data.n_users, -(-data.n_items // 32))
    if math.prod(shape) > _MAX_WORDS:
        return None
    users = np.repeat(np.arange(data.n_users), degrees)
    words = np.zeros(shape, np.uint32)
    bits = np.uint32(1) << (data.items % 32).astype(np.uint32)
    np.bitwise_or.at(words, (users, data.items // 32), bits)
    return jnp.asarray(words)


def randint_below(
    key: Key[Array, ""], shape: tuple[int, ...], bound: Integer[Array, "..."]
) -> Int[Array, "..."]:
    """Draws uniform integers in ``[0, bound)``; 0 where the bound is 0.

    Takes the high word of ``bits * bound``: each probability is within 2^-32 of uniform.
    ``jax.random.randint`` has an error of 2^-64 for twice the random bits, which dominate the cost.
    """
    bits = jax.random.bits(key, shape, jnp.uint32)
    bound = jnp.broadcast_to(bound.astype(jnp.uint32), shape)
    # 32 x 32 -> 64 bits from 16-bit halves, since JAX disables 64-bit integers by default.
    low_bits, high_bits = bits & 0xFFFF, bits >> 16
    low_bound, high_bound = bound & 0xFFFF, bound >> 16
    middle = high_bits * low_bound + ((low_bits * low_bound) >> 16)
    carry = low_bits * high_bound + (middle & 0xFFFF)
    high = high_bits * high_bound + (middle >> 16) + (carry >> 16)
    return high.astype(jnp.int32)
