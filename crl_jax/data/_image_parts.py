"""What all readers of images give: arrays of the parts, and notes of what was changed."""

from typing import NamedTuple

from ._images import ImageSplit


class Note(NamedTuple):
    """Something to warn of; ``{n}`` in the text stands for the count."""

    n_cases: int
    text: str


class Read(NamedTuple):
    """A split and the notes on it."""

    split: ImageSplit
    notes: list[Note]
