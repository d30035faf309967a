"""Prior probabilities that an unseen item is a false negative."""

from collections.abc import Callable
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .._checks import check_shape
from .._hyperparams import Range, check_arguments
from ..data import Interactions

Prior = Array | np.ndarray | Callable[[Array, Array], Array]
"""Prior probabilities per item ``[n_items]``, per pair ``[n_users, n_items]``, or as a function
``prior(users [batch], items [batch, n]) -> [batch, n]``."""


def popularity_prior(train: Interactions) -> Float[Array, "n_items"]:
    r"""Popularity prior :math:`P_{fn}(l) = pop_l / \sum_j pop_j`, from training interactions.

    References:
      "Contrastive Learning for Personalized Recommendation", (4.16).
    """
    counts = train.item_counts
    return jnp.asarray(counts / max(counts.sum(), 1), jnp.float32)


def uniform_prior(n_items: int) -> Float[Array, "n_items"]:
    r"""Uninformative prior :math:`P_{fn}(l) = 1/|\mathcal I|`.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.2.3, BNS-3.
    """
    return jnp.full(n_items, 1 / n_items, jnp.float32)


def group_prior(
    train: Interactions, groups: Int[np.ndarray, "n_users"]
) -> Callable[[Array, Array], Array]:
    r"""Popularity prior, corrected by the preference of the user's group.

    .. math::
        P_{fn}(l) = \frac{pop_l}{\sum_j pop_j} (1 + \Delta o_{ul}),
        \qquad \Delta o_{ul} = \frac{o_{ul} - \bar o_l}{\max o_l}

    where :math:`o_{ul}` counts the interactions of u's group with item l, and :math:`\bar o_l` and
    :math:`\max o_l` are the mean and maximum over groups. The prior is 0 for items without
    interactions and is clipped at 1.

    Args:
      train: Training interactions.
      groups: Group of each user, such as the occupation: integers from 0, ``[n_users]``.

    Returns:
      A function of users and items.

    Raises:
      ValueError: If ``groups`` has another shape or negative values.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.2.3, BNS-4.
    """
    groups = np.asarray(groups)
    check_shape("groups", groups, (train.n_users,))
    if groups.size and groups.min() < 0:
        raise ValueError(f"`groups` must be integers from 0, got {groups.min()}.")
    counts = np.zeros((int(groups.max(initial=0)) + 1, train.n_items))
    np.add.at(counts, (groups[train.users], train.items), 1)
    maximum = counts.max(axis=0)
    excess = (counts - counts.mean(axis=0)) / np.where(maximum > 0, maximum, 1)
    popularity = counts.sum(axis=0) / max(counts.sum(), 1)
    table = jnp.asarray(np.minimum(popularity * (1 + excess), 1), jnp.float32)
    return jax.tree_util.Partial(_by_group, jnp.asarray(groups, jnp.int32), table)


@check_arguments
def oracle_prior(
    held_out: Interactions,
    *,
    false: Annotated[float, Range(0, 1)] = 0.64,
    true: Annotated[float, Range(0, 1)] = 0.04,
) -> Float[Array, "n_users n_items"]:
    r"""Oracle prior: ``false`` for held-out positives, ``true`` for all other items.

    The defaults are :math:`(\text{label} - 0.2)^2`. For experiments on the value of a good prior: a
    float32 table of all pairs.

    Args:
      held_out: Positives that are excluded from training.
      false, true: Prior at false and at true negatives, in [0, 1]; ``ValueError`` otherwise.

    References:
      "Contrastive Learning for Personalized Recommendation", section 4.5.2.5.
    """
    table = np.full((held_out.n_users, held_out.n_items), true, np.float32)
    table[held_out.users, held_out.items] = false
    return jnp.asarray(table)


def as_prior(prior: Prior) -> Any:
    """Converts a prior to a pytree of arrays: functions become ``jax.tree_util.Partial``."""
    plain = callable(prior) and not isinstance(prior, jax.tree_util.Partial)
    return jax.tree_util.Partial(prior) if plain else prior


def check_prior(prior: Any, n_users: int, n_items: int) -> None:
    """Raises ``ValueError`` unless an array prior matches the number of users and items.

    Shapes are checked while tracing, where an out-of-range index would read the last entry.
    """
    shapes = (n_items,), (n_users, n_items)
    if not isinstance(prior, jax.tree_util.Partial) and jnp.shape(prior) not in shapes:
        raise ValueError(
            f"`prior` must be a function or have one of the shapes {shapes}, "
            f"got {jnp.shape(prior)}."
        )


def lookup_prior(
    prior: Any, users: Int[Array, "batch"], items: Int[Array, "batch n"]
) -> Float[Array, "batch n"]:
    """Returns the prior at each anchor's own items."""
    if isinstance(prior, jax.tree_util.Partial):
        values = prior(users, items)
        check_shape("prior", values, items.shape)
        return values
    table = jnp.asarray(prior)
    return table[items] if table.ndim == 1 else table[users[:, None], items]


def _by_group(
    groups: Int[Array, "n_users"],
    table: Float[Array, "groups n_items"],
    users: Int[Array, "batch"],
    items: Int[Array, "batch n"],
) -> Float[Array, "batch n"]:
    return table[groups[users][:, None], items]
