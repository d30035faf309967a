"""The flags of the numerical experiment, and where they lie."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from .._program import program
from .._ranges import COUNT, MOST, SHARE, Range, check_flags

_DESCRIPTION = """Measure how far the biased, the debiased (DCL) and the Bayesian (BCL) estimate
lie from the mean over the true negatives, in samples of populations whose labels are known; and
how noise-contrastive estimation (NCE) tends to maximum likelihood as its noise samples grow. With
--punce-seeds, networks learn from digits of which some even ones are labelled: by puNCE, which
takes unlabelled ones for positive with a probability, by InfoNCE and by SupCon.

  {0}                      the published setting
  {0} --half-width 4       the score range of the published code
  {0} --punce-seeds 6      with puNCE on digits, in about two minutes more

Leaves in the output directory, each as PNG and CSV: figure_6_4 (densities of true and false
negatives), figure_6_8 (drawn scores), figure_6_9 (mean square errors), figure_6_10 (means),
weights, misspecified (bias under wrong assumptions), convergence (errors as N grows), nce, punce.
"""
RATE_FROM = 64
"""Smallest N of the fitted rates; below, terms of higher order show."""


@dataclass(frozen=True)
class Config:
    """One run of the numerical experiment. What a figure does not vary is as given here."""

    out: Path | None = None
    """Output directory; by default runs/numerical-TIME."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Seed of all draws."""
    anchors: Annotated[int, Range(2, MOST)] = 1000
    """Number of anchors (M)."""
    n_neg: Annotated[int, Range(2, MOST)] = 64
    """Unlabelled samples of an anchor (N)."""
    n_pos: Annotated[int, COUNT] = 10
    """Extra positives of an anchor, for DCL (K)."""
    largest_n: Annotated[int, Range(2 * RATE_FROM, MOST)] = 4096
    """Up to which N convergence is followed."""
    alpha: Annotated[float, Range(0.5, 1)] = 0.9
    """Quality of the encoder, in [0.5, 1]."""
    gamma: Annotated[float, SHARE] = 0.1
    """Variation of the anchors' score ranges, in [0, 1]: both ends move inwards by up to this share
    of the half width."""
    tau_plus: Annotated[float, Range(0, 0.5)] = 0.1
    """Share of false negatives, in [0, 0.5]."""
    temperature: Annotated[float, Range(0.01)] = 0.5
    """Divides all scores; at least 0.01."""
    half_width: Annotated[float, Range(0.01)] = 0.5
    """Scores lie within plus and minus this; at least 0.01."""
    punce_seeds: Annotated[int, Range(0, MOST)] = 0
    """Seeds of the trainings on digits, each with its own draw of labels; 0 leaves them out."""
    punce_epochs: Annotated[int, COUNT] = 40
    """Epochs of each training on digits."""


def parse(arguments: list[str] | None) -> Config:
    """Turns flags into a configuration.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    config = tyro.cli(
        Config,
        prog=program("numerical"),
        description=_DESCRIPTION.format(program("numerical")),
        args=arguments,
    )
    check_flags(config)
    largest = config.half_width / config.temperature
    if largest > 30:  # the square of its exponential still fits float32
        raise ValueError(
            f"--half-width / --temperature must be at most 30, got {largest:g}: larger "
            "exponentials have no square in float32."
        )
    return config
