"""Decodes and resizes images with Pillow, in parallel threads."""

import importlib.metadata
import io
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import UInt8

from ..._optional import import_optional
from ..._threads import thread_map
from .._archive import FileTree
from .._errors import DataError, Note
from .._rows import DiskArray, Rows, new_rows
from .._split_sampling import Split

if TYPE_CHECKING:
    from PIL.Image import Image

# Suffixes, and Pillow's decoder of each. Decoders of other formats are never used, since they are
# less well tested against malicious files.
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
_MAX_FILE_BYTES = 64 << 20
_MAX_SIDE = 65_535  # of JPEG; a PNG may claim 2**31 pixels a side, and Pillow fills what is missing
_BLOCK_BYTES = 4 << 20
_BLOCK_IMAGES = 64  # images per task of a thread
_GREY_MODES = ("1", "L", "LA", "La")
_MAX_FAILURES = 10
_DARK_16_BITS = 4095  # the largest value of 12-bit data

_Pixels = UInt8[np.ndarray, "n height width channels"]


def check_size(size: Any) -> None:
    """Raises ``ValueError`` unless ``size`` is None or a positive integer."""
    if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
        raise ValueError(f"`size` must be a whole number of pixels, at least 1, got {size!r}.")


def pillow(module: str = "Image") -> Any:
    """Imports a module of Pillow."""
    return import_optional(f"PIL.{module}", "Decoding and resizing images needs Pillow", "data")


def pillow_version() -> str:
    """Version of Pillow, whose decoders differ between releases in the last bit."""
    try:
        return importlib.metadata.version("pillow")
    except importlib.metadata.PackageNotFoundError:
        return "none"


def decode_images(
    tree: FileTree,
    names: Sequence[str],
    size: int | None,
    notes: list[Note] | None = None,
    file: Path | None = None,
) -> _Pixels | DiskArray:
    """Decodes image files in the order of ``names``, with one channel if all are grey, else RGB.

    Images are resized by :func:`resize_square`, or must be of one size if ``size`` is None.
    ``notes`` receives warnings. With a ``file``, pixels are written to it as they are decoded.
    """
    pillow()  # raises ImportError here rather than in a thread
    rows: Rows | None = None
    first = ""
    failures: list[DataError] = []
    n_16_bits, max_16_bits = 0, 0
    blocks = thread_map(
        lambda block: [_decode(tree, name, size) for name in block], _blocks(tree, names)
    )
    for name, decoded in zip(names, chain.from_iterable(blocks)):
        if isinstance(decoded, DataError):
            failures.append(decoded)
            if len(failures) == _MAX_FAILURES:
                break
            continue
        pixels, highest = decoded
        if highest is not None:
            n_16_bits, max_16_bits = n_16_bits + 1, max(max_16_bits, highest)
        if failures:
            continue
        if rows is None:
            first = tree.where(name)
            try:
                rows = new_rows((len(names), *pixels.shape), file)
            except MemoryError:
                raise DataError(
                    f"{first}: expected images that fit in memory, got {len(names)} as large as "
                    f"this one, {_size_text(pixels.shape[:2])}. Reduce `size`."
                ) from None
        if pixels.shape[:2] != rows.shape[1:3]:
            raise DataError(
                "Images differ in size, and `size` makes them one: "
                f"{first} has {_size_text(rows.shape[1:3])}, {tree.where(name)} has "
                f"{_size_text(pixels.shape[:2])}."
            )
        if pixels.shape[2] > rows.shape[3]:  # the first image in colour
            rows = rows.in_color()
        rows.append(pixels[None])  # one channel is broadcast to three
    if len(failures) == 1:
        raise failures[0]
    if failures:
        limit = " or more" * (len(failures) == _MAX_FAILURES)
        raise DataError(
            f"{len(failures)}{limit} images cannot be read: " + " ".join(map(str, failures))
        )
    assert rows is not None
    if notes is not None and n_16_bits and max_16_bits <= _DARK_16_BITS:
        text = (
            f"{{n}} images with 16 bits per channel have no value above {max_16_bits} of 65535, "
            "and are dark after conversion to 8 bits; rescale them to the full range"
        )
        notes.append(Note(n_16_bits, text))
    return rows.close()


def resize_square(image: "Image", size: int) -> "Image":
    """Crops the central square and resizes it to ``size`` with antialiasing (triangle filter)."""
    if image.size == (size, size):
        return image
    return pillow("ImageOps").fit(image, (size, size), pillow().Resampling.BILINEAR)


def resize(
    images: _Pixels, size: int | None
) -> UInt8[np.ndarray, "n new_height new_width channels"]:
    """Resizes grey or RGB images to squares, see :func:`resize_square`; None keeps their size."""
    n, height, width, channels = images.shape
    if size is None or height == width == size:
        return images
    from_array, out = pillow().fromarray, np.empty((n, size, size, channels), np.uint8)

    def resize_block(start: int) -> None:
        for i in range(start, min(start + _BLOCK_IMAGES, n)):
            image = images[i, :, :, 0] if channels == 1 else images[i]
            square = resize_square(from_array(np.ascontiguousarray(image)), size)
            out[i] = np.asarray(square).reshape(size, size, channels)

    starts = range(0, n, _BLOCK_IMAGES)
    for _ in thread_map(resize_block, starts) if len(starts) > 1 else map(resize_block, starts):
        pass
    return out


def resized(data: Any, size: int | None) -> Any:
    """Resizes the images of a container, or of all parts of a split, see :func:`resize`."""
    if size is None:
        return data
    if isinstance(data, Split):
        return type(data)(**{name: resized(part, size) for name, part in data.parts()})
    return replace(data, images=resize(data.images, size))


def _blocks(tree: FileTree, names: Sequence[str]) -> Iterator[list[str]]:
    """Groups files into blocks that amortise the overhead of a thread and bound its memory."""
    block: list[str] = []
    n_bytes = 0
    for name in names:
        block.append(name)
        n_bytes += tree.sizes[name]
        if len(block) == _BLOCK_IMAGES or n_bytes > _BLOCK_BYTES:
            yield block
            block, n_bytes = [], 0
    if block:
        yield block


def _decode(tree: FileTree, name: str, size: int | None) -> tuple[Any, int | None] | DataError:
    """Returns pixels, and the largest value of an image with 16 bits per channel; or an error."""
    where, content = tree.where(name), None
    try:
        content = tree.read(name, _MAX_FILE_BYTES)
        with pillow().open(io.BytesIO(content), formats=_DECODERS) as image:
            # The second picture of an MPO, a JPEG by a camera, is a preview.
            if image.format != "MPO" and getattr(image, "is_animated", False):
                raise DataError(f"{where}: expected one image, got several frames.")
            max_pixels = pillow().MAX_IMAGE_PIXELS
            shape = image.height, image.width
            if max_pixels is not None and image.width * image.height > max_pixels:
                raise DataError(
                    f"{where}: expected at most {max_pixels} pixels, got {_size_text(shape)}."
                )
            if max(image.size) > _MAX_SIDE:
                raise DataError(
                    f"{where}: expected at most {_MAX_SIDE} pixels a side, got {_size_text(shape)}."
                )
            image, max_16_bits = _to_grey_or_rgb(image, where)
            pixels = np.asarray(image if size is None else resize_square(image, size))
    except DataError as error:
        return error
    except MemoryError:
        raise
    except Exception as error:  # Pillow raises many kinds, some of them its own
        if content == b"":
            reason = "an empty file"
        elif isinstance(error, pillow().UnidentifiedImageError):  # its message has an address
            reason = f"cannot identify the format, expected {', '.join(sorted({*_DECODERS}))}"
        else:
            reason = str(error) or type(error).__name__
        return DataError(f"{where}: not decoded ({reason}).")
    return pixels.reshape(*pixels.shape[:2], -1), max_16_bits


def _to_grey_or_rgb(image: "Image", where: str) -> tuple["Image", int | None]:
    """Converts to 8-bit grey or RGB, upright, on white; see :func:`_decode`."""
    if "exif" in image.info:
        image = pillow("ImageOps").exif_transpose(image)
    if image.mode.startswith("I;16"):  # maps 65535 to 255
        values = np.asarray(image).astype(np.uint32)
        return pillow().fromarray(((values + 128) // 257).astype(np.uint8)), int(values.max())
    if image.mode in ("I", "F"):
        raise DataError(f"{where}: expected 8 or 16 bits a channel, got the mode {image.mode}.")
    mode = "L" if image.mode in _GREY_MODES else "RGB"
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = pillow().new("RGBA", image.size, "white")
        image = pillow().alpha_composite(white, image)
    return (image if image.mode == mode else image.convert(mode)), None


def _size_text(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} × {shape[1]} pixels"
