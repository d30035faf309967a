"""Flags of ``recommend``: frozen dataclasses, whose docstrings are the help texts.

Flags of a loss, a sampler or an encoder are defined by its entry instead.
"""

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import UseAppendAction

from crl_jax.data import DATASETS

from .. import _study_options
from .._ranges import COUNT, MAX_COUNT, NOT_NEGATIVE, POSITIVE, Range, option_group
from .._read_options import ReadOptions
from .._registry import LEGACY_VALUE

_DATA = (
    "A file or folder (MovieLens, CSV, TSV, Parquet, RecBole, LightGCN), "
    f"{', '.join(DATASETS)}, tfds:NAME or simulated."
)


@option_group
class DataOptions(ReadOptions):
    """Source and split of the interactions."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "simulated"
    test_data: Path | None = None
    """File with the test interactions, if --data has only the training interactions."""
    split: Literal["ratio", "time", "leave_k_out", "clean"] | None = None
    """Test split: a random fraction, the latest fraction, the last interactions of each user
    (random ones without timestamps), or a random half of the top-rated ones. By default the test
    set of the dataset, or else ratio; a named split merges the dataset's parts and splits them
    again."""
    split_seed: Annotated[int, Range(0, MAX_COUNT)] = 0
    """Random seed of the test and validation splits."""
    test_fraction: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.2
    """Fraction of the interactions in the test set, for ratio and time."""
    leave_last_k: Annotated[int, COUNT] = 1
    """Number of test interactions per user, for leave_k_out."""
    valid_fraction: Annotated[float | None, Range(0, 1, high_open=True)] = 0.1
    """Fraction of the training interactions held out for validation. With 0 nothing is held out,
    and training lasts --epochs. None for 5,000 interactions, but between 0.1 and 0.25."""
    min_rating: Annotated[float | None, Range()] = field(default=None, kw_only=True)
    """Minimum rating of an interaction to count as a positive. With --test-rating it applies to the
    training and validation parts only."""
    test_rating: Annotated[float | None, Range()] = field(
        default=None, metadata={LEGACY_VALUE: None}
    )
    """Minimum rating of a relevant test interaction, for a test part of randomly exposed items with
    ratings. Metrics with the prefix exposed_ rank the items of each user's test part only. Training
    interactions of any rating are positives, unless --min-rating is given."""
    cold_items: Annotated[float | None, Range(0, 1, low_open=True, high_open=True)] = field(
        default=None, metadata={LEGACY_VALUE: None}
    )
    """Fraction of the items held out with all their interactions. They are ranked by their
    features: metrics with the prefix cold rank them among each other, those with the prefix
    cold_all among all items. Needs --encoder features."""


@option_group
class LossOptions:
    """Loss function. Omitted hyper-parameters take the defaults of the loss."""

    loss: str = field(default="bpr", metadata={"help": "The objective."})


@option_group
class SamplerOptions:
    """Negative sampler. Omitted hyper-parameters take the defaults of the sampler."""

    sampler: str = field(default="rns", metadata={"help": "Draws the negatives."})


@option_group
class EncoderOptions:
    """Encoder of users and items, or a baseline. Omitted hyper-parameters take their defaults."""

    model: str = field(
        default="trained",
        metadata={"help": "A trained model, or a baseline.", LEGACY_VALUE: "trained"},
    )
    encoder: str = field(default="mf", metadata={"help": "The encoder."})
    similarity: Literal["inner", "cosine"] | None = None
    """Similarity of users and items in training: inner product or cosine; cosine needs a small
    temperature. By default inner, or cosine for losses of cosines (bsl, ccl, directau)."""
    serve_similarity: Literal["inner", "cosine"] | None = None
    """Similarity that ranks items in validation, test and recommendation; by default that of
    training, or that of the published code of the loss."""


@option_group
class ContrastOptions:
    """Auxiliary contrastive loss on two views. Omitted hyper-parameters take their defaults."""

    contrast: str = field(default="none", metadata={"help": "The two views."})
    contrast_loss: str = field(default="info_nce", metadata={"help": "What the term minimises."})


@option_group
class TrainOptions:
    """Embedding size and optimiser."""

    dim: Annotated[int, Range(1, 2**16)] = 32
    """Embedding dimension."""
    init_scale: Annotated[float, POSITIVE] = 1.0
    """Scale factor of the Xavier-normal initialisation. Small values slow down early training."""
    lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate."""
    lr_scale: Annotated[float, POSITIVE] = field(default=1.0, metadata={LEGACY_VALUE: 1.0})
    """Factor on --lr and its swept values, which --batch-size auto sets."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-5
    """L2 coefficient."""
    l2_target: Literal["tables", "rows", "encoded"] = "tables"
    """Target of the L2 penalty: all parameters, the rows of a batch, or its encoded vectors."""
    optimizer: Literal["adam", "adamw", "adagrad", "rowwise-adagrad", "sgd"] = "adam"
    """Optimiser. All add the L2 term to the gradient, except adamw, which decouples weight
    decay."""
    optimizer_mode: Literal["auto", "dense", "rows"] = "auto"
    """Parameters that a step updates: whole tables (dense), or only the rows that its batch reads
    (rows). With --l2-target rows both give the same result, and auto selects the cheaper one;
    otherwise auto selects dense."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "step"
    """Learning-rate schedule: step decays once, halfway; linear and cosine decay gradually."""
    decay: Annotated[float, NOT_NEGATIVE] = 0.1
    """Final learning rate of the schedule, as a factor of --lr."""
    batch_size: Annotated[int | Literal["auto"], COUNT] = 1024
    """Number of interactions per step. On accelerators, auto multiplies the default by a power of
    two, up to a limit of the device and provided that a training has at least 320 steps, and the
    learning rate by the square root of this factor; on CPUs it is the default."""
    batches: Literal["device", "host"] = field(default="device", metadata={LEGACY_VALUE: "device"})
    """Storage of the training interactions: device memory, or host memory, which saves device
    memory. With host, seeds that are trained together visit the interactions in the same order."""
    epochs: Annotated[int | None, COUNT] = 200
    """Maximum number of epochs, which the learning-rate schedule spans. None for that of 1.2
    million interactions, but between 16 and 60."""
    patience: Annotated[int, COUNT] = 50
    """Number of epochs without a better validation score after which a run stops."""
    eval_every: Annotated[int, COUNT] = 1
    """Number of epochs between two validations."""


@option_group
class ProtocolOptions(_study_options.SeedOptions):
    """Seeds, hyper-parameter search and evaluation."""

    seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds, trained in parallel; with several, the table shows mean ± standard
    deviation."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Hyper-parameter values to search, such as lr=1e-3,3e-3; repeat the flag for a grid, which is
    trained in parallel and selected on validation data."""
    search: Literal["grid", "halving"] = field(default="grid", metadata={LEGACY_VALUE: "grid"})
    """Search of the points of --sweep: grid trains each completely; halving trains each for a third
    of the epochs, and the best third completely."""
    debias: Literal["given", "auto"] = field(default="given", metadata={LEGACY_VALUE: "given"})
    """Hyper-parameters of a debiased loss: given, or else their defaults; with auto, tau-plus is
    the density of the training data, alpha is measured in training, and the search decides on
    beta, too."""
    tune: Annotated[float | None, NOT_NEGATIVE] = field(default=None, metadata={LEGACY_VALUE: None})
    """Minutes of a search for the hyper-parameters that no flag sets, by halving on validation
    data; 0 for no search. By default a short search, of one hyper-parameter."""
    blend: Annotated[int, Range(1, 100)] = field(default=1, metadata={LEGACY_VALUE: 1})
    """Maximum number of models whose standardised scores are summed: of the best of several kinds
    of losses and encoders that --loss auto tries, and with --tune EASE and iALS, those whose sum
    ranks the validation part well. By default 6 with --tune; 3 for a run without flags of a
    training but --encoder, which adds EASE and iALS to the selected model if that helps; otherwise
    1."""
    keep: tuple[str, ...] = field(default=(), metadata={LEGACY_VALUE: ()})
    """Names of the flags that --tune does not search; by default those that are given."""
    final_training: Literal["train", "train+valid", "all"] = "train+valid"
    """Training data of the final model, which is trained for the best number of epochs found by
    validation: the training set (train), or also the validation set (train+valid). With all, the
    model of train+valid is evaluated, and a further one, which is saved for use, is trained on all
    data."""
    k: Annotated[tuple[int, ...], Range(1, 2**16)] = (5, 10, 20)
    """Cut-offs of the test metrics; validation always uses NDCG@20."""
    baselines: Literal["cheap", "none"] = field(default="cheap", metadata={LEGACY_VALUE: "none"})
    """Baselines to compare with, which are fitted to the same interactions: popularity,
    item-kNN and, for up to 4,096 users or items, EASE (cheap), or none."""


@option_group
class OutputOptions(_study_options.OutputOptions):
    """Output files and devices."""

    out: Path | None = None
    """Run directory; by default runs/LOSS-TIME."""
    checkpoint_seconds: Annotated[float, NOT_NEGATIVE] = 5.0
    """Minimum time between two checkpoints, in seconds."""
    mesh: str | None = field(default=None, metadata={LEGACY_VALUE: None})
    """Device mesh, such as data=4,table=2: batches are sharded over data, and the rows of tables
    over table. A run can be resumed on another mesh."""
