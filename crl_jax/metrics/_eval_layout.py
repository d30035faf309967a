"""Test data laid out for the device: who is evaluated, what is masked, what is to be found."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from .._pytree import STATIC, pytree_dataclass
from .._take import csr_entries

# The product of a single row takes a matrix-vector route that sums in another order, so a
# block of one user would get other scores than the same user among many.
_ROW_MULTIPLE = 8
# Scores of a block at most, unless it is said: 256 MB.
_SCORES = 2**26
# Pairs masked by one scatter: long enough to hide the cost of a loop step, short enough that
# the padding of each block to whole scatters is small.
_GROUP = 2048


@runtime_checkable
class InteractionsLike(Protocol):
    """What is read of a dataset: its pairs (user, item) in compressed sparse rows."""

    @property
    def indptr(self) -> np.ndarray:
        """User u's items are ``items[indptr[u]:indptr[u + 1]]``; shape ``[n_users + 1]``."""
        ...

    @property
    def items(self) -> np.ndarray:
        """The item of each pair."""
        ...

    @property
    def n_users(self) -> int:
        """Number of users, with those that have no pair."""
        ...

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        ...


@pytree_dataclass
class Blocks:
    """Users in blocks of equal size, and what to mask for them."""

    users: Any  # int32 [n_blocks, block]; the last block repeats a user to its end
    slots: Any  # int32 [n_users]: where each user stands in the flattened `users`
    # The pairs to mask, in groups that belong to one block each. A padding pair has the row
    # `block`, which does not exist and is dropped.
    mask_rows: Any  # int32 [n_groups, _GROUP]
    mask_items: Any  # int32 [n_groups, _GROUP]
    group_starts: Any  # int32 [n_blocks + 1]


@pytree_dataclass
class EvalLayout:
    """Test data laid out for :func:`evaluate`; build it with :func:`eval_layout`.

    A pytree: it passes through ``jit`` and ``vmap`` and can be placed on a device.

    Attributes:
      users: The evaluated users, increasing, int32 ``[n_evaluated]``.
      n_relevant: Their numbers of test items, int32 ``[n_evaluated]``.
      n_candidates: Their numbers of items that are not masked, int32 ``[n_evaluated]``.
      test_starts: Where the test items of each begin in ``test_items``, int32 ``[n_evaluated]``.
      test_items: The test items, increasing within a user, int32 ``[n_test]``.
      blocks: The users in blocks and the pairs to mask; private.
      block_tests: Three int32 arrays ``[n_blocks, block]``: the ``test_starts``,
        ``n_relevant`` and number of masked items of every row; private.
      n_items: Size of the catalogue; static.
      max_relevant: The greatest ``n_relevant``; static.
    """

    users: Any
    n_relevant: Any
    n_candidates: Any
    test_starts: Any
    test_items: Any
    blocks: Blocks
    block_tests: Any
    n_items: int = dataclasses.field(metadata=STATIC)
    max_relevant: int = dataclasses.field(metadata=STATIC)

    @property
    def n_evaluated(self) -> int:
        """Number of users with at least one test item."""
        return self.users.shape[0]


def eval_layout(
    train: InteractionsLike,
    test: InteractionsLike,
    *,
    block_size: int | None = None,
    exclude: Sequence[InteractionsLike] = (),
) -> EvalLayout:
    """Lays out which users to evaluate, which items to mask and which to find. Host only.

    A user's candidates are the items without an interaction in ``train`` or ``exclude``; the
    relevant ones are those in ``test``. A test pair that is masked too can never be
    recommended: it is not a candidate and does not count as relevant. Users without a relevant
    item are not evaluated.

    Args:
      train: The interactions that the model knows.
      test: The interactions to find.
      block_size: Users that are scored at once, rounded up to a multiple of 8. Memory grows
        with it, by about two arrays ``[block_size, n_items]``; the metrics do not change. By
        default 256, and fewer where these arrays would take more than 256 MB each.
      exclude: Further interactions to mask, for instance those of a validation set.

    Returns:
      The plan, on the default device.

    Raises:
      ValueError: If the datasets differ in their numbers of users or items, if ``block_size``
        is not positive, or if there is no user to evaluate.
    """
    for name, data in [("test", test), *(("exclude", e) for e in exclude)]:
        if (data.n_users, data.n_items) != (train.n_users, train.n_items):
            raise ValueError(
                f"`{name}` must have the {train.n_users} users and {train.n_items} items of "
                f"`train`, got {data.n_users} and {data.n_items}."
            )
    n_items = train.n_items
    tested = pair_ids(test)
    # What others took is of no use, and may be most of the data.
    masked = pair_ids(train, *exclude, users=np.unique(tested // n_items))
    tested = tested[~np.isin(tested, masked, assume_unique=True, kind="sort")]
    if not tested.size:
        raise ValueError("`test` must hold a pair that is neither in `train` nor in `exclude`.")

    users, starts, counts = np.unique(tested // n_items, return_index=True, return_counts=True)
    n_masked = np.bincount(masked // n_items, minlength=train.n_users)[users]
    # AUC loops over the test items of a block up to its largest number of them: users with
    # equally many go together.
    order = np.argsort(-counts, kind="stable")
    blocks = block_layout(users, order, masked, n_items, block_size)

    def per_row(values: np.ndarray) -> np.ndarray:
        rows = np.zeros(blocks.users.size, np.int32)
        rows[blocks.slots] = values
        return rows.reshape(blocks.users.shape)

    layout = EvalLayout(
        users=users.astype(np.int32),
        n_relevant=counts.astype(np.int32),
        n_candidates=(n_items - n_masked).astype(np.int32),
        test_starts=starts.astype(np.int32),
        test_items=(tested % n_items).astype(np.int32),
        blocks=blocks,
        block_tests=(per_row(starts), per_row(counts), per_row(n_masked)),
        n_items=n_items,
        max_relevant=int(counts.max()),
    )
    return jax.tree.map(jnp.asarray, layout)


def pair_ids(
    *datasets: InteractionsLike, users: Int[np.ndarray, " n_users"] | None = None
) -> Int[np.ndarray, " n"]:
    """One number per distinct pair, ``user * n_items + item``, int64, increasing.

    Args:
      *datasets: Interactions of the same users and items.
      users: Whose pairs these are, increasing; None for all users.
    """
    parts = []
    for data in datasets:
        indptr, items = np.asarray(data.indptr), np.asarray(data.items)
        rows = np.arange(data.n_users) if users is None else users.astype(np.int64)
        if users is not None:
            indptr, places = csr_entries(indptr, rows)
            items = items[places]
        ids = np.repeat(rows * data.n_items, np.diff(indptr))
        ids += items
        parts.append(ids)
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if np.any(ids[1:] <= ids[:-1]):
        # Merges runs that are sorted already; NumPy's `unique` hashes, fifty times slower here.
        ids = np.sort(ids, kind="stable")
        ids = ids[np.diff(ids, prepend=-1) > 0]
    return ids


def block_layout(
    users: Int[np.ndarray, " n_users"],
    order: Int[np.ndarray, " n_users"],
    masked: Int[np.ndarray, " n_masked"],
    n_items: int,
    block_size: int | None,
) -> Blocks:
    """Puts ``users[order]`` into blocks, with their pairs out of the sorted ids ``masked``."""
    if block_size is None:
        block_size = max(
            _ROW_MULTIPLE, min(256, _SCORES // n_items // _ROW_MULTIPLE * _ROW_MULTIPLE)
        )
    if block_size < 1:
        raise ValueError(f"`block_size` must be positive, got {block_size}.")
    n = users.size
    block = -(-min(block_size, n) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    n_blocks = -(-n // block)
    slots = np.empty(n, np.int32)
    slots[order] = np.arange(n)
    users = users[order].astype(np.int64)

    first = np.searchsorted(masked, users * n_items)
    counts = np.searchsorted(masked, (users + 1) * n_items) - first
    row = np.repeat(np.arange(n), counts)
    # Position of each pair in the concatenation of all rows, in its row, and in its block.
    position = np.arange(row.size)
    row_start = np.cumsum(counts) - counts
    items = masked[first[row] + position - row_start[row]] % n_items
    block_start = np.append(row_start, row.size)[np.minimum(np.arange(n_blocks + 1) * block, n)]
    n_groups = -(-np.diff(block_start) // _GROUP)
    group_starts = np.concatenate([[0], np.cumsum(n_groups)])
    of = row // block
    place = group_starts[of] * _GROUP + position - block_start[of]

    # Groups that are never reached fill up to one of few numbers: other users, such as the next of
    # a million, then find their program compiled.
    shape = (_rounded(int(group_starts[-1])), _GROUP)
    mask_rows, mask_items = np.full(shape, block, np.int32), np.zeros(shape, np.int32)
    mask_rows.flat[place] = row % block
    mask_items.flat[place] = items
    return Blocks(
        users=np.pad(users, (0, n_blocks * block - n), "edge")
        .reshape(n_blocks, block)
        .astype(np.int32),
        slots=slots,
        mask_rows=mask_rows,
        mask_items=mask_items,
        group_starts=group_starts.astype(np.int32),
    )


def _rounded(count: int) -> int:
    """At least ``count`` and 1, at most an eighth more, and one of eight numbers in each octave."""
    step = 1 << max(0, count.bit_length() - 4)
    return max(-(-count // step) * step, 1)
