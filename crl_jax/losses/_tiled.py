"""Losses with in-batch negatives, or all items of a catalogue, in linear memory.

The score matrix of in-batch negatives is quadratic in the batch size, and that of a catalogue has
a column per item. These functions compute it in tiles of a few rows: a tile has all scores of its
anchors, as required by every per-anchor loss, including rank-based ones. The gradient is computed
together with the value of each tile, so that no score is computed twice.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._blocks import split_rows
from .._checks import check_count, check_shape, is_static
from .._floats import at_least_float32
from .._hyperparams import check_arguments, is_static_argument, unwrap_partial
from .._reduce import any_unmasked
from .._take import take_rows
from ._batch_scores import check_pair, different, own_scores, pairwise_scores, sample_ids
from ._common import is_per_anchor_loss, zero_masked

# Default number of scores per tile: 8 MiB in float32; a loss allocates a few such buffers.
_TILE = 2**21
# Least default number of anchors per tile: a tile then has as many elements as keys of width 32.
# With 131,072 keys of width 128, the compiler for a TPU v5e states 1,176 million cycles for InfoNCE
# and its gradient with 16 anchors per tile, 888 with 32, 1,301 with 64 and 954 with 128 (not
# measured on a TPU); BCL with 512 bins needs 346 MB with 32 and 911 with 128. A CPU takes 18 % less
# time with 32 than with 16.
_LEAST_ROWS = 32
# The same on GPUs. On an H100 (JAX 0.11.2) InfoNCE and its gradient take 7.0 ms for 8,192 pairs in
# tiles of 128 anchors and 4.4 in tiles of 512; for 65,536 pairs 1,145, 698, 442 and 331 ms in tiles
# of 16, 32, 64 and 128.
_GPU_TILE = 2**23
_LEAST_GPU_ROWS = 128
# Default number of anchors per tile of a batch of symbolic size.
_SYMBOLIC_ROWS = 128

Loss = Callable[..., Array]
TileSum = Callable[..., tuple[Array, Array]]


@check_arguments
def tiled_view_loss(
    loss: Loss,
    z1: Float[Array, "batch dim"],
    z2: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
    where: Bool[Array, "batch"] | None = None,
    weights: Float[Array, "anchors"] | None = None,
    rows: int | None = None,
    axis_name: str | None = None,
    **hyperparams: Any,
) -> Float[Array, ""]:
    r"""Mean loss over the 2B anchors of :func:`view_scores`, computed in tiles of scores.

    Equal to ``loss(s.pos, s.neg, where=s.where, weights=weights, **hyperparams)`` for
    ``s = view_scores(z1, z2, ids=ids)``, in :math:`O(BD + \text{rows} \cdot B)` memory forward and
    backward. Reverse-mode differentiable with respect to embeddings, weights and
    hyper-parameters, as far as the loss is.

    Precision: that of :func:`view_scores`.

    Args:
      loss: ``loss(pos, neg, *, where, weights, reduce_fn, **hyperparams)``, such as
        :func:`info_nce`, or a ``functools.partial`` of it; marked by :func:`per_anchor_loss`,
        since a tile has the scores of a part of the anchors.
      z1, z2, ids: As in :func:`view_scores`.
      where: Mask of valid samples, shape ``[B]``; the views of masked samples are used neither as
        anchors nor as negatives.
      weights: Per-anchor loss weights, shape ``[2B]``: first views, then second views.
      rows: Number of anchors per tile, static; by default about 2 million scores per tile but at
        least 32 anchors, on GPUs 8 million scores but at least 128 anchors, or 128 anchors if the
        batch size is symbolic (``jax.export``).
      axis_name: Mesh axis over which the batch is sharded, inside ``jax.shard_map``. Samples of
        all devices are then negatives, and the result is the mean over all devices.
      **hyperparams: Hyper-parameters of the loss: scalars, or per-anchor arrays ``[2B]``. Those
        that the loss declares as integers, strings or booleans are static, for instance ``bins``
        of :func:`bayesian_contrastive`, whose exact ranks dominate the run time otherwise.

    Returns:
      Scalar mean over the anchors with at least one negative; at least float32.

    Raises:
      ValueError: If the loss is not a per-anchor loss, shapes are incompatible, or the loss
        rejects a hyper-parameter.

    >>> from crl_jax import losses
    >>> z1, z2 = jax.random.normal(jax.random.key(0), (2, 5, 3))
    >>> tiled = tiled_view_loss(losses.info_nce, z1, z2, rows=2, temperature=0.5)
    >>> pos, neg, where = losses.view_scores(z1, z2)
    >>> print(f"{tiled:.5f} {losses.info_nce(pos, neg, where=where, temperature=0.5):.5f}")
    4.89447 4.89447
    """
    batch = view_batch(z1, z2, ids, where, axis_name)
    return mean_loss(loss, batch, hyperparams, weights=weights, rows=rows, axis_name=axis_name)


@check_arguments
def tiled_tower_loss(
    loss: Loss,
    x: Float[Array, "batch dim"],
    y: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
    where: Bool[Array, "batch"] | None = None,
    weights: Float[Array, "batch"] | None = None,
    rows: int | None = None,
    axis_name: str | None = None,
    **hyperparams: Any,
) -> Float[Array, ""]:
    """Mean loss over the B anchors of :func:`tower_scores`, computed in tiles of scores.

    Precision: that of :func:`tower_scores`.

    Args:
      x, y, ids: As in :func:`tower_scores`.
      where: Mask of valid pairs, shape ``[B]``; masked pairs are used neither as anchors nor as
        negatives.
      weights: Per-anchor loss weights, shape ``[B]``.
      **hyperparams: Hyper-parameters of the loss: scalars, or per-anchor arrays ``[B]``.

    Other arguments, the result and errors are those of :func:`tiled_view_loss`.
    """
    batch = tower_batch(x, y, ids, where, axis_name)
    return mean_loss(loss, batch, hyperparams, weights=weights, rows=rows, axis_name=axis_name)


@check_arguments
def tiled_catalogue_loss(
    loss: Loss,
    x: Float[Array, "batch dim"],
    items: Float[Array, "n_items dim"],
    targets: Int[Array, "batch"],
    *,
    where: Bool[Array, "batch"] | None = None,
    weights: Float[Array, "batch"] | None = None,
    rows: int | None = None,
    **hyperparams: Any,
) -> Float[Array, ""]:
    r"""Mean loss over B anchors, each with one item and all others of a catalogue as negatives.

    The scores are inner products. For :func:`info_nce`, the loss of an anchor is the full softmax
    cross-entropy over the catalogue,

    .. math:: -\log \frac{e^{x^\top v_i / t}}{\sum_j e^{x^\top v_j / t}},

    in :math:`O((B + n) D + \text{rows} \cdot n)` memory for n items, forward and backward.

    Precision: that of :func:`tower_scores`.

    Args:
      x: Anchors, such as users or positions of sequences, shape ``[B, D]``.
      items: Vectors of all items, shape ``[n_items, D]``.
      targets: Item of each anchor, in ``[0, n_items)``, shape ``[B]``; others make the loss NaN,
        unless ``where`` excludes them.
      where: Mask of valid anchors, shape ``[B]``.
      weights: Per-anchor loss weights, shape ``[B]``.
      **hyperparams: Hyper-parameters of the loss: scalars, or per-anchor arrays ``[B]``.

    Other arguments, the result and errors are those of :func:`tiled_view_loss`.

    References:
      Klenitskiy and Vasilev, `Turning Dross Into Gold Loss: is BERT4Rec really better than SASRec?
      <https://arxiv.org/abs/2309.07602>`_, 2023, Eq. 3, for sequences.

    >>> from crl_jax import losses
    >>> x, items = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> print(f"{tiled_catalogue_loss(losses.info_nce, x, items, jnp.array([1])):.4f}")
    1.4076
    >>> print(f"{-jax.nn.log_softmax(x @ items.T)[0, 1]:.4f}")
    1.4076
    """
    if items.ndim != 2 or x.ndim != 2 or x.shape[1] != items.shape[1]:
        raise ValueError(
            f"`items` must have shape (n_items, dim) with the width of `x`, got {items.shape} and "
            f"{x.shape}."
        )
    check_shape("targets", targets, x.shape[:1])
    check_shape("where", where, x.shape[:1])
    x, targets = zero_masked(where, x, targets)
    n_items = items.shape[0]
    if targets.dtype.itemsize < 4:  # could not hold the ids of all items
        targets = targets.astype(jnp.int32)
    is_item = (targets >= 0) & (targets < n_items)
    pos = own_scores(x, take_rows(items, jnp.where(is_item, targets, 0)))
    pos = jnp.where(is_item, pos, jnp.nan)
    item_ids = jnp.arange(n_items, dtype=targets.dtype)
    batch = ScoredBatch(x, pos, items, targets, where, item_ids)
    return mean_loss(loss, batch, hyperparams, weights=weights, rows=rows)


class ScoredBatch(NamedTuple):
    """Embeddings whose inner products are the scores of a loss.

    Attributes:
      anchors: ``[n, dim]``, 0 where masked.
      pos: Scores of the positives, ``[n]``.
      keys: ``[n_keys, dim]``; by default the positives of the anchors.
      ids: Sample ids of the anchors, ``[n]``; keys with equal ids are no negatives.
      where: Mask of valid anchors, ``[n]``, or None.
      key_ids: Ids of the keys, ``[n_keys]``, if the keys are not the positives of the anchors.
    """

    anchors: Array
    pos: Array
    keys: Array
    ids: Array
    where: Array | None
    key_ids: Array | None = None


def view_batch(
    z1: Array, z2: Array, ids: Array | None, where: Array | None, axis_name: str | None
) -> ScoredBatch:
    """Checks two views, both of which are anchors and keys."""
    _check_pairs("z1", z1, "z2", z2)
    check_shape("where", where, z1.shape[:1])
    z1, z2 = zero_masked(where, z1, z2)
    where = None if where is None else jnp.tile(where, 2)
    ids = jnp.tile(_ids(ids, z1.shape[0], axis_name), 2)
    z = jnp.concatenate([z1, z2])
    return ScoredBatch(z, jnp.tile(own_scores(z1, z2), 2), z, ids, where)


def tower_batch(
    x: Array, y: Array, ids: Array | None, where: Array | None, axis_name: str | None
) -> ScoredBatch:
    """Checks pairs of anchors and keys."""
    _check_pairs("x", x, "y", y)
    check_shape("where", where, x.shape[:1])
    x, y = zero_masked(where, x, y)
    return ScoredBatch(x, own_scores(x, y), y, _ids(ids, x.shape[0], axis_name), where)


def _check_pairs(name: str, x: Array, other_name: str, y: Array) -> None:
    check_pair(name, x, other_name, y)
    if is_static(x.shape[0]) and x.shape[0] == 0:
        raise ValueError(f"`{name}` must have at least one pair, got shape {x.shape}.")


class TileRows(NamedTuple):
    """Number of anchors per tile on GPUs and on other platforms."""

    gpu: int
    other: int

    @classmethod
    def choose(cls, rows: int | None, n: Any, n_keys: Any = None) -> "TileRows":
        """Checks the number that is given, or returns the default for ``n_keys``; at most ``n``."""
        if rows is not None:
            check_count("rows", rows)
            chosen = cls(rows, rows)
        elif is_static(n_keys):
            gpu, other = (_LEAST_GPU_ROWS, _GPU_TILE), (_LEAST_ROWS, _TILE)
            chosen = cls(*(max(least, size // n_keys) for least, size in (gpu, other)))
        else:
            chosen = cls(_SYMBOLIC_ROWS, _SYMBOLIC_ROWS)
        return cls(*(min(count, n) for count in chosen)) if is_static(n) else chosen


class Samples(NamedTuple):
    """Sample IDs of anchors or keys, and the mask of valid ones."""

    ids: Array
    real: Array


def _ids(ids: Array | None, n: int, axis_name: str | None) -> Array:
    """Sample ids of the anchors of a device, by default distinct over devices."""
    own = sample_ids(ids, n)
    if ids is not None or axis_name is None:
        return own
    return jax.lax.axis_index(axis_name) * n + own


def mean_loss(
    loss: Loss,
    batch: ScoredBatch,
    hyperparams: dict[str, Any],
    *,
    weights: Array | None,
    rows: int | None = None,
    axis_name: str | None = None,
    sum_fn: Callable[..., tuple[Array, Array]] | None = None,
) -> Array:
    """Mean loss over anchors; ``sum_fn`` replaces :func:`tiled_sum`, of which it has the arguments.

    ``weights`` and hyper-parameters that are no scalars have an entry per anchor.
    """
    anchors, pos, keys, ids, where, key_ids = batch
    n = anchors.shape[0]
    check_shape("weights", weights, (n,))
    (weights,) = zero_masked(where, weights)
    anchor_samples = key_samples = Samples(
        ids, jnp.ones_like(ids, dtype=bool) if where is None else where
    )
    if key_ids is not None:
        key_samples = Samples(key_ids, jnp.ones_like(key_ids, dtype=bool))
    if axis_name is not None:
        gather = partial(jax.lax.all_gather, axis_name=axis_name, tiled=True)
        keys, key_samples = jax.tree.map(gather, (keys, key_samples))
    tile_rows = TileRows.choose(rows, n, keys.shape[0])

    anchor_values = {"anchors": anchors, "pos": pos}
    if weights is not None:
        anchor_values["weights"] = weights
    shared: dict[str, Any] = {"keys": keys}
    loss, arrays = _checked(loss, n, keys.shape[0], hyperparams)
    for name, value in arrays.items():
        (shared if value.ndim == 0 else anchor_values)[name] = value
    if axis_name is not None:  # mark replicated values as device-varying
        anchor_values, shared, key_samples = (
            jax.tree.map(partial(_varying, axis_name), tree)
            for tree in (anchor_values, shared, key_samples)
        )
    total, count = (sum_fn or _sum)(  # type: ignore[misc]
        loss, tile_rows, anchor_values, shared, anchor_samples, key_samples
    )
    if axis_name is not None:
        # Separate psums: JAX 0.8 cannot differentiate a sum of floats and integers together.
        total, count = (jax.lax.psum(x, axis_name) for x in (total, count))
    return total / jnp.maximum(count, 1).astype(total.dtype)


def _checked(
    loss: Loss, n: int, n_keys: int, hyperparams: dict[str, Any]
) -> tuple[Loss, dict[str, Array]]:
    """Binds static arguments to the loss; converts others to arrays after validation by it."""
    if not is_per_anchor_loss(loss):
        raise ValueError(
            "`loss` must be a per-anchor loss, since a tile has the scores of a part of the "
            f"anchors; mark your own with losses.per_anchor_loss, got {_name(loss)}."
        )
    one, row = jax.ShapeDtypeStruct((n,), jnp.float32), (n, n_keys)
    jax.eval_shape(
        partial(loss, reduce_fn=None, **hyperparams), one, jax.ShapeDtypeStruct(row, jnp.float32)
    )
    static = {
        name: x for name, x in hyperparams.items() if x is None or is_static_argument(loss, name)
    }
    arrays = {name: at_least_float32(x)[0] for name, x in hyperparams.items() if name not in static}
    for name, array in arrays.items():
        if array.ndim:
            check_shape(name, array, (n,))
    return (_bind(loss, tuple(static.items())) if static else loss), arrays


@lru_cache
def _bind(loss: Loss, arguments: tuple[tuple[str, Any], ...]) -> Loss:
    """Binds arguments; equal ones give the same function, so that nothing is compiled again."""
    return partial(loss, **dict(arguments))


def _name(loss: Loss) -> str:
    loss = unwrap_partial(loss)
    return getattr(loss, "__name__", type(loss).__name__)


def _varying(axis_name: str, x: Array) -> Array:
    """Marks ``x`` as varying over a mesh axis, so that its gradient is summed over devices."""
    # Adds a varying zero: the name of the JAX function for this depends on the version.
    zero = (0 * jax.lax.axis_index(axis_name)).astype(x.dtype)
    return x ^ zero if x.dtype == bool else x + zero


def tiled_sum(tile_sum: TileSum, rows: TileRows, *args: Any) -> tuple[Array, Array]:
    """Sum of the losses and number of anchors with at least one negative.

    Further arguments: values of the anchors and of all tiles, samples of anchors and of keys.
    """
    return _by_platform(partial(_scan_sum, tile_sum), rows, *args)


def tiled_sum_and_gradient(
    tile_sum: TileSum, rows: TileRows, *args: Any
) -> tuple[tuple[Array, Array], Any]:
    """:func:`tiled_sum` and its gradient with respect to both kinds of values."""
    return _by_platform(partial(_scan_sum_and_gradient, tile_sum), rows, *args)


def _by_platform(scan: Callable[..., Any], rows: TileRows, *args: Any) -> Any:
    other = partial(scan, rows.other)
    if rows.gpu == rows.other:
        return other(*args)
    gpu = partial(scan, rows.gpu)
    return jax.lax.platform_dependent(*args, cuda=gpu, rocm=gpu, default=other)


def _scan_sum(
    tile_sum: TileSum, rows: int, anchor_values: Any, shared: Any, ids: Samples, keys: Samples
) -> tuple[Array, Array]:
    def add(sums: Any, tile: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, sums, tile_sum(tile, shared, keys)), None

    return jax.lax.scan(add, _zero_sums(anchor_values, keys), _tiles(rows, anchor_values, ids))[0]


def _scan_sum_and_gradient(
    tile_sum: TileSum, rows: int, anchor_values: Any, shared: Any, ids: Samples, keys: Samples
) -> tuple[tuple[Array, Array], Any]:
    def add(carry: Any, tile: Any) -> tuple[Any, Any]:
        tile_values, anchor_samples = tile

        def f(tile_values: Any, shared: Any) -> tuple[Array, Array]:
            return tile_sum((tile_values, anchor_samples), shared, keys)

        sums, (d_tile, d_shared) = jax.value_and_grad(f, (0, 1), has_aux=True)(tile_values, shared)
        return jax.tree.map(jnp.add, carry, (sums, _wide(d_shared))), d_tile

    # Half-precision gradients are accumulated in float32.
    start = _zero_sums(anchor_values, keys), jax.tree.map(jnp.zeros_like, _wide(shared))
    (sums, d_shared), d_tiles = jax.lax.scan(add, start, _tiles(rows, anchor_values, ids))
    n = ids.ids.shape[0]
    d_anchors = jax.tree.map(lambda d: d.reshape(-1, *d.shape[2:])[:n], d_tiles)
    d_shared = jax.tree.map(lambda d, x: d.astype(x.dtype), d_shared, shared)
    return sums, (d_anchors, d_shared)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _sum(loss: Loss, rows: TileRows, *args: Any) -> tuple[Array, Array]:
    return tiled_sum(partial(tile_sum, loss), rows, *args)


def _sum_and_gradient(loss: Loss, rows: TileRows, *args: Any) -> tuple[tuple[Array, Array], Any]:
    return tiled_sum_and_gradient(partial(tile_sum, loss), rows, *args)


def scale_gradient(loss: Loss, rows: TileRows, gradient: Any, cotangents: Any) -> tuple[Any, ...]:
    """Backward rule of a sum whose forward rule computes the gradient."""
    del loss, rows
    scale = cotangents[0]
    return *jax.tree.map(lambda d: d * scale.astype(d.dtype), gradient), None, None


_sum.defvjp(_sum_and_gradient, scale_gradient)


def tile_sum(loss: Loss, tile: Any, shared: Any, key_samples: Samples) -> tuple[Array, Array]:
    """Sum of the losses of a tile and number of its anchors with at least one negative."""
    anchor_values, (ids, real) = tile
    hyperparams = {**anchor_values, **shared}
    anchors, pos, keys = (hyperparams.pop(name) for name in ("anchors", "pos", "keys"))
    where = different(ids, key_samples.ids) & real[:, None] & key_samples.real[None, :]
    losses = loss(pos, pairwise_scores(anchors, keys), where=where, reduce_fn=None, **hyperparams)
    return jnp.sum(losses), jnp.sum(any_unmasked(where), dtype=jnp.int32)


def _wide(tree: Any) -> Any:
    return jax.tree.map(lambda x: at_least_float32(x)[0], tree)


def _tiles(rows: int, anchor_values: Any, ids: Samples) -> Any:
    """Splits arrays into tiles ``[n_tiles, rows, ...]``, padding the last with invalid anchors."""
    n = ids.ids.shape[0]
    shape = (-(-n // rows), rows)
    return jax.tree.map(lambda x: split_rows(x, shape), (anchor_values, ids))


def _zero_sums(anchor_values: Any, key_samples: Samples) -> tuple[Array, Array]:
    """Zero initial sums that vary over the same mesh axes as the IDs."""
    (anchors,) = at_least_float32(anchor_values["anchors"][:0])
    zero = jnp.zeros_like(key_samples.ids[0])
    return zero.astype(anchors.dtype), zero.astype(jnp.int32)
