"""Device layout of an evaluation: users in blocks, masked or candidate items, and test items."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from .._checks import check_count
from .._pytree import STATIC, pytree_dataclass
from .._take import csr_entries

# A product with a single row takes a matrix-vector path that sums in another order, so that a
# user alone would get other scores than within a larger block.
_ROW_MULTIPLE = 8
# Default limit on the scores of a block: 256 MB.
_MAX_SCORES = 2**26
# Pairs masked by one scatter: long enough to hide the cost of a loop step, short enough that
# padding each block to whole scatters costs little.
_GROUP = 2048


@runtime_checkable
class InteractionsLike(Protocol):
    """Interactions (user, item) in CSR form, such as :class:`crl_jax.data.Interactions`."""

    @property
    def indptr(self) -> np.ndarray:
        """User u's items are ``items[indptr[u]:indptr[u + 1]]``; shape ``[n_users + 1]``."""
        ...

    @property
    def items(self) -> np.ndarray:
        """Item index of each pair."""
        ...

    @property
    def n_users(self) -> int:
        """Number of users, including users without a pair."""
        ...

    @property
    def n_items(self) -> int:
        """Size of the catalogue."""
        ...


@pytree_dataclass
class Blocks:
    """Users in blocks of equal size, with the pairs to mask, or those to rank."""

    users: Any  # int32 [n_blocks, block]; the last block is padded with its last user
    slots: Any  # int32 [n_users]: position of each user in the flattened `users`
    # The pairs, in groups that belong to one block each. Padding has the row `block`, which is
    # out of range, so that the scatter drops it.
    pair_rows: Any  # int32 [n_groups, _GROUP]
    pair_items: Any  # int32 [n_groups, _GROUP]
    group_starts: Any  # int32 [n_blocks + 1]
    # Whether the pairs are the candidates; otherwise they are masked.
    keeps_pairs: bool = dataclasses.field(default=False, metadata=STATIC)


@pytree_dataclass
class EvalLayout:
    """Test data in the layout of :func:`evaluate`; construct it with :func:`eval_layout`.

    A pytree: it passes through ``jit`` and ``vmap`` and can be placed on a device.

    Attributes:
      users: Evaluated users in increasing order, int32 ``[n_evaluated]``.
      n_relevant: Number of test items per user, int32 ``[n_evaluated]``.
      n_candidates: Number of unmasked items per user, int32 ``[n_evaluated]``.
      test_starts: Offset of each user's test items in ``test_items``, int32 ``[n_evaluated]``.
      test_items: Test items, increasing within a user, int32 ``[n_test]``.
      blocks: Users in blocks, and the pairs to mask or to rank; private.
      block_tests: Three int32 arrays ``[n_blocks, block]``: ``test_starts``, ``n_relevant`` and
        the number of masked items of each row; private.
      n_users: Number of users of the datasets, evaluated or not; static.
      n_items: Size of the catalogue; static.
      max_relevant: Maximum of ``n_relevant``; static.
    """

    users: Any
    n_relevant: Any
    n_candidates: Any
    test_starts: Any
    test_items: Any
    blocks: Blocks
    block_tests: Any
    n_users: int = dataclasses.field(metadata=STATIC)
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
    candidates: InteractionsLike | None = None,
) -> EvalLayout:
    """Prepares the evaluation of a test set: users, masked items and relevant items. Host only.

    A user's candidates are the items without an interaction in ``train`` or ``exclude``; the
    relevant items are those in ``test``. Test pairs that are masked are neither candidates nor
    relevant (with a warning). Users without a relevant item are not evaluated.

    With ``candidates``, only those items of a user are ranked. On data with randomly exposed test
    items, such as Yahoo!-R3 and Coat, they are the exposed items, and ``test`` has those of them
    that are rated highly:

    >>> from crl_jax.data import Interactions
    >>> ids = {"user_ids": [0], "item_ids": range(9)}
    >>> train = Interactions.from_arrays([0, 0], [0, 1], **ids)
    >>> exposed = Interactions.from_arrays([0] * 4, [2, 4, 6, 8], ratings=[1, 5, 2, 4], **ids)
    >>> layout = eval_layout(train, exposed.select(exposed.ratings >= 4), candidates=exposed)
    >>> print(layout.n_candidates, layout.n_relevant)
    [4] [2]

    Args:
      train: Training interactions.
      test: Held-out interactions.
      block_size: Users scored at a time, rounded up to a multiple of 8. Memory is about two
        arrays ``[block_size, n_items]``; the metrics do not depend on it. By default 256, or
        fewer if these arrays would exceed 256 MB each.
      exclude: Further interactions to mask, such as a validation set.
      candidates: Items to rank for each user, less the masked ones; by default the catalogue.
        Test pairs that are not among them are not relevant (with a warning).

    Raises:
      ValueError: If an argument is not in CSR form, if the datasets differ in users or items (in
        their number or, where both have them, in their ids), if ``block_size`` is not positive,
        or if there is no user to evaluate.
    """
    check_interactions("train", train)
    if not isinstance(exclude, Sequence):
        raise ValueError(f"`exclude` must be a sequence of datasets, got {type(exclude).__name__}.")
    others = [("test", test), *(("exclude", data) for data in exclude)]
    if candidates is not None:
        others.append(("candidates", candidates))
    for name, data in others:
        check_interactions(name, data)
        if (data.n_users, data.n_items) != (train.n_users, train.n_items):
            raise ValueError(
                f"`{name}` must have the {train.n_users} users and {train.n_items} items of "
                f"`train`, got {data.n_users} and {data.n_items}."
            )
        for ids in ("user_ids", "item_ids"):
            first, second = getattr(train, ids, None), getattr(data, ids, None)
            if first is None or second is None or first is second:
                continue
            if not np.array_equal(first, second):
                raise ValueError(
                    f"`{name}` must have the `{ids}` of `train` in the same order, got others: "
                    "rows of the two would be different users or items."
                )
    n_items = train.n_items
    tested = pair_ids(test)
    # Interactions of users without test items are not needed and may be most of the data.
    rows = np.unique(tested // n_items)
    pairs = pair_ids(train, *exclude, users=rows)
    n_tested, reason = tested.size, "also in `train` or `exclude`: they are masked and"
    tested = _filter_ids(tested, pairs, False)
    if tested.size and candidates is not None:
        pairs = _filter_ids(pair_ids(candidates, users=rows), pairs, False)
        n_unmasked, tested = tested.size, _filter_ids(tested, pairs, True)
        if tested.size < n_unmasked:
            reason = "not in `candidates`, or are in `train` or `exclude`: they are"
    if tested.size and tested.size < n_tested:
        warnings.warn(
            f"{n_tested - tested.size} of {n_tested} pairs of `test` are {reason} not evaluated.",
            stacklevel=2,
        )
    if not tested.size:
        also = "" if candidates is None else ", and is in `candidates`"
        raise ValueError(
            f"`test` must hold a pair that is neither in `train` nor in `exclude`{also}."
        )

    users, starts, counts = np.unique(tested // n_items, return_index=True, return_counts=True)
    n_pairs = np.bincount(pairs // n_items, minlength=train.n_users)[users]
    n_masked = n_pairs if candidates is None else n_items - n_pairs
    # AUC loops over the test items of a block up to their maximum per user: blocks hold users
    # with similar numbers.
    order = np.argsort(-counts, kind="stable")
    blocks = block_layout(users, order, pairs, n_items, block_size)
    blocks = dataclasses.replace(blocks, keeps_pairs=candidates is not None)

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
        n_users=train.n_users,
        n_items=n_items,
        max_relevant=int(counts.max()),
    )
    return jax.tree.map(jnp.asarray, layout)


def check_interactions(name: str, data: Any) -> None:
    """Raises ``ValueError`` unless ``data`` has the attributes of :class:`InteractionsLike`."""
    if not isinstance(data, InteractionsLike):
        raise ValueError(
            f"`{name}` must be Interactions, got {type(data).__name__}; "
            "`crl_jax.data.as_interactions` converts sparse matrices and arrays."
        )


def pair_ids(
    *datasets: InteractionsLike, users: Int[np.ndarray, " n_users"] | None = None
) -> Int[np.ndarray, " n"]:
    """Returns sorted unique ``user * n_items + item``, int64, of all or increasing ``users``."""
    parts = []
    for data in datasets:
        indptr, items = np.asarray(data.indptr), np.asarray(data.items)
        rows = np.arange(data.n_users) if users is None else users.astype(np.int64)
        if users is not None:
            indptr, index = csr_entries(indptr, rows)
            items = items[index]
        ids = np.repeat(rows * data.n_items, np.diff(indptr))
        ids += items
        parts.append(ids)
    ids = parts[0] if len(parts) == 1 else np.concatenate(parts)
    if np.any(ids[1:] <= ids[:-1]):
        # A stable sort merges sorted runs; NumPy's `unique` hashes, 50 times slower here.
        ids = np.sort(ids, kind="stable")
        ids = ids[np.diff(ids, prepend=-1) > 0]
    return ids


def _filter_ids(
    ids: Int[np.ndarray, " n"], reference: Int[np.ndarray, " m"], included: bool
) -> Int[np.ndarray, " n_kept"]:
    """Returns the distinct ``ids`` that are in ``others``, or those that are not."""
    return ids[np.isin(ids, reference, assume_unique=True, kind="sort", invert=not included)]


def block_layout(
    users: Int[np.ndarray, " n_users"],
    order: Int[np.ndarray, " n_users"],
    pairs: Int[np.ndarray, " n_pairs"],
    n_items: int,
    block_size: int | None,
) -> Blocks:
    """Groups ``users[order]`` into blocks with their pairs from the sorted ids ``pairs``."""
    if block_size is None:
        block_size = max(
            _ROW_MULTIPLE, min(256, _MAX_SCORES // n_items // _ROW_MULTIPLE * _ROW_MULTIPLE)
        )
    check_count("block_size", block_size)
    n = users.size
    block = -(-min(block_size, n) // _ROW_MULTIPLE) * _ROW_MULTIPLE
    n_blocks = -(-n // block)
    slots = np.empty(n, np.int32)
    slots[order] = np.arange(n)
    users = users[order].astype(np.int64)

    first = np.searchsorted(pairs, users * n_items)
    counts = np.searchsorted(pairs, (users + 1) * n_items) - first
    row = np.repeat(np.arange(n), counts)
    # Position of each pair in the concatenation of all rows, in its row, and in its block.
    position = np.arange(row.size)
    row_start = np.cumsum(counts) - counts
    items = pairs[first[row] + position - row_start[row]] % n_items
    block_start = np.append(row_start, row.size)[np.minimum(np.arange(n_blocks + 1) * block, n)]
    n_groups = -(-np.diff(block_start) // _GROUP)
    group_starts = np.concatenate([[0], np.cumsum(n_groups)])
    block_index = row // block
    slot = group_starts[block_index] * _GROUP + position - block_start[block_index]

    # Padded to one of few numbers of groups, so that other users rarely trigger recompilation.
    shape = (_round_up(int(group_starts[-1])), _GROUP)
    pair_rows, pair_items = np.full(shape, block, np.int32), np.zeros(shape, np.int32)
    pair_rows.flat[slot] = row % block
    pair_items.flat[slot] = items
    return Blocks(
        users=np.pad(users, (0, n_blocks * block - n), "edge")
        .reshape(n_blocks, block)
        .astype(np.int32),
        slots=slots,
        pair_rows=pair_rows,
        pair_items=pair_items,
        group_starts=group_starts.astype(np.int32),
    )


def _round_up(count: int) -> int:
    """Rounds up to one of eight numbers per octave, at most an eighth above ``count``."""
    step = 1 << max(0, count.bit_length() - 4)
    return max(-(-count // step) * step, 1)
