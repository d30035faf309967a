"""Export of the top-k search as a serialised JAX function."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax import export
from jaxtyping import Array, Float, Int

from .._checks import check_choice
from .._files import whole
from .._optional import import_optional
from ..metrics import top_k
from ._base import checked_k

_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def export_top_k(
    path: str | os.PathLike[str],
    k: int = 10,
    *,
    platforms: Sequence[str] = ("cpu", "cuda", "tpu"),
) -> None:
    """Exports the exact top-k search as a JAX function, which runs without this package.

    The file is read by ``search = jax.export.deserialize(bytearray(data)).call``, and
    ``search(users, items, known)`` returns the item rows, int32 ``[n, k]``, and their scores,
    float32 ``[n, k]``, in descending order; ties are broken by the lower row. Lists of fewer items
    are padded with -1 and -inf. Its arguments:

    * ``users``: float32 ``[n, dim]``, rows of :attr:`Recommender.user_vectors` or the result of
      :meth:`Recommender.fold_in`;
    * ``items``: float32 ``[n_items, dim]``, :attr:`Recommender.item_vectors`;
    * ``known``: int32 ``[n, m]``, rows of items that are excluded from the list of each user;
      negative numbers are padding.

    Vectors are arguments, not constants: one file of some kilobytes serves every model, also after
    retraining, and :meth:`Recommender.export` writes the vectors. All sizes but ``k`` are symbolic,
    and at least 1.

    Args:
      path: The file, written atomically.
      k: Number of items per user, >= 1.
      platforms: Platforms that can run the function: ``"cpu"``, ``"cuda"``, ``"rocm"`` or
        ``"tpu"``. They need not be present.

    Raises:
      ImportError: If the package flatbuffers is missing.
      ValueError: If ``k`` is below 1 or a platform is unknown.
    """
    import_optional("flatbuffers", "export_top_k needs flatbuffers", "export")
    k = checked_k(k)
    if isinstance(platforms, str) or not platforms:
        raise ValueError(
            f"`platforms` must be a sequence of one or more platforms, got {platforms!r}."
        )
    for platform in platforms:
        check_choice("platforms", platform, _PLATFORMS)
    n, n_items, dim, m = export.symbolic_shape("n, n_items, dim, m")
    arguments = (
        jax.ShapeDtypeStruct((n, dim), jnp.float32),
        jax.ShapeDtypeStruct((n_items, dim), jnp.float32),
        jax.ShapeDtypeStruct((n, m), jnp.int32),
    )
    search = jax.jit(partial(_search, k=k))
    data = export.export(search, platforms=tuple(platforms))(*arguments).serialize()
    with whole(Path(path)) as file:
        file.write_bytes(data)


def _search(
    users: Float[Array, "n dim"],
    items: Float[Array, "n_items dim"],
    known: Int[Array, "n m"],
    *,
    k: int,
) -> tuple[Int[Array, "n k"], Float[Array, "n k"]]:
    scores = jnp.matmul(users, items.T, precision=jax.lax.Precision.HIGHEST)
    known = jnp.where(known < 0, items.shape[0], known)  # -1 would be the last item
    user = jnp.arange(users.shape[0], dtype=jnp.int32)[:, None]
    scores = scores.at[user, known].set(-jnp.inf, mode="drop")
    # A catalogue may have fewer than k items.
    values, rows = top_k(jnp.pad(scores, [(0, 0), (0, k)], constant_values=-jnp.inf), k)
    return jnp.where(values > -jnp.inf, rows, -1), values
