"""The configuration of a recommendation run: frozen dataclasses that become flags."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes, UseAppendAction

from . import _ranges as ranges
from ._program import program
from ._ranges import COUNT, COUNT_OR_NONE, MOST, NOT_NEGATIVE, POSITIVE, SHARE, Range

LossName = Literal[
    "bpr", "bce", "info_nce", "debiased", "hard", "bayesian", "dpl",
    "bprac", "gbpr", "mpr", "truncated_bce", "truncated_bpr", "reweighted_bce", "reweighted_bpr",
]  # fmt: skip
SamplerName = Literal["rns", "pns", "aobpr", "dns", "srns", "bns", "bns-posterior"]


@dataclass(frozen=True)
class DataOptions:
    """Where the interactions come from and how they are split."""

    data: str = "simulated"
    """A file or folder (MovieLens, CSV, TSV, Parquet, RecBole, LightGCN), tfds:NAME, movielens:NAME
    or simulated."""
    test_data: Path | None = None
    """Test interactions, where --data is the file with the training ones."""
    split: Literal["ratio", "time", "leave_k_out", "clean"] | None = None
    """How test data is cut: a random share, the latest share, each user's last ones (random ones
    without times), or a random half of the top-rated ones. By default the given test part, or else
    ratio; a named one puts given parts together and cuts them anew."""
    split_seed: int = 0
    """Seed of the cuts, those of test and of validation data."""
    test: float = 0.2
    """Share of the interactions in the test set, for ratio and time."""
    leave_k: int = 1
    """Test interactions per user, for leave_k_out."""
    valid: float = 0.1
    """Share of the training interactions held out for validation."""
    min_rating: float | None = None
    """Take as positives only interactions rated at least this."""
    user_col: str | None = None
    """Name of the user column, where it cannot be guessed; its position from 0 in text without a
    header."""
    item_col: str | None = None
    """Name or position of the item column."""
    rating_col: str | None = None
    """Name or position of the rating column; an empty one reads none."""
    time_col: str | None = None
    """Name or position of the timestamp column; an empty one reads none."""
    format: Literal["u.data", "ratings.dat", "csv", "parquet", "inter", "lightgcn"] | None = None
    """Format of the files, where their names and first lines do not tell."""
    delimiter: str | None = None
    """What separates the fields of csv text, where the first line does not tell."""
    header: bool | None = None
    """Whether the first line of text has the names; by default it has, unless a column is given by
    its position."""


@dataclass(frozen=True)
class LossOptions:
    """What is minimised. Numbers left out take the loss's own default."""

    loss: LossName = "bpr"
    """The objective."""
    n_neg: int | None = None
    """Unlabelled items drawn per interaction (N)."""
    n_pos: int | None = None
    """Extra positives drawn per interaction (M), for debiased, hard and dpl."""
    temperature: float | None = None
    """Divides all scores; > 0."""
    tau_plus: float | None = None
    """Share of positives among the unlabelled items, in [0, 1): debiased, hard, bayesian, dpl."""
    alpha: float | None = None
    """Assumed AUC of the encoder, in [0.5, 1]: bayesian."""
    beta: float | None = None
    """Hardness: in [0.5, 1] for bayesian, >= 0 for hard."""
    min_score: float | None = None
    """Least score that the floor of the estimated denominator allows for: debiased, hard."""
    floor: float | None = None
    """Least value of the estimated probability: dpl."""
    rho: float | None = None
    """Share of the group in a positive's score, in [0, 1]: gbpr."""
    n_group: int | None = None
    """Users drawn per interaction who took the same item: gbpr."""
    balance: float | None = None
    """Weight of the positive's lead over a likely item, in [0, 1]: mpr."""
    drop_rate: float | None = None
    """Share of a batch's positives to drop, in [0, 1], reached after a fifth of the training:
    truncated_bce, truncated_bpr."""
    exponent: float | None = None
    """Power of the model's own probability that weighs a label, >= 0: reweighted_bce,
    reweighted_bpr."""
    law: Literal["variance-gamma", "smoothed"] | None = None
    """Law of the scores, read off them (by default) or in closed form: bprac."""
    law_scale: float | None = None
    """Variance of the embeddings' coordinates that the closed form assumes, > 0; by default that
    of the initial values: bprac."""
    rule: Literal["density", "posterior", "prior"] | None = None
    """Whether credibility goes by the posterior (by default), by the density of a score, as
    published, or by the prior alone: bprac."""
    every: int | None = None
    """Epochs from one estimate of credibility to the next: bprac."""


@dataclass(frozen=True)
class SamplerOptions:
    """Which unlabelled items serve as negatives. Numbers left out take the sampler's default."""

    sampler: SamplerName = "rns"
    """Uniform (rns), by popularity (pns), by rank (aobpr), the best of some candidates (dns), a
    memory of varying ones (srns), the least risky (bns) or the surest (bns-posterior)."""
    candidates: int | None = None
    """Candidates per negative: dns, bns, bns-posterior; items in memory: srns."""
    rank_scale: float | None = None
    """Ranks after which the probability has fallen to 1/e: aobpr."""
    variance_weight: float | None = None
    """Weight of the deviation of past scores: srns."""
    gain: float | None = None
    """What a true negative gains where a false one loses 1 (lambda): bns."""
    gain_slope: float | None = None
    """What the gain loses with every epoch: bns."""
    gain_least: float | None = None
    """Where the gain stops falling: bns."""
    prior: Literal["popularity", "uniform", "occupation"] | None = None
    """Prior of a false negative: bns, bns-posterior. occupation reads u.user beside the data."""
    ecdf_samples: int | None = None
    """Items that the distribution of scores is taken over; 0 for all: bns, bns-posterior."""
    rns_epochs: int | None = None
    """Epochs of uniform negatives before bns begins."""


@dataclass(frozen=True)
class TrainOptions:
    """Encoder and optimiser."""

    dim: int = 32
    """Width of the embeddings."""
    init_scale: float = 1.0
    """Factor on the Xavier-normal initial values. Small ones start slowly."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 1e-5
    """L2 coefficient."""
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    """adam and sgd add the L2 term to the gradient, adamw decays the weights apart."""
    schedule: Literal["constant", "step", "cosine"] = "step"
    """Course of the learning rate: step goes down halfway, cosine bit by bit."""
    decay: float = 0.1
    """Factor on the learning rate that the schedule goes down to."""
    batch_size: int = 1024
    """Interactions per step."""
    epochs: int = 200
    """Length of the training, which the schedule spans."""
    patience: int = 50
    """Epochs without a better validation score after which a run stops."""
    eval_every: int = 1
    """Epochs between two validations."""


@dataclass(frozen=True)
class ProtocolOptions:
    """Seeds, search and scoring."""

    seed: int = 0
    """First seed. The split has its own."""
    seeds: int = 1
    """Number of seeds, trained at once; the table then shows mean ± standard deviation."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Values of a number to try, such as lr=1e-3,3e-3; repeat for a grid, which is trained at once
    and decided on validation data."""
    search_seeds: int = 1
    """Number of seeds that every point of a sweep is tried with; its score is their mean."""
    refit: Literal["none", "valid", "all"] = "valid"
    """What the final model trains on, as long as validation found best: the training part (none),
    or the validation part too (valid). With all, that of valid is scored, and one more, which is
    saved for use, trains on all data."""
    k: tuple[int, ...] = (5, 10, 20)
    """Cut-offs of the test metrics; validation always goes by NDCG@20."""


@dataclass(frozen=True)
class OutputOptions:
    """Where results go and what computes them."""

    out: Path | None = None
    """Run directory; by default runs/LOSS-TIME."""
    resume: Path | None = None
    """Go on with the run in this directory, with its configuration."""
    checkpoint_seconds: float = 5.0
    """Least time between two checkpoints."""
    device: Literal["any", "cpu", "gpu", "tpu"] = "any"
    """Fail unless this kind of device is there."""


@dataclass(frozen=True)
class Config:
    """One run of the main experiment."""

    source: OmitArgPrefixes[DataOptions] = field(default_factory=DataOptions)
    objective: OmitArgPrefixes[LossOptions] = field(default_factory=LossOptions)
    sampling: OmitArgPrefixes[SamplerOptions] = field(default_factory=SamplerOptions)
    training: OmitArgPrefixes[TrainOptions] = field(default_factory=TrainOptions)
    protocol: OmitArgPrefixes[ProtocolOptions] = field(default_factory=ProtocolOptions)
    output: OmitArgPrefixes[OutputOptions] = field(default_factory=OutputOptions)


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str, allow_nan=False))


RANGES: dict[str, Range] = {
    # DataOptions
    "test": Range(0, 1, low_open=True, high_open=True),
    "leave_k": COUNT,
    "split_seed": Range(0, MOST),
    "valid": Range(0, 1, low_open=True, high_open=True),
    "min_rating": Range(),
    # LossOptions
    "n_neg": COUNT,
    "n_pos": COUNT_OR_NONE,
    "temperature": POSITIVE,
    "tau_plus": Range(0, 1, high_open=True),
    "alpha": Range(0.5, 1),
    "beta": NOT_NEGATIVE,
    "min_score": Range(),
    "floor": SHARE,
    "rho": SHARE,
    "n_group": COUNT,
    "balance": SHARE,
    "drop_rate": SHARE,
    "exponent": NOT_NEGATIVE,
    "law_scale": POSITIVE,
    "every": COUNT,
    # SamplerOptions
    "candidates": COUNT,
    "rank_scale": POSITIVE,
    "variance_weight": NOT_NEGATIVE,
    "gain": NOT_NEGATIVE,
    "gain_slope": NOT_NEGATIVE,
    "gain_least": NOT_NEGATIVE,
    "ecdf_samples": COUNT_OR_NONE,
    "rns_epochs": COUNT_OR_NONE,
    # TrainOptions
    "dim": Range(1, 2**16),
    "init_scale": POSITIVE,
    "lr": POSITIVE,
    "weight_decay": NOT_NEGATIVE,
    "decay": NOT_NEGATIVE,
    "batch_size": COUNT,
    "epochs": COUNT,
    "patience": COUNT,
    "eval_every": COUNT,
    # ProtocolOptions
    "seed": Range(0, 2**32 - 1),
    "seeds": Range(1, 10_000),
    "search_seeds": Range(1, 10_000),
    "k": Range(1, 2**16),
    # OutputOptions
    "checkpoint_seconds": NOT_NEGATIVE,
}
"""Where the numbers of every field lie. They are checked before anything is trained."""
# Where a loss takes less than the field does.
_OF_LOSS: dict[str, dict[str, Range]] = {"bayesian": {"beta": Range(0.5, 1)}}


def ranges_of(loss: str) -> dict[str, Range]:
    """Where the numbers of every field lie with this loss."""
    return RANGES | _OF_LOSS.get(loss, {})


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source = config.source
    if source.data != "simulated" and not source.data.startswith(("tfds:", "movielens:")):
        source = dataclasses.replace(source, data=str(Path(source.data).absolute()))
    if source.test_data is not None:
        source = dataclasses.replace(source, test_data=source.test_data.absolute())
    return dataclasses.replace(config, source=source)


def from_json(stored: Any, where: Path) -> Config:
    """The configuration that :func:`to_json` wrote, checked as flags are.

    Args:
      stored: What was read from JSON. A section ``environment`` is not looked at.
      where: The file it was read from.

    Raises:
      ValueError: If a field is missing, unknown, of another type or out of range. The message
        names the file and the field.
    """
    names = [section.name for section in dataclasses.fields(Config)]
    given = _fields(stored, names, str(where), optional=("environment",))
    objective = given["objective"]
    table = ranges_of(str(objective.get("loss") if isinstance(objective, dict) else None))
    sections = {}
    for section in dataclasses.fields(Config):
        kind: Any = section.default_factory
        hints = get_type_hints(kind)
        values = _fields(given[section.name], list(hints), f"{where}: {section.name}")
        for name, value in values.items():
            try:
                values[name] = ranges.read(hints[name], table.get(name), value)
            except ValueError as wanted:
                raise ValueError(
                    f"{where}: {section.name}.{name}: expected {wanted}, "
                    f"got {ranges.shorten(value)}."
                ) from None
        sections[section.name] = kind(**values)
    config = Config(**sections)
    try:
        _check_together(config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return config


def check_number(name: str, value: float, loss: str) -> float:
    """A number as the field of that name takes it, with this loss.

    Raises:
      ValueError: With what was expected, if it is out of range or not whole where it must be.
    """
    sections: list[Any] = [section.default_factory for section in dataclasses.fields(Config)]
    kind = next(hints[name] for hints in map(get_type_hints, sections) if name in hints)
    whole = int(value) if value.is_integer() else value
    return ranges.read(ranges.required(kind), ranges_of(loss)[name], whole)


def _fields(
    stored: Any, names: list[str], where: str, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The values of just these names; the optional ones may be there, and are left out."""
    if not isinstance(stored, dict):
        raise ValueError(f"{where}: expected {{…}}, got {ranges.shorten(stored)}.")
    for name in names:
        if name not in stored:
            raise ValueError(f"{where}: expected the field {name}, which is missing.")
    for name in stored:
        if name not in (*names, *optional):
            raise ValueError(
                f"{where}: expected {', '.join(names)}, got the field {ranges.shorten(name)}."
            )
    return {name: stored[name] for name in names}


def _check_together(config: Config) -> None:
    protocol = config.protocol
    if protocol.seed + protocol.seeds > 2**32:
        raise ValueError(
            f"the last of the seeds must be below 2^32, got --seed {protocol.seed} "
            f"--seeds {protocol.seeds}."
        )


def parse(arguments: list[str], default: Config, description: str) -> Config:
    """Turns flags into a configuration that starts from ``default``.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    config = tyro.cli(
        Config,
        prog=program("recommend"),
        description=description,
        default=default,
        args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )
    for section in dataclasses.fields(Config):
        ranges.check_flags(getattr(config, section.name), ranges_of(config.objective.loss))
    _check_together(config)
    return config
