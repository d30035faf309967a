"""Image files to arrays of one size, by Pillow, on several threads."""

import io
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt8

from ..._threads import thread_map
from .._archive import Content, Store
from .._errors import DataError
from ._resize import BLOCK, pillow, squared

if TYPE_CHECKING:
    from PIL.Image import Image

# No other decoder of Pillow is let at the bytes, whatever the name of the file says.
FORMATS = {
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".png": "PNG",
    ".bmp": "BMP",
    ".gif": "GIF",
    ".webp": "WEBP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".ppm": "PPM",
    ".pgm": "PPM",
}
_DECODERS = tuple(set(FORMATS.values()))
_LARGEST_FILE = 64 << 20
_BLOCK_BYTES = 4 << 20
_Block = list[tuple[str, bytes]]  # names and contents of files
_GREY = ("1", "L", "LA", "La")


def decode_all(
    store: Store, names: Sequence[str], size: int | None
) -> UInt8[np.ndarray, "n height width channels"]:
    """Decodes files in the order of ``names``.

    Args:
      store: What holds them.
      names: One at least.
      size: The side of the squares that they become, see :func:`squared`; None asks for images
        that are of one size already.

    Returns:
      One channel if all are grey, otherwise three: red, green and blue.

    Raises:
      DataError: If a file cannot be decoded, is animated or too large, or sizes differ.
    """
    pillow()  # fails here if it is not installed, and not in a thread
    places = {name: place for place, name in enumerate(names)}
    rows, first = None, ""

    def decode(block: _Block) -> list[tuple[str, np.ndarray]]:
        return [(name, _pixels(content, store.where(name), size)) for name, content in block]

    for name, pixels in chain.from_iterable(thread_map(decode, _blocks(store, names))):
        where = store.where(name)
        if rows is None:
            rows, first = _room(len(names), pixels.shape, where), where
        if pixels.shape[:2] != rows.shape[1:3]:
            raise DataError(
                "Images differ in size, and `size` makes them one: "
                f"{first} has {_by(rows.shape[1:3])}, {where} has {_by(pixels.shape[:2])}."
            )
        if pixels.shape[2] > rows.shape[3]:  # the first one in colour
            rows = np.repeat(rows, 3, axis=3)
        rows[places[name]] = pixels  # a single channel fills all three
    assert rows is not None
    return rows


def _blocks(store: Store, names: Sequence[str]) -> Iterator[_Block]:
    """The files in blocks that are worth a thread's while and small in memory."""
    block: _Block = []
    n_bytes = 0
    for content in store.each(names):
        block.append((content.name, _whole(content)))
        n_bytes += content.size
        if len(block) == BLOCK or n_bytes > _BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    if block:
        yield block


def _whole(content: Content) -> bytes:
    if content.size > _LARGEST_FILE:
        raise DataError(
            f"{content.where}: expected an image of at most {_LARGEST_FILE} bytes, "
            f"got {content.size}."
        )
    return content.read()


def _room(
    n: int, shape: tuple[int, ...], where: str
) -> UInt8[np.ndarray, "n height width channels"]:
    try:
        return np.empty((n, *shape), np.uint8)
    except MemoryError:
        raise DataError(
            f"{where}: expected images that fit in memory, got {n} as large as this one, "
            f"{_by(shape[:2])}. Give a smaller `size`."
        ) from None


def _pixels(
    content: bytes, where: str, size: int | None
) -> UInt8[np.ndarray, "height width channels"]:
    try:
        with pillow().open(io.BytesIO(content), formats=_DECODERS) as image:
            _check(image, where)
            image = _plain(image, where)
            image = image if size is None else squared(image, size)
            pixels = np.asarray(image)
    except (DataError, MemoryError):
        raise
    except Exception as error:  # Pillow raises many kinds, some of them its own
        raise DataError(f"{where}: not decoded ({error or type(error).__name__}).") from error
    return pixels.reshape(*pixels.shape[:2], -1)


def _check(image: "Image", where: str) -> None:
    # The second picture in an MPO, a JPEG by a camera, is a preview.
    if image.format != "MPO" and getattr(image, "is_animated", False):
        raise DataError(f"{where}: expected one image, got several frames.")
    most = pillow().MAX_IMAGE_PIXELS
    if most is not None and image.width * image.height > most:
        raise DataError(
            f"{where}: expected at most {most} pixels, got {_by((image.height, image.width))}."
        )


def _plain(image: "Image", where: str) -> "Image":
    """Grey or RGB, 8 bits a channel, upright, on white where it is transparent."""
    if "exif" in image.info:
        image = pillow("ImageOps").exif_transpose(image)
    if image.mode.startswith("I;16"):  # 65535 becomes 255
        deep = np.asarray(image).astype(np.uint32)
        return pillow().fromarray(((deep + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise DataError(f"{where}: expected 8 or 16 bits a channel, got the mode {image.mode}.")
    plain = "L" if image.mode in _GREY else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = pillow().new("RGBA", image.size, "white")
        image = pillow().alpha_composite(white, image)
    return image if image.mode == plain else image.convert(plain)


def _by(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} × {shape[1]} pixels"
