"""Training interactions as a ranking task sees them."""

import warnings

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from ..data import Interactions


def has_unseen(train: Interactions) -> Bool[np.ndarray, "n"]:
    """Marks the interactions of users who left something in the catalogue to compare with."""
    return np.diff(train.indptr)[train.users] < train.n_items


def comparable(train: Interactions) -> Bool[np.ndarray, "n"]:
    """The same; says how many are lost.

    Raises:
      ValueError: If none is left.
    """
    keep = has_unseen(train)
    if not keep.any():
        raise ValueError("`train` must leave some item of the catalogue unseen by some user.")
    if lost := len(keep) - int(keep.sum()):
        warnings.warn(
            f"{lost} interactions are of users who took the whole catalogue: "
            "there is nothing to compare them with, and training passes over them.",
            stacklevel=4,
        )
    return keep


def user_rows(train: Interactions) -> Int[Array, "drawn 2"]:
    """Where the kept interactions of each user begin and end, for users that have some."""
    keep = has_unseen(train)
    kept_before = np.concatenate(([0], np.cumsum(keep)))[train.indptr]
    rows = np.stack([kept_before[:-1], kept_before[1:]], axis=1)
    return jnp.asarray(rows[rows[:, 1] > rows[:, 0]].astype(np.int32))


def scatter_to_interactions(values: np.ndarray, train: Interactions) -> np.ndarray:
    """Puts the values of what was kept back in their places, and NaN in the others."""
    keep = has_unseen(train)
    out = np.full((*values.shape[:-1], len(keep)), np.nan, values.dtype)
    out[..., keep] = values
    return out


def transpose_interactions(data: Interactions) -> Interactions:
    """Items that took users."""
    return Interactions.from_arrays(
        data.items, data.users, user_ids=data.item_ids, item_ids=data.user_ids
    )
