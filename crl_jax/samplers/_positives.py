"""The positives of every user on the device, and draws from them and from the rest."""

import math
from dataclasses import field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Integer, Key, UInt32

from .._pytree import STATIC, pytree_dataclass
from .._search import rows_contain, search_rows
from ..data import Interactions

_MAX_WORDS = 2**26
# Users whose look-ups of a pool are made at a time.
_TOGETHER = 256


@pytree_dataclass
class Positives:
    """The positives of all users as device arrays, ready to draw from.

    Attributes:
      indptr: Row starts, int32 ``[n_users + 1]``.
      items: Items, ascending within a user, int32 ``[n]``.
      gaps: ``items[p] - (p - row start)``: how many items below ``items[p]`` the user has *not*
        taken. Ascending within a user, which makes the r-th untaken item a binary search.
      bitmap: One bit for each pair, item j of user u in bit ``j % 32`` of word ``[u, j // 32]``;
        uint32 ``[n_users, ceil(n_items / 32)]``, or None: it is there to spare searches.
      n_items: Size of the catalogue.
      rounds: Steps of a binary search in the longest row.
    """

    indptr: Int[Array, "n_users_plus_1"]
    items: Int[Array, "n"]
    gaps: Int[Array, "n"]
    bitmap: UInt32[Array, "n_users words"] | None
    n_items: int = field(metadata=STATIC)
    rounds: int = field(metadata=STATIC)

    @classmethod
    def from_interactions(cls, data: Interactions, *, bitmap: bool = False) -> "Positives":
        """Puts the rows of ``data`` on the default device.

        Args:
          data: The interactions.
          bitmap: Whether to make the bitmap, for samplers that read it
            (:attr:`Sampler.uses_bitmap`); one of more than 256 MB is never made.
        """
        degrees = np.diff(data.indptr)
        if data.indptr[-1] >= 2**31:
            raise ValueError(
                f"`data` must have fewer than 2^31 interactions, got {len(data.items)}."
            )
        place_in_row = np.arange(len(data.items)) - np.repeat(data.indptr[:-1], degrees)
        return cls(
            indptr=jnp.asarray(data.indptr, jnp.int32),
            items=jnp.asarray(data.items, jnp.int32),
            gaps=jnp.asarray(data.items - place_in_row, jnp.int32),
            bitmap=_bitmap(data, degrees) if bitmap else None,
            n_items=int(data.n_items),
            rounds=int(degrees.max(initial=0)).bit_length(),
        )

    @property
    def n_users(self) -> int:
        """Number of users."""
        return self.indptr.shape[0] - 1

    def n_unseen(self, users: Int[Array, "*batch"]) -> Int[Array, "*batch"]:
        """How many items of the catalogue each user has not taken."""
        return self.n_items - (self.indptr[users + 1] - self.indptr[users])

    def contains(
        self, users: Int[Array, "*batch"], items: Int[Array, "*batch n"]
    ) -> Bool[Array, "*batch n"]:
        """Whether each user took each of its own ``n`` items."""
        items = jnp.moveaxis(items, -1, 0)  # a user's bounds broadcast along whole vectors
        low, high = self.indptr[users], self.indptr[users + 1]
        return jnp.moveaxis(rows_contain(self.items, items, low, high, self.rounds), 0, -1)

    def taken(self, users: Int[Array, "batch"], items: Int[Array, "n"]) -> Bool[Array, "n batch"]:
        """Whether each user took each of the same ``n`` items; users trail, as vectors."""
        if self.bitmap is None:
            return self.contains(users, jnp.broadcast_to(items, (*users.shape, *items.shape))).T
        # Both gathers copy whole rows, which costs a tenth of looking up each pair.
        words = self.bitmap[users].T[items >> 5]
        return (words >> (items & 31).astype(jnp.uint32)[:, None]) & 1 == 1

    def taken_of_pool(
        self, users: Int[Array, "batch"], items: Int[Array, "n"]
    ) -> Bool[Array, "batch n"]:
        """The same, users leading, and looked up once however often it is used.

        XLA would look the bits up anew in every loop over the scores that they mask, which takes
        several times as long as the loops. What a ``map`` makes, it keeps.
        """
        return jax.lax.map(
            lambda user: self.taken(user[None], items)[:, 0], users, batch_size=_TOGETHER
        )

    def taken_words(self, users: Int[Array, "batch"]) -> UInt32[Array, "words batch"]:
        """What each user took, as bits: item j is bit ``j % 32`` of word ``[j // 32, user]``."""
        if self.bitmap is None:
            return pack_bits(self.taken(users, jnp.arange(self.n_items, dtype=jnp.int32)))
        return self.bitmap[users].T


def sample_unseen(
    key: Key[Array, ""], users: Int[Array, "*batch"], positives: Positives, n: int
) -> Int[Array, "*batch n"]:
    r"""Draws ``n`` items per user, uniformly from those the user has not taken (RNS).

    With :math:`r` uniform on :math:`\{0, …, |\mathcal I| - |\mathcal I_u^+| - 1\}`, the r-th
    untaken item is :math:`r + \#\{p : \text{gap}_p \le r\}`, found by binary search in the user's
    row. No draw is ever rejected, so the cost is the same for a user who took one item and for
    one who took all but one.

    Args:
      key: Random key.
      users: User indices, any shape.
      positives: What every user has taken.
      n: Draws per user, static; independent, with replacement.

    Returns:
      Int32 item indices ``[*batch, n]``. A user who took the whole catalogue has nothing to draw:
      the result is then ``n_items``, an index out of range, which callers exclude beforehand
      (:func:`crl_jax.train.fit` does).

    References:
      The RNS baseline of Rendle et al., BPR, 2009, drawn without accidental positives.
    """
    low, high = positives.indptr[users], positives.indptr[users + 1]
    # Draws lead, users trail: a user's bounds then broadcast along whole vectors. The other
    # layout takes four times as long on a CPU.
    rank = randint_below(key, (n, *users.shape), positives.n_items - (high - low))
    first = search_rows(positives.gaps, rank, low, high, positives.rounds)
    return jnp.moveaxis(rank + (first - low[None]), 0, -1)


def sample_seen(
    key: Key[Array, ""], users: Int[Array, "*batch"], positives: Positives, n: int
) -> Int[Array, "*batch n"]:
    """Draws ``n`` items per user, uniformly and with replacement from those the user took.

    Args:
      key: Random key.
      users: User indices, any shape; each must have at least one positive.
      positives: What every user has taken.
      n: Draws per user, static.

    Returns:
      Int32 item indices ``[*batch, n]``.
    """
    low, high = positives.indptr[users], positives.indptr[users + 1]
    place = low[None] + randint_below(key, (n, *users.shape), high - low)
    return jnp.moveaxis(positives.items[place], 0, -1)


def pack_bits(bits: Bool[Array, "n batch"]) -> UInt32[Array, "words batch"]:
    """Row i becomes bit ``i % 32`` of word ``i // 32``; the last word is filled up with 0."""
    padded = jnp.pad(bits, ((0, -bits.shape[0] % 32), (0, 0))).astype(jnp.uint32)
    places = jnp.arange(32, dtype=jnp.uint32)[None, :, None]
    return jnp.sum(padded.reshape(-1, 32, bits.shape[1]) << places, axis=1, dtype=jnp.uint32)


def _bitmap(data: Interactions, degrees: np.ndarray) -> Array | None:
    """The interactions as bits, or None where there would be too many."""
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
    """Uniform integers in ``[0, bound)``, or 0 where the bound is 0.

    The high word of ``bits * bound``: no value's probability is off by more than 2^-32.
    ``jax.random.randint`` halves the exponent of that error for twice the random bits, which are
    the most of the cost.
    """
    bits = jax.random.bits(key, shape, jnp.uint32)
    bound = jnp.broadcast_to(bound.astype(jnp.uint32), shape)
    # 32 x 32 -> 64 bits by halves, since 64-bit integers are off by default.
    low_bits, high_bits = bits & 0xFFFF, bits >> 16
    low_bound, high_bound = bound & 0xFFFF, bound >> 16
    middle = high_bits * low_bound + ((low_bits * low_bound) >> 16)
    carried = low_bits * high_bound + (middle & 0xFFFF)
    high = high_bits * high_bound + (middle >> 16) + (carried >> 16)
    return high.astype(jnp.int32)
