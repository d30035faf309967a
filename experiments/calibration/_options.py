"""Command-line flags of the calibration benchmark, and their ranges."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

from .._program import flag, program
from .._ranges import COUNT, MAX_COUNT, Range, option_group, parse_flags
from .._read_options import ReadOptions

_DESCRIPTION = """Measure which posteriors of a false negative can be trusted, on problems whose
false negatives are known: scores drawn from the assumed densities, simulated interactions, classes
of images, and items of a user's own data that were exposed at random.

  {0}                                        all but the last two
  {0} --images datasets/cifar10              also pixels of CIFAR-10
  {0} --data yahoo-r3 --test-rating 4        also a test part with ratings of random items

Writes to the output directory: posteriors.csv (calibration error, Brier score and AUC by method and
truth, mean and standard deviation over seeds), tau_plus.csv (estimates of the class prior),
calibration.csv, the reliability tables, and calibration.png.
"""


@option_group
class Config(ReadOptions):
    """Configuration of the calibration benchmark."""

    out: Path | None = None
    """Output directory; by default runs/calibration-TIME."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """First random seed."""
    seeds: Annotated[int, COUNT] = 5
    """Number of seeds: of the data, the training and the samples."""
    truths: tuple[str, ...] = ()
    """Names of the problems, such as digits-trained; all by default."""
    anchors: Annotated[int, Range(2, MAX_COUNT)] = 200
    """Number of anchors with planted scores."""
    n_neg: Annotated[int, Range(2, MAX_COUNT)] = 500
    """Unlabelled samples per anchor with planted scores."""
    users: Annotated[int, Range(2, MAX_COUNT)] = 400
    """Number of simulated users."""
    items: Annotated[int, Range(201, MAX_COUNT)] = 500
    """Number of simulated items; more than the 200 that a user is exposed to."""
    image_anchors: Annotated[int, Range(2, MAX_COUNT)] = 100
    """Number of images that are anchors."""
    images: Path | None = None
    """CIFAR-10: its folder or archive."""
    examples: Annotated[int, Range(500, MAX_COUNT)] = 2000
    """Number of images of CIFAR-10; ten of an anchor's class are held out."""
    data: Path | None = None
    """Own data with a test part of randomly exposed items with ratings: a file or a folder."""
    test_data: Path | None = None
    """File of the test part, if --data is the training part alone."""
    test_rating: Annotated[float, Range()] = 4.0
    """Smallest rating of an exposed item that makes it a positive."""


def parse(arguments: list[str] | None) -> Config:
    """Parses flags into a configuration.

    Raises:
      ValueError: If a number is out of range, or a flag requires another. The message names it.
    """
    command = program("calibration")
    config = parse_flags(Config, command, _DESCRIPTION.format(command), arguments)
    for name in ("test_data", "test_rating", *(field.name for field in fields(ReadOptions))):
        if config.data is None and getattr(config, name) != getattr(Config, name):
            raise ValueError(f"{flag(name)} requires --data.")
    return config
