"""Command-line flags of the numerical experiment, and their ranges."""

from pathlib import Path
from typing import Annotated, Literal

from .._program import program
from .._ranges import COUNT, MAX_COUNT, SHARE, Range, option_group, parse_flags

_DESCRIPTION = """Measure the errors of the biased, the debiased (DCL) and the Bayesian (BCL)
estimate of the mean over the true negatives, on samples of populations with known labels; the
convergence of noise-contrastive estimation (NCE) to maximum likelihood as the noise samples grow,
and of the debiased pairwise loss (DPL) to the supervised one; the sampling risk of negative
samplers; and the bound of InfoNCE on mutual information.
With --punce-seeds, networks are trained on digits, some of the even ones labelled: with puNCE,
which treats an unlabelled one as positive with a given probability, InfoNCE and SupCon.

  {0}                      the published setting
  {0} --half-width 4       the score range of the published code
  {0} --population gamma   scores with a skewed density
  {0} --punce-seeds 6      also puNCE on digits, about two minutes longer

Writes to the output directory, each as PNG and CSV: figure_2_3 (density of an order statistic),
figure_4_3 and figure_6_4 (densities of true and false negatives), figure_6_1 (density ratio by
score), figure_6_8 (drawn scores), figure_6_9 (mean square errors), figure_6_10 (means), weights,
misspecified (bias under wrong assumptions), populations (bias by density of the scores),
convergence (errors as N grows), smoothed (weights as scores converge), lemma_5_2 and
lemma_5_3 (error of DPL), theorem_4_1 (sampling risk), information (bound on mutual information),
nce, punce.
"""
RATE_FROM = 64
"""Smallest N used to fit the rates; below, higher-order terms matter."""


@option_group
class Config:
    """Configuration of a numerical experiment, with the values of all parameters not swept."""

    out: Path | None = None
    """Output directory; by default runs/numerical-TIME."""
    seed: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Random seed."""
    anchors: Annotated[int, Range(2, MAX_COUNT)] = 1000
    """Number of anchors (M)."""
    n_neg: Annotated[int, Range(2, MAX_COUNT)] = 64
    """Unlabelled samples per anchor (N)."""
    n_pos: Annotated[int, COUNT] = 10
    """Extra positives per anchor, for DCL (K)."""
    largest_n: Annotated[int, Range(2 * RATE_FROM, MAX_COUNT)] = 4096
    """Largest N of the convergence figure."""
    population: Literal["uniform", "normal", "t", "gamma"] = "uniform"
    """Density of the scores before they are ordered (phi): uniform, or a normal, Student's t (3
    degrees of freedom) or gamma (shape 2) density on a bounded interval."""
    alpha: Annotated[float, Range(0.5, 1)] = 0.9
    """Quality of the encoder, in [0.5, 1]."""
    gamma: Annotated[float, SHARE] = 0.1
    """Variation of the anchors' score ranges, in [0, 1]: both ends move inwards by up to this share
    of the half width."""
    tau_plus: Annotated[float, Range(0, 0.5)] = 0.1
    """Share of false negatives, in [0, 0.5]."""
    temperature: Annotated[float, Range(0.01)] = 0.5
    """Divisor of all scores; at least 0.01."""
    half_width: Annotated[float, Range(0.01)] = 0.5
    """Bound on the absolute value of scores; at least 0.01."""
    punce_seeds: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Number of seeds of the trainings on digits, each with its own labelled set; 0 skips them."""
    punce_epochs: Annotated[int, COUNT] = 40
    """Number of epochs per training on digits."""


def parse(arguments: list[str] | None) -> Config:
    """Parses flags into a configuration.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    command = program("numerical")
    config = parse_flags(Config, command, _DESCRIPTION.format(command), arguments)
    largest = config.half_width / config.temperature
    if largest > 30:  # up to here the square of the exponential fits float32
        raise ValueError(
            f"--half-width / --temperature must be at most 30, got {largest:g}: larger "
            "exponentials have no square in float32."
        )
    if config.punce_epochs != Config.punce_epochs and not config.punce_seeds:
        raise ValueError("--punce-epochs requires --punce-seeds.")
    return config
