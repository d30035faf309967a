"""The configuration of a recommendation run: frozen dataclasses that become flags."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tyro
from tyro.conf import OmitArgPrefixes, UseAppendAction

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
    split: Literal["ratio", "time", "leave_k_out", "clean"] = "ratio"
    """How test data is cut where none is given: a random share, the latest share, each user's
    last ones, or a random half of the top-rated ones."""
    test: float = 0.2
    """Share of the interactions in the test set, for ratio and time."""
    leave_k: int = 1
    """Test interactions per user, for leave_k_out."""
    valid: float = 0.1
    """Share of the training interactions held out for validation."""
    min_rating: float | None = None
    """Take as positives only interactions rated at least this."""
    user_col: str | None = None
    """Name of the user column, where it cannot be guessed."""
    item_col: str | None = None
    """Name of the item column."""
    rating_col: str | None = None
    """Name of the rating column."""
    time_col: str | None = None
    """Name of the timestamp column."""


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
    """Law of the scores, in closed form (by default for density) or read off them: bprac."""
    law_scale: float | None = None
    """Variance of the embeddings' coordinates that the closed form assumes; > 0: bprac."""
    rule: Literal["density", "posterior"] | None = None
    """Whether credibility goes by the density of a score, as published, or by the posterior:
    bprac."""
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
    """First seed. The split has seed 0 whatever this is."""
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
    return json.loads(json.dumps(dataclasses.asdict(config), default=str))


def from_json(stored: dict[str, Any], where: Path) -> Config:
    """The configuration that :func:`to_json` wrote.

    Raises:
      ValueError: If ``stored``, read from ``where``, is not of that form.
    """
    try:
        sections = {}
        for section in dataclasses.fields(Config):
            kind = section.default_factory
            values = dict(stored[section.name])
            for name in ("out", "resume", "test_data"):
                if values.get(name) is not None:
                    values[name] = Path(values[name])
            for name in ("sweep", "k"):
                if name in values:
                    values[name] = tuple(values[name])
            if isinstance(refit := values.get("refit"), bool):  # of version 0.1
                values["refit"] = "valid" if refit else "none"
            sections[section.name] = kind(**values)  # type: ignore[operator,misc]
        return Config(**sections)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{where}: expected the configuration of a run, got {error!r}.") from error


def parse(arguments: list[str], default: Config, description: str) -> Config:
    """Turns flags into a configuration that starts from ``default``."""
    return tyro.cli(
        Config,
        prog="python -m experiments.recommend",
        description=description,
        default=default,
        args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )
