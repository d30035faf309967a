"""Masked reductions."""

from typing import Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


@runtime_checkable
class ReduceFn(Protocol):
    """Reduction over anchors, such as :func:`masked_mean` or ``jax.numpy.sum``."""

    def __call__(
        self, values: Float[Array, "*batch"], /, *, where: Bool[Array, "*batch"] | None = None
    ) -> Float[Array, "..."]:
        """Reduces ``values`` over the anchors where ``where`` is True."""
        ...


def masked_mean(
    values: Float[Array, "*batch"], /, *, where: Bool[Array, "*batch"] | None = None
) -> Float[Array, ""]:
    """Mean of the values where ``where`` is True; 0, with zero gradient, if there are none.

    Masked values are ignored, even if they are NaN; an unmasked NaN propagates.

    >>> import jax.numpy as jnp
    >>> print(masked_mean(jnp.array([1.0, 3.0, jnp.nan]), where=jnp.array([True, True, False])))
    2.0
    """
    if where is None:
        where = jnp.ones(values.shape, bool)
    count = jnp.maximum(jnp.sum(where), 1).astype(values.dtype)
    return jnp.sum(jnp.where(where, values, 0)) / count


def count_unmasked(scores: Array, where: Array | None) -> Array:
    """Number of unmasked entries per row, ``[*batch]`` or ``[]``, at least 1 (a divisor)."""
    if where is None:
        return jnp.asarray(scores.shape[-1], jnp.int32)
    return jnp.maximum(jnp.sum(where, axis=-1, dtype=jnp.int32), 1)


def any_unmasked(where: Bool[Array, "*batch n"]) -> Bool[Array, "*batch"]:
    """Whether a row has an unmasked entry.

    From their number, so that compilers merge the reduction with that of :func:`count_unmasked`.
    """
    return jnp.sum(where, axis=-1, dtype=jnp.int32) > 0
