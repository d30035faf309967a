"""Sampling problem small enough to enumerate: a score table, users with few or many positives."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax.data import Interactions
from crl_jax.models import Encoder, Tables
from crl_jax.samplers import Positives, SamplingContext

N_ITEMS = 9
TAKEN = {
    "one": [4],
    "first half": [0, 1, 2, 3],
    "last half": [5, 6, 7, 8],
    "every second": [0, 2, 4, 6, 8],
    "the ends": [0, 8],
    "all but two": [0, 1, 3, 4, 5, 7, 8],
    "all but the first": [1, 2, 3, 4, 5, 6, 7, 8],
    "all but the last": [0, 1, 2, 3, 4, 5, 6, 7],
}
N_USERS = len(TAKEN)


def interactions_of(taken, n_items):
    """Returns interactions from one list of items per user."""
    users = np.repeat(np.arange(len(taken)), [len(items) for items in taken])
    items = np.concatenate([np.asarray(items, int) for items in taken])
    return Interactions.from_arrays(
        users, items, user_ids=np.arange(len(taken)), item_ids=np.arange(n_items)
    )


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Table(Encoder):
    """Encoder with a free parameter per score: a user's vector contains the scores of all items."""

    def init(self, key):
        return {"table": jax.random.normal(key, (self.n_users, self.n_items))}

    def encode(self, params, key=None):
        return Tables(params["table"], jnp.zeros((1, 1)))

    def score(self, tables, users, items):
        return tables.users[users[:, None], items]

    def score_shared(self, tables, users, items):
        return tables.users[users][:, items].T


ENCODER = Table(1, 1)
"""Shared by all worlds, whatever their table sizes, since programs are compiled per encoder."""


@jax.jit
def draw(sampler, key, batch, state=()):
    """Calls the sampler under jit: outside jit, its loops would be recompiled at each call."""
    return sampler(key, batch, state)


@jax.jit
def _init(sampler, key, positives, tables):
    return sampler.init(key, positives, tables)


def as_tables(scores):
    """Returns the encoded tables of :class:`Table` for these scores."""
    return Tables(jnp.asarray(scores, jnp.float32), jnp.zeros((1, 1)))


class World:
    """Interactions, positives and scores, as NumPy and as JAX arrays."""

    def __init__(self, taken=None, n_items=N_ITEMS, seed=0):
        taken = list(TAKEN.values()) if taken is None else taken
        self.train = interactions_of(taken, n_items)
        self.taken, self.n_items = [set(items) for items in taken], n_items
        self.positives = Positives.from_interactions(self.train, bitmap=True)
        self.scores = np.random.default_rng(seed).normal(size=(len(taken), n_items))
        self.tables = as_tables(self.scores)

    def unseen(self, user):
        return np.array([j for j in range(self.n_items) if j not in self.taken[user]])

    def positive(self, user):
        """Returns the user's first positive."""
        return min(self.taken[user])

    def batch(self, users, *, n=1, epoch=0):
        users = np.asarray(users)
        return SamplingContext(
            users=jnp.asarray(users, jnp.int32),
            items=jnp.asarray([self.positive(user) for user in users], jnp.int32),
            positives=self.positives,
            tables=self.tables,
            epoch=jnp.int32(epoch),
            encoder=ENCODER,
            n=n,
        )

    def state(self, sampler):
        return _init(sampler, jax.random.key(7), self.positives, self.tables)


def best_of(unseen, m, value):
    """Returns the distribution of the best of m independent, uniform draws by ``value``."""
    chances = np.zeros(max(unseen) + 1)
    for group in itertools.product(unseen, repeat=m):
        chances[max(group, key=lambda j: value[j])] += len(unseen) ** -float(m)
    return chances
