"""Reductions of what a mask keeps: losses of anchors to one number, entries of a row to a count."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@runtime_checkable
class ReduceFn(Protocol):
    """A reduction over anchors, for instance :func:`masked_mean` or ``jax.numpy.sum``."""

    def __call__(
        self, values: Float[Array, "*batch"], /, *, where: Bool[Array, "*batch"] | None = None
    ) -> Float[Array, "..."]:
        """Reduces ``values`` over the anchors that ``where`` keeps."""
        ...


def masked_mean(
    values: Float[Array, "*batch"], /, *, where: Bool[Array, "*batch"] | None = None
) -> Float[Array, ""]:
    """Mean of the kept values; 0, with zero gradient, where nothing is kept.

    A masked value is never read, not even a NaN; a NaN among the kept ones shows.

    >>> import jax.numpy as jnp
    >>> print(masked_mean(jnp.array([1.0, 3.0, jnp.nan]), where=jnp.array([True, True, False])))
    2.0
    """
    if where is None:
        where = jnp.ones(values.shape, bool)
    count = jnp.maximum(jnp.sum(where), 1).astype(values.dtype)
    return jnp.sum(jnp.where(where, values, 0)) / count


def count_kept(scores: Array, where: Array | None) -> Array:
    """Kept entries of each row, ``[*batch]`` or ``[]``; 1 if there are none, to divide by."""
    if where is None:
        return jnp.asarray(scores.shape[-1], jnp.int32)
    return jnp.maximum(jnp.sum(where, axis=-1, dtype=jnp.int32), 1)
