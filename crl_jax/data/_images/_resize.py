"""Images of any size as squares of one: the shorter side fits, and the middle is kept."""

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from ..._threads import thread_map

if TYPE_CHECKING:
    from PIL.Image import Image

BLOCK = 64  # images that a thread takes at a time


def pillow(module: str = "Image") -> Any:
    """A module of Pillow, imported where it is needed first.

    Raises:
      ImportError: If it is not installed; the message says how.
    """
    try:
        return importlib.import_module(f"PIL.{module}")
    except ImportError as error:
        raise ImportError(
            "Image files are decoded and resized by Pillow: pip install 'crl_jax[experiments]'"
        ) from error


def squared(image: "Image", size: int) -> "Image":
    """A square of that side: resized with antialiasing (a triangle filter), cut at the centre."""
    width, height = image.size
    if width == height == size:
        return image
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return image.resize((size, size), pillow().Resampling.BILINEAR, box=box)


def resized(
    images: UInt8[np.ndarray, "n height width channels"], size: int | None
) -> UInt8[np.ndarray, "n new_height new_width channels"]:
    """Grey or colour images as squares of side ``size``; None leaves them as they are."""
    n, height, width, channels = images.shape
    if size is None or height == width == size:
        return images
    make, out = pillow().fromarray, np.empty((n, size, size, channels), np.uint8)

    def resize(start: int) -> None:
        for place in range(start, min(start + BLOCK, n)):
            image = images[place, :, :, 0] if channels == 1 else images[place]
            square = squared(make(np.ascontiguousarray(image)), size)
            out[place] = np.asarray(square).reshape(size, size, channels)

    starts = range(0, n, BLOCK)
    for _ in thread_map(resize, starts) if len(starts) > 1 else map(resize, starts):
        pass
    return out
