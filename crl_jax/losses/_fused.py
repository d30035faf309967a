"""In-batch contrastive losses by kernels in which scores never leave fast memory."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._checks import is_static
from .._density_ratio import density_ratio, end_densities, target_proportions
from .._hyperparams import check_arguments, per_anchor
from ..kernels import row_log_sums
from ._contrastive import (
    bayesian_contrastive,
    debiased_contrastive,
    decoupled_contrastive,
    hard_contrastive,
    info_nce,
)
from ._estimators import debias
from ._logspace import softplus
from ._tiled import (
    Loss,
    Samples,
    ScoredBatch,
    TileRows,
    mean_loss,
    scale_gradient,
    tile_sum,
    tiled_sum,
    tiled_sum_and_gradient,
    tower_batch,
    view_batch,
)

# Anchors per call of the kernels. Their statistics take 512 bytes each, padded to 128 lanes, and
# their histograms 4 bytes per bin.
_ROWS = 2048
_STATIC = ("where", "weights", "reduce_fn", "bins", "temperature")


@check_arguments
def fused_view_loss(
    loss: Loss,
    z1: Float[Array, "batch dim"],
    z2: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
    where: Bool[Array, "batch"] | None = None,
    weights: Float[Array, "anchors"] | None = None,
    axis_name: str | None = None,
    interpret: bool = False,
    **hyperparams: Any,
) -> Float[Array, ""]:
    r"""Mean loss over the 2B anchors of :func:`view_scores`, without storing scores on a TPU.

    Equal to :func:`tiled_view_loss` up to rounding; the weights of :func:`bayesian_contrastive` are
    rounded to 12 significant bits. On a TPU, Pallas kernels compute the scores in tiles that stay
    in fast memory, and compute them again in the backward pass. On other platforms, for 64-bit
    embeddings or ids, and for a symbolic batch size, it is :func:`tiled_view_loss`. ``jax.export``
    of the kernels supports the platform ``tpu`` alone, not several platforms in one call. They are
    differentiable once, in reverse mode; use :func:`tiled_view_loss` for second derivatives. On a
    mesh of TPUs they need ``jax.shard_map`` with ``axis_name``.

    Precision: that of :func:`view_scores`.

    Args:
      loss: :func:`info_nce`, :func:`decoupled_contrastive`, :func:`debiased_contrastive`,
        :func:`hard_contrastive` or :func:`bayesian_contrastive`, the last with ``bins``; or a
        ``functools.partial`` of one of them that binds keyword arguments.
      z1, z2, ids, where, weights, axis_name: As in :func:`tiled_view_loss`.
      interpret: Whether to interpret the kernels on every platform, for tests; slow.
      **hyperparams: Hyper-parameters of the loss: scalars, or per-anchor arrays ``[2B]``.

    Returns:
      Scalar mean over the anchors with at least one negative; at least float32.

    Raises:
      ValueError: If the loss is not one of these, ``bins`` is missing, shapes are incompatible,
        or the loss rejects a hyper-parameter.
      NotImplementedError: If a second derivative is computed.

    >>> from crl_jax import losses
    >>> z1, z2 = jax.random.normal(jax.random.key(0), (2, 5, 3))
    >>> print(f"{losses.fused_view_loss(losses.info_nce, z1, z2, temperature=0.5):.5f}")
    4.89447
    """
    batch = view_batch(z1, z2, ids, where, axis_name)
    return _mean_loss(loss, batch, hyperparams, weights, axis_name, interpret)


@check_arguments
def fused_tower_loss(
    loss: Loss,
    x: Float[Array, "batch dim"],
    y: Float[Array, "batch dim"],
    *,
    ids: Int[Array, "batch"] | None = None,
    where: Bool[Array, "batch"] | None = None,
    weights: Float[Array, "batch"] | None = None,
    axis_name: str | None = None,
    interpret: bool = False,
    **hyperparams: Any,
) -> Float[Array, ""]:
    """Mean loss over the B anchors of :func:`tower_scores`, without storing scores on a TPU.

    Equal to :func:`tiled_tower_loss` up to rounding.

    Args:
      x, y, ids, where, weights: As in :func:`tiled_tower_loss`.
      **hyperparams: Hyper-parameters of the loss: scalars, or per-anchor arrays ``[B]``.

    Other arguments, the result and errors are those of :func:`fused_view_loss`.
    """
    batch = tower_batch(x, y, ids, where, axis_name)
    return _mean_loss(loss, batch, hyperparams, weights, axis_name, interpret)


def _mean_loss(
    loss: Loss,
    batch: ScoredBatch,
    hyperparams: dict[str, Any],
    weights: Array | None,
    axis_name: str | None,
    interpret: bool,
) -> Array:
    function, arguments = _resolve(loss, hyperparams)
    if function is bayesian_contrastive and arguments.get("bins") is None:
        raise ValueError("`bins` must be set: fused kernels have histogram ranks, got None.")
    narrow = batch.anchors.dtype != jnp.float64 and batch.ids.dtype.itemsize <= 4
    sum_fn = partial(_sum, interpret) if narrow and is_static(*batch.anchors.shape) else None
    return mean_loss(
        function, batch, arguments, weights=weights, axis_name=axis_name, sum_fn=sum_fn
    )


def _resolve(loss: Loss, hyperparams: dict[str, Any]) -> tuple[Loss, dict[str, Any]]:
    """Unwraps ``functools.partial``; returns the function and its keyword arguments."""
    while isinstance(loss, partial):
        hyperparams = {**loss.keywords, **hyperparams}
        loss = loss.func
    if loss not in _FORMS:
        names = ", ".join(f"`{x.__name__}`" for x in _FORMS)
        raise ValueError(f"`loss` must be one of {names} or a `functools.partial`, got {loss}.")
    return loss, hyperparams


# --- sums over anchors ----------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _sum(interpret: bool, loss: Loss, rows: TileRows, *args: Any) -> tuple[Array, Array]:
    return _by_platform(tiled_sum, interpret, loss, rows, *args)


def _sum_and_gradient(interpret: bool, loss: Loss, rows: TileRows, *args: Any) -> tuple[Any, Any]:
    return _by_platform(tiled_sum_and_gradient, interpret, loss, rows, *args)


def _scale_gradient(interpret: bool, *args: Any) -> tuple[Any, ...]:
    del interpret
    return scale_gradient(*args)


_sum.defvjp(_sum_and_gradient, _scale_gradient)


def _by_platform(
    total: Callable[..., Any], interpret: bool, loss: Loss, rows: TileRows, *args: Any
) -> Any:
    fused_rows = TileRows.choose(_ROWS, args[-2].ids.shape[0])
    fused = partial(total, partial(_fused_tile_sum, interpret, loss), fused_rows)
    if interpret:
        return fused(*args)
    tiled = partial(total, partial(tile_sum, loss), rows)
    return jax.lax.platform_dependent(*args, default=tiled, tpu=fused)


def _fused_tile_sum(
    interpret: bool, loss: Loss, tile: Any, shared: Any, key_samples: Samples
) -> tuple[Array, Array]:
    """Fused form of :func:`tile_sum`: the scores of the tile are not stored."""
    anchor_values, (ids, real) = tile
    inputs = {**anchor_values, **shared}
    anchors, pos, keys = (inputs.pop(name) for name in ("anchors", "pos", "keys"))
    weights = inputs.pop("weights", None)
    function, inputs = _resolve(loss, inputs)
    form = _FORMS[function]
    values = {
        name: per_anchor(name, inputs.get(name, p.default), pos.shape, pos.dtype)
        for name, p in inspect.signature(function).parameters.items()
        if p.kind is p.KEYWORD_ONLY and name not in _STATIC
    }
    values = {name: jnp.broadcast_to(value, pos.shape) for name, value in values.items()}
    temperature = jnp.asarray(inputs.get("temperature", 1.0), pos.dtype)

    powers = [jnp.broadcast_to(power, pos.shape) for power in form.powers(**values)]
    exponents = jnp.stack(powers, axis=1) / temperature
    rank_params = form.rank_params(**values)
    ranks = {} if rank_params is None else {
        "weight": density_ratio, "params": jnp.stack(rank_params, axis=1), "bins": inputs["bins"],
    }  # fmt: skip
    if anchors.dtype == jnp.float16:  # no such products on a TPU
        anchors, keys = anchors.astype(jnp.float32), keys.astype(jnp.float32)
    log_sums, top, count = row_log_sums(
        anchors, keys, exponents, ids=ids.astype(jnp.int32),
        key_ids=key_samples.ids.astype(jnp.int32), key_mask=key_samples.real,
        interpret=interpret, **ranks,
    )  # fmt: skip

    valid = real & (count > 0)
    pos = jnp.where(valid, pos, 0)
    log_sums = [jnp.where(valid, x, 0) for x in log_sums.T]
    log_n = jnp.log(jnp.maximum(count, 1).astype(pos.dtype))
    log_g = form.log_sum(log_sums, top / temperature, log_n, pos, temperature, **values)
    margin = log_g - pos / temperature
    losses = margin if function is decoupled_contrastive else softplus(margin)
    if weights is not None:
        losses = jnp.where(valid, weights, 0) * losses
    return jnp.sum(jnp.where(valid, losses, 0)), jnp.sum(valid, dtype=jnp.int32)


# --- losses as functions of log-sums --------------------------------------------------------------


class _Form(NamedTuple):
    """Estimate of the sum over negatives from log-sums of powers of their exponentials.

    Attributes:
      powers: Returns the powers of ``exp(score / temperature)`` in the sums.
      log_sum: Returns the estimate from the log-sums relative to the largest logit, this logit, the
        log of the number of negatives and the scores of the positives.
      rank_params: Returns the parameters of rank-based weights, or None.
    """

    powers: Callable[..., tuple[Array, ...]]
    log_sum: Callable[..., Array]
    rank_params: Callable[..., tuple[Array, ...] | None] = lambda **_: None


def _biased(log_sums: list[Array], top: Array, *_: Any, **__: Any) -> Array:
    return top + log_sums[0]


def _debiased(
    log_sums: list[Array], top: Array, log_n: Array, pos: Array, temperature: Array,
    *, tau_plus: Array, min_score: Array, beta: Array | None = None,
) -> Array:  # fmt: skip
    # The powers of the hard loss differ by 1, so that the largest logit remains once.
    log_mean = top + (log_sums[0] - log_n if beta is None else log_sums[1] - log_sums[0])
    return debias(log_mean, log_n, pos[:, None], tau_plus, min_score, temperature)


def _bayesian_params(*, tau_plus: Array, alpha: Array, beta: Array) -> tuple[Array, ...]:
    return *target_proportions(alpha, beta), *end_densities(alpha, tau_plus)


_ONE = _Form(lambda **_: (jnp.float32(1),), _biased)
_FORMS: dict[Any, _Form] = {
    info_nce: _ONE,
    decoupled_contrastive: _ONE,
    debiased_contrastive: _ONE._replace(log_sum=_debiased),
    hard_contrastive: _Form(lambda *, beta, **_: (beta, beta + 1), _debiased),
    bayesian_contrastive: _ONE._replace(rank_params=_bayesian_params),
}
