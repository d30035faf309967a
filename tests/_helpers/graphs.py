"""User-item graphs for tests, and a reference of their normalised adjacency in float64."""

import jax.numpy as jnp
import numpy as np

from crl_jax.data import Interactions
from crl_jax.models import Tables

LAYOUTS = ("rows", "dense", "bits")
DIM = 5


def interactions(taken) -> Interactions:
    """Returns the interactions of a boolean user-item matrix, including empty rows and columns."""
    users, items = np.nonzero(taken)
    n_users, n_items = np.shape(taken)
    return Interactions.from_arrays(
        users, items, user_ids=np.arange(n_users), item_ids=np.arange(n_items)
    )


def normalised(taken) -> np.ndarray:
    """Returns D^{-1/2} A D^{-1/2} in float64, users first."""
    taken = np.asarray(taken, np.float64)
    n_users, n_items = taken.shape
    links = np.zeros((n_users + n_items,) * 2)
    links[:n_users, n_users:] = taken
    links[n_users:, :n_users] = taken.T
    degrees = links.sum(1)
    roots = np.array([d**-0.5 if d else 0.0 for d in degrees])
    return roots[:, None] * links * roots


def heavy_and_empty() -> np.ndarray:
    """Returns a matrix with one user of 46 items, one item of 20 users, and varying row lengths.

    Some users and items have no interactions. In layouts with `narrow_blocks`, the partial sums of
    long rows are split again.
    """
    rng = np.random.default_rng(0)
    taken = np.zeros((24, 50), bool)
    for user in range(22):
        taken[user, rng.choice(46, user // 2, replace=False)] = True
    taken[5, :46] = True
    taken[2:22, 3] = True
    taken[9] = False
    return taken


GRAPHS = {
    "heavy and empty": heavy_and_empty(),
    "one user": np.ones((1, 37), bool),
    "one item": np.ones((40, 1), bool),
    "one link": np.ones((1, 1), bool),
    "no link": np.zeros((3, 4), bool),
}


def some_tables(taken, dim=DIM, seed=1) -> Tables:
    rng = np.random.default_rng(seed)
    shapes = [(rows, dim) for rows in np.shape(taken)]
    return Tables(*(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes))


def stacked(tables) -> np.ndarray:
    return np.concatenate([np.asarray(table, np.float64) for table in tables])
