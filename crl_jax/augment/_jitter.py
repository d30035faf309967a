"""The four changes of colour by chance, in a random order; grey by chance."""

from itertools import permutations
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .._checks import check_range
from .._hyperparams import Scalar
from ._color import grey, mean_luma, shift_hue, to_grayscale
from ._conversion import (
    FloatImage,
    Image,
    Planes,
    as_numbers,
    chosen,
    is_several,
    to_color_planes,
    to_floats,
    to_image,
)

Strengths: TypeAlias = tuple[Any, Any, Any, Any] | Float[Array | np.ndarray, "4"]
"""Of brightness, contrast, saturation and hue."""

JITTER_DRAWS = 6
"""Numbers that :func:`jittered` takes."""

_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_ORDERS = np.array(list(permutations(range(4))))
# All but the hue are blends. Which these are in each order, and how many of them come first.
_BLENDS = np.array([[change for change in order if change != _HUE] for order in _ORDERS])
_BEFORE_HUE = np.argmax(_ORDERS == _HUE, axis=1)


def color_jitter(
    key: Key[Array, ""], image: Image, strengths: Strengths, *, rate: Scalar = 1.0
) -> FloatImage:
    r"""Changes brightness, contrast, saturation and hue by random factors, in a random order.

    Each of the 24 orders is as likely. The factors are uniform: those of brightness, contrast and
    saturation in :math:`[\max(0, 1-s), 1+s]`, the shift of the hue in :math:`[-s, s]`.

    Args:
      key: Decides order, factors, and whether anything is done.
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 or 3 channels. All
        images along leading axes are changed alike.
      strengths: The s of brightness, contrast, saturation (each :math:`\ge 0`) and hue (in
        [0, 0.5]).
      rate: The probability that the image is changed, in [0, 1].

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If a number leaves its range, or ``image`` is none.

    References:
      torchvision, ``ColorJitter``; Chen et al., `A Simple Framework for Contrastive Learning of
      Visual Representations <https://arxiv.org/abs/2002.05709>`_, 2020, appendix A.
    """
    check_strengths("strengths", strengths)
    check_range("rate", rate, 0, 1)
    x = to_color_planes(image)
    uniform = jax.random.uniform(key, (JITTER_DRAWS,), jnp.float32)
    return to_image(jittered(uniform, x, strengths, rate))


def random_grayscale(key: Key[Array, ""], image: Image, *, rate: Scalar = 0.2) -> FloatImage:
    """Grey with probability ``rate``; see :func:`crl_jax.augment.to_grayscale`.

    Args:
      key: Decides.
      image: ``[..., height, width, channels]``, floats in [0, 1] or uint8; 1 or 3 channels. One
        decision for all images along leading axes.
      rate: In [0, 1].

    Returns:
      Floats in [0, 1], the shape of ``image``.

    Raises:
      ValueError: If ``rate`` leaves its range, or ``image`` is none.
    """
    check_range("rate", rate, 0, 1)
    uniform = jax.random.uniform(key, (), jnp.float32)
    return jnp.where(chosen(uniform, rate), to_grayscale(image), to_floats(image))


def jittered(uniform: Float[Array, "6"], x: Planes, strengths: Strengths, rate: Any) -> Planes:
    """See :func:`color_jitter`."""
    order = jnp.floor(uniform[0] * len(_ORDERS)).astype(jnp.int32)
    s = as_numbers(strengths)
    low = jnp.maximum(1 - s[:3], 0)
    factors = low + uniform[1:4] * (1 + s[:3] - low)
    shift = s[3] * (2 * uniform[4] - 1)
    changed = chosen(uniform[5], rate)
    factors, shift = jnp.where(changed, factors, 1), jnp.where(changed, shift, 0)
    return _in_order(x, factors.astype(x.dtype), shift.astype(x.dtype), order)


def check_strengths(name: str, strengths: Any) -> None:
    """Raises ``ValueError`` unless these are strengths of the four changes, as far as is known."""
    if not is_several(strengths):
        return
    if len(strengths) != 4:
        raise ValueError(
            f"`{name}` must be those of brightness, contrast, saturation and hue, "
            f"got {len(strengths)}."
        )
    for strength, high in zip(strengths, (jnp.inf, jnp.inf, jnp.inf, 0.5), strict=True):
        check_range(name, strength, 0, high, high_open=high == jnp.inf)


def _in_order(
    x: Planes, factors: Float[Array, "3"], shift: Float[Array, ""], order: Int[Array, ""]
) -> Planes:
    """The four changes in an order.

    Under ``vmap`` each image has an order of its own, and a switch would compute all of them. The
    blends :math:`f x + (1-f) t` differ only in their t: black, the mean grey, each pixel's grey.
    So the hue, the dearest, is turned once; three blends stand before it and three behind, of
    which those that are not due have factor 1.
    """
    if x.shape[-3] == 1:
        factors = factors.at[_SATURATION].set(1)
    blends = jnp.tile(jnp.asarray(_BLENDS)[order], 2)
    place = np.arange(6)
    due = (place < 3) == (place % 3 < jnp.asarray(_BEFORE_HUE)[order])
    factor = jnp.where(due, factors[blends], 1)
    of_mean = jnp.where(blends == _CONTRAST, 1 - factor, 0)
    of_grey = jnp.where(blends == _SATURATION, 1 - factor, 0)
    weights = jnp.stack([factor, of_mean, of_grey], axis=1)

    # A loop is compiled as a step. In one long formula of several channels the compiler
    # computes a pixel's grey anew wherever it is used, and what that is made of likewise.
    def blend(x: Planes, w: Array) -> tuple[Planes, None]:
        return jnp.clip(w[0] * x + w[1] * mean_luma(x) + w[2] * grey(x), 0, 1), None

    x, _ = jax.lax.scan(blend, x, weights[:3])
    x = shift_hue(x, shift)
    return jax.lax.scan(blend, x, weights[3:])[0]
