"""Losses of tasks in tiles of the score matrix."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ._score_task import AUC_ANCHORS, LossInputs, class_masks

Tile = int | str
"""Number of anchors whose scores are in memory at a time, or ``"fused"`` for kernels that store
none."""

_FUSED_ANCHORS = 256  # whose scores are stored for metrics


def check_tile(task: Any, base: type) -> None:
    """Raises ``ValueError`` if ``tile`` is invalid or the loss is not that of ``base``."""
    tile, own = task.tile, type(task)
    if tile is None:
        return
    is_count = isinstance(tile, int) and not isinstance(tile, bool) and tile > 0
    if not is_count and tile != "fused":
        raise ValueError(f"`tile` must be a positive integer, 'fused' or None, got {tile!r}.")
    if own.loss is not base.loss or own.losses is not base.losses:  # type: ignore[attr-defined]
        raise ValueError(f"`tile` must be None for {own.__name__}, got {tile!r}.")


def by_tile(
    tile: Tile, tiled: Callable[..., Array], fused: Callable[..., Array]
) -> Callable[..., Array]:
    """Returns the loss function for a tile."""
    return fused if tile == "fused" else partial(tiled, rows=tile)


def first_inputs(
    tile: Tile,
    anchors: Float[Array, "n_anchors dim"],
    keys: Float[Array, "n_keys dim"],
    positives: Int[Array, "n_anchors"],
    examples: Int[Array, "n_keys"],
    real: Bool[Array, "n_keys"],
    labels: Int[Array, "n_keys"] | None,
) -> LossInputs:
    """Returns scores of the first anchors of a batch, for metrics and estimates of α.

    Args:
      tile: Number of anchors, but at least 16; 256 with ``"fused"``.
      anchors: Embeddings; an anchor and the key with its index belong to one example.
      keys: Embeddings of all keys.
      positives: Index of the positive of each anchor among the keys.
      examples: Example of each key; keys of an anchor's example are not its negatives.
      real: False for keys of padding.
      labels: Classes of the keys.
    """
    rows = _FUSED_ANCHORS if isinstance(tile, str) else max(tile, AUC_ANCHORS)
    # In full float32: these scores are only ranked.
    scores = jax.lax.stop_gradient(
        jnp.matmul(
            anchors[:rows], keys.T, precision=jax.lax.Precision.HIGHEST,
            preferred_element_type=jnp.float32,
        )
    )  # fmt: skip
    where = real[:rows, None] & real[None, :] & (examples[:rows, None] != examples[None, :])
    pos = jnp.take_along_axis(scores, positives[:rows, None], axis=1)[:, 0]
    classes = class_masks(None if labels is None else labels[:rows], labels)
    return LossInputs(pos, scores, where, classes)
