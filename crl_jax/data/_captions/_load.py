"""Loads images with captions from folders, arrays, pictograms and digits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._archive import require_exists
from .._download import cache_folder
from .._errors import DataError, Note, warn_if
from .._images._decode import check_size, resized
from .._images._images import as_images, digits
from ._captioned import CaptionedImages, CaptionedImageSplit, join_captions, split_captioned
from ._readers import CAPTIONS, PAIRS, read_folder, read_pictograms

_DIGIT_NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DIGIT_TEMPLATES = (
    "a handwritten {}",
    "the digit {}",
    "a picture of the number {}",
    "{} written by hand",
)


def load_captioned(
    source: Any,
    *,
    size: int | None = None,
    valid: float | None = None,
    test: float | None = None,
    seed: int = 0,
    column: str | None = None,
    drawings: Sequence[str] | None = None,
    on_disk: bool = False,
    cache: str | Path | None = None,
) -> CaptionedImageSplit:
    """Loads captioned images as training, validation and test parts.

    Args:
      source: One of

        * ``"digits"``: scikit-learn's 1,797 handwritten digits, 8 × 8, grey, with captions such as
          "a handwritten seven". Their groups are the digits;
        * a folder with ``captions.tsv`` and ``images/``, ``images.zip`` or a tar archive. Each line
          has the name or path of an image, a tab, and tab-separated captions; an image may have
          several lines. A first line whose name has no suffix is a header. Lists of names,
          ``train.txt``, ``test.txt`` and optionally ``dev.txt`` (or ``valid.txt``), are the parts;
        * a folder of pictograms: ``pairs.tsv`` with a column ``NAME_row`` for each set of drawings,
          ``NAME.npz`` or ``NAME_….npz``. Those that differ only in skin tone are one group;
        * :class:`CaptionedImages`, a :class:`CaptionedImageSplit`, or arrays ``(images, texts)`` or
          ``(images, texts, groups)``, with a caption or a sequence of captions for each image.

        (A folder of that name is ``"./digits"``.)
      size: As in :func:`load_images`.
      valid: Validation fraction in (0, 1) for sources without parts; 0.1 by default.
      test: Test fraction, likewise; 0.2 by default.
      seed: Seed of the split, and of the captions of digits. Groups are not divided between parts,
        so that no variant of a training image is in the test part; digits are split one by one.
      column: Caption column of pictograms, by default ``label_en``.
      drawings: NAMEs of the drawings of pictograms to read, by default all.
      on_disk: Whether the images of a folder with ``captions.tsv`` remain in files, for sets that
        exceed memory, see :func:`load_images`.
      cache: Folder of those files, see :func:`download`.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If files are malformed or inconsistent.
      FileNotFoundError: If there is no such folder.
      ImportError: If the source needs a package that is not installed.

    >>> split = load_captioned("digits")
    >>> split.train
    CaptionedImages(1258 images of 8 × 8 × 1, 1258 texts)
    >>> split.train.texts[:2]
    ('zero written by hand', 'a picture of the number one')
    """
    check_size(size)
    path = Path(source) if isinstance(source, str | Path) else None
    origin = "images in memory" if path is None else str(source)
    is_digits = isinstance(source, str) and source == "digits"
    is_pictograms = path is not None and (path / PAIRS).exists()
    if not is_pictograms and not (column is drawings is None):
        name = "column" if column is not None else "drawings"
        raise ValueError(f"`{name}` requires a folder of pictograms, with {PAIRS}.")
    if on_disk and (is_digits or path is None or is_pictograms):
        raise ValueError(f"`on_disk` needs a folder with {CAPTIONS}, got {origin}.")
    notes: list[Note] = []
    if is_digits:
        loaded = resized(_captioned_digits(seed), size)
    elif path is None:
        loaded = _from_memory(source, size)
    elif is_pictograms:
        loaded, notes = read_pictograms(path, size, column or "label_en", drawings)
    else:
        require_exists(path)
        if not (path / CAPTIONS).exists():
            raise DataError(f"{path}: expected a folder with {CAPTIONS} or {PAIRS}, got neither.")
        loaded, notes = read_folder(path, size, cache_folder(cache) if on_disk else None)
    for note in notes:
        warn_if(*note, origin=origin)
    if isinstance(loaded, CaptionedImages):
        return split_captioned(loaded, valid, test, seed, origin, by_group=not is_digits)
    if not (valid is test is None):
        name = "valid" if valid is not None else "test"
        raise ValueError(f"`{name}` requires a source without parts, and {origin} has parts.")
    return loaded


def _from_memory(source: Any, size: int | None) -> CaptionedImageSplit | CaptionedImages:
    if isinstance(source, tuple | list) and len(source) in (2, 3):
        source = _as_captioned(*source)
    if not isinstance(source, CaptionedImages | CaptionedImageSplit):
        raise ValueError(
            "`source` must be a name, a folder, CaptionedImages, a CaptionedImageSplit or arrays "
            f"(images, texts) or (images, texts, groups), got {source!r:.100}."
        )
    return resized(source, size)


def _as_captioned(images: Any, texts: Sequence[Any], groups: Any = None) -> CaptionedImages:
    """Converts images, a caption or a sequence of captions for each, and groups ``[n]``."""
    if isinstance(texts, str) or len(texts) != len(images):
        raise ValueError(
            f"`texts` must hold one or several captions for each of {len(images)} images, "
            f"got {texts!r:.100}."
        )
    captions: list[list[str]] = []
    for i, text in enumerate(texts):
        per_image = text if isinstance(text, list | tuple | np.ndarray) else [text]
        for caption in per_image:
            if not isinstance(caption, str) or not caption.strip():
                raise ValueError(
                    f"`texts` must be non-empty strings, got {caption!r:.100} for image {i}."
                )
        captions.append([str(caption).strip() for caption in per_image])
    labels = np.full(len(captions), -1) if groups is None else np.asarray(groups)
    if labels.shape != (len(captions),) or labels.dtype.kind not in "iu":
        raise ValueError(
            f"`groups` must be an integer for each of {len(captions)} images, got {groups!r:.100}."
        )
    limits = np.iinfo(np.int32)
    if labels.size and (labels.min() < limits.min or labels.max() > limits.max):
        raise ValueError(f"`groups` must fit in int32, got {labels.min()} to {labels.max()}.")
    pixels = as_images(images, np.full(len(captions), -1)).images
    labels = None if groups is None else labels.astype(np.int32)
    return join_captions(pixels, captions, labels)


def _captioned_digits(seed: int) -> CaptionedImages:
    """Scikit-learn's digits, each with a caption sampled from templates; groups are the digits."""
    data = digits()
    template = np.random.default_rng(seed).integers(len(_DIGIT_TEMPLATES), size=len(data))
    captions = [
        [_DIGIT_TEMPLATES[i].format(_DIGIT_NAMES[x])] for i, x in zip(template, data.labels)
    ]
    return join_captions(data.images, captions, data.labels)
