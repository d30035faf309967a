"""The layout of a binary release: files of records, of labels and pixels."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class File:
    """A file of records: first the labels, a byte each, then the pixels.

    Attributes:
      part: To which its images belong.
      count: Number of records in the release.
      n_labels: Bytes of labels in a record; the last is the one that counts.
      pixels: Whether the record has pixels.
    """

    part: Literal["train", "test", "unlabelled"]
    count: int
    n_labels: int = 0
    pixels: bool = True


@dataclass(frozen=True)
class Release:
    """How a release is laid out.

    Attributes:
      title: Its name.
      side: The side of its images, which have three channels, one after the other.
      by_column: Whether pixels go down first and then to the right.
      first_label: The number of the first class.
      names: The file with the name of each class in a line.
      files: Its files, in the order of their images; labels alone follow the images they are of.
    """

    title: str
    side: int
    by_column: bool
    first_label: int
    names: str
    files: dict[str, File]
