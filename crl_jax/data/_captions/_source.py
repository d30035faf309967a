"""One door for images with texts: folders, pictograms, arrays in memory, digits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._errors import DataError, warn_if
from .._images._resize import resized
from .._readers import say_missing
from ._folder import TABLE as CAPTIONS
from ._folder import Read, read_folder
from ._memory import as_captioned, captioned_digits
from ._pictograms import TABLE as PAIRS
from ._pictograms import read_pictograms
from ._set import CaptionedImages, CaptionedImageSplit, cut_captioned


def load_captioned(
    source: Any,
    *,
    size: int | None = None,
    valid: float | None = None,
    test: float | None = None,
    seed: int = 0,
    column: str | None = None,
    drawings: Sequence[str] | None = None,
) -> CaptionedImageSplit:
    """Loads images with texts: a part to learn from, one to choose settings by, and a test part.

    Args:
      source: One of

        * ``"digits"``: 1,797 handwritten digits, 8 × 8, grey, which scikit-learn brings along,
          with texts such as "a handwritten seven". Their groups are the digits;
        * a folder with ``captions.tsv`` and ``images/``, ``images.zip`` or a tar archive. Each
          line has the name of an image and, after tabs, captions; an image may have several lines.
          A first line whose name is not that of an image names the columns. Lists of names,
          ``train.txt`` and ``test.txt``, and perhaps ``dev.txt`` (or ``valid.txt``), are the
          parts;
        * a folder of pictograms: ``pairs.tsv`` with a column ``NAME_row`` for each set of
          drawings, ``NAME.npz`` or ``NAME_….npz``. The pictograms that differ in the skin tone
          alone are a group;
        * :class:`CaptionedImages`, a :class:`CaptionedImageSplit`, or arrays ``(images, texts)`` or
          ``(images, texts, groups)``: a text, or a sequence of texts, for each image.

        (A folder that is called so is ``"./digits"``.)
      size: The side of the squares that all images become, see :func:`load_images`. None leaves
        images as they are, which must be of one size then.
      valid: The share for validation where the source has no parts, in (0, 1); by default 0.1.
      test: The share for testing, likewise; by default 0.2.
      seed: Of the draw of parts. Groups are drawn as a whole, lest a variant of an image to learn
        from is in the test part; digits are drawn one by one. Also of the texts of digits.
      column: Of pictograms: which column has the texts, by default ``label_en``.
      drawings: Of pictograms: which NAMEs are read, by default all.

    Returns:
      The parts.

    Raises:
      ValueError: If ``source`` or an option is none of these.
      DataError: If files are broken or do not fit together.
      FileNotFoundError: If there is no such folder.
      ImportError: If the source needs a package that is not installed.

    >>> split = load_captioned("digits")
    >>> split.train
    Captioned(1258 images of 8 × 8 × 1, 1258 texts)
    >>> split.train.texts[:2]
    ('zero written by hand', 'a picture of the number one')
    """
    if size is not None and (not isinstance(size, (int, np.integer)) or size < 1):
        raise ValueError(f"`size` must be a whole number of pixels, at least 1, got {size!r}.")
    origin = str(source) if isinstance(source, str | Path) else "images in memory"
    in_memory = not isinstance(source, str | Path)
    is_pictograms = not in_memory and (Path(source) / PAIRS).exists()
    if not is_pictograms and not (column is drawings is None):
        name = "column" if column is not None else "drawings"
        raise ValueError(f"`{name}` belongs to a folder of pictograms, with {PAIRS}.")
    if source == "digits" if isinstance(source, str) else in_memory:
        read = Read(_from_memory(source, size, seed), [])
    elif is_pictograms:
        read = read_pictograms(Path(source), size, column or "label_en", drawings)
    else:
        read = read_folder(_folder(Path(source)), size)
    for note in read.notes:
        warn_if(note.n_cases, note.text, of=origin)
    if isinstance(read.data, CaptionedImageSplit):
        if not (valid is test is None):
            name = "valid" if valid is not None else "test"
            raise ValueError(f"`{name}` belongs to data without parts, which {origin} has.")
        return read.data
    by_group = origin != "digits"
    return cut_captioned(read.data, valid, test, seed, origin, by_group=by_group)


def _from_memory(source: Any, size: int | None, seed: int) -> CaptionedImageSplit | CaptionedImages:
    if isinstance(source, CaptionedImageSplit):
        return CaptionedImageSplit(**{name: _resized(part, size) for name, part in source.parts()})
    if isinstance(source, str):
        source = captioned_digits(seed)
    elif isinstance(source, tuple | list) and len(source) in (2, 3):
        source = as_captioned(*source)
    if not isinstance(source, CaptionedImages):
        raise ValueError(
            "`source` must be a name, a folder, CaptionedImages, a CaptionedImageSplit or arrays "
            f"(images, texts) or (images, texts, groups), got {source!r:.100}."
        )
    return _resized(source, size)


def _resized(data: CaptionedImages, size: int | None) -> CaptionedImages:
    if size is None:
        return data
    return CaptionedImages(resized(data.images, size), data.texts, data.image_of_text, data.groups)


def _folder(path: Path) -> Path:
    if not path.exists():
        raise FileNotFoundError(say_missing(path))
    if not (path / CAPTIONS).exists():
        raise DataError(f"{path}: expected a folder with {CAPTIONS} or {PAIRS}, got neither.")
    return path
