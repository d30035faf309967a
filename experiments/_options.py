"""The flags of a recommendation run: frozen dataclasses, whose docstrings are the help.

Flags of a loss, a sampler or an encoder are not here: they stand with its entry.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro
from tyro.conf import UseAppendAction

from crl_jax.data import DATASETS

from . import _study_options
from ._ranges import COUNT, MOST, NOT_NEGATIVE, POSITIVE, Range
from ._schema import WAS

_DATA = (
    "A file or folder (MovieLens, CSV, TSV, Parquet, RecBole, LightGCN), "
    f"{', '.join(DATASETS)}, tfds:NAME or simulated."
)


@dataclass(frozen=True)
class DataOptions:
    """Where the interactions come from and how they are split."""

    data: Annotated[str, tyro.conf.arg(help=_DATA)] = "simulated"
    test_data: Path | None = None
    """Test interactions, where --data is the file with the training ones."""
    split: Literal["ratio", "time", "leave_k_out", "clean"] | None = None
    """How test data is cut: a random share, the latest share, each user's last ones (random ones
    without times), or a random half of the top-rated ones. By default the given test part, or else
    ratio; a named one puts given parts together and cuts them anew."""
    split_seed: Annotated[int, Range(0, MOST)] = 0
    """Seed of the cuts, those of test and of validation data."""
    test: Annotated[float, Range(0, 1, low_open=True, high_open=True)] = 0.2
    """Share of the interactions in the test set, for ratio and time."""
    leave_k: Annotated[int, COUNT] = 1
    """Test interactions per user, for leave_k_out."""
    valid: Annotated[float, Range(0, 1, high_open=True)] = 0.1
    """Share of the training interactions held out for validation. With 0 nothing is held out, and
    the training lasts --epochs."""
    min_rating: Annotated[float | None, Range()] = None
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
    format: (
        Literal["u.data", "ratings.dat", "csv", "parquet", "inter", "lightgcn", "jsonl"] | None
    ) = None
    """Format of the files, where their names and first lines do not tell."""
    delimiter: str | None = None
    """What separates the fields of csv text, where the first line does not tell."""
    header: bool | None = None
    """Whether the first line of text has the names; by default it has, unless a column is given by
    its position."""
    quote_char: str | None = None
    """Character that may enclose fields of csv text, a double quote by default; an empty one
    disables quoting."""
    encoding: str | None = None
    """Encoding of text, such as latin-1; UTF-8 by default."""


@dataclass(frozen=True)
class LossOptions:
    """What is minimised. Numbers left out take the loss's own default."""

    loss: str = field(default="bpr", metadata={"help": "The objective."})


@dataclass(frozen=True)
class SamplerOptions:
    """Which unlabelled items serve as negatives. Numbers left out take the sampler's default."""

    sampler: str = field(default="rns", metadata={"help": "Draws the negatives."})


@dataclass(frozen=True)
class EncoderOptions:
    """What makes vectors of users and items."""

    encoder: str = field(default="mf", metadata={"help": "The encoder."})
    similarity: Literal["inner", "cosine"] | None = None
    """What a score is in training: an inner product, or a cosine, whose temperature should be
    small. By default inner, but cosine where the loss is about cosines alone."""
    serve_similarity: Literal["inner", "cosine"] | None = None
    """What ranks in validation, test and recommendation; by default what a score is in training,
    or what the loss's published code ranks by."""


@dataclass(frozen=True)
class ContrastOptions:
    """A term beside the loss: two views of users and items. Numbers left out take defaults."""

    contrast: str = field(default="none", metadata={"help": "The two views."})
    contrast_loss: str = field(default="info_nce", metadata={"help": "What the term minimises."})


@dataclass(frozen=True)
class TrainOptions:
    """Size of the encoder, and optimiser."""

    dim: Annotated[int, Range(1, 2**16)] = 32
    """Width of the embeddings."""
    init_scale: Annotated[float, POSITIVE] = 1.0
    """Factor on the Xavier-normal initial values. Small ones start slowly."""
    lr: Annotated[float, POSITIVE] = 1e-3
    """Learning rate."""
    weight_decay: Annotated[float, NOT_NEGATIVE] = 1e-5
    """L2 coefficient."""
    l2_target: Literal["tables", "rows", "encoded"] = "tables"
    """What L2 acts on: all parameters, the rows of a batch, or its encoded vectors."""
    optimizer: Literal["adam", "adamw", "adagrad", "rowwise-adagrad", "sgd"] = "adam"
    """All but adamw, which decays the weights apart, add the L2 term to the gradient."""
    update: Literal["auto", "tables", "rows"] = field(default="auto", metadata={WAS: "tables"})
    """What a step updates: whole tables, or the rows that its batch reads. With --l2-target rows
    both give the same result, and auto takes the cheaper one; otherwise it takes tables."""
    schedule: Literal["constant", "step", "linear", "cosine"] = "step"
    """Course of the learning rate: step goes down halfway, linear and cosine bit by bit."""
    decay: Annotated[float, NOT_NEGATIVE] = 0.1
    """Factor on the learning rate that the schedule goes down to."""
    batch_size: Annotated[int, COUNT] = 1024
    """Interactions per step."""
    batches: Literal["device", "host"] = field(default="device", metadata={WAS: "device"})
    """Where they come from: arrays on the device, or the memory of the host, which leaves the
    device more room. Seeds that are trained together then take them in one order."""
    epochs: Annotated[int, COUNT] = 200
    """Length of the training, which the schedule spans."""
    patience: Annotated[int, COUNT] = 50
    """Epochs without a better validation score after which a run stops."""
    eval_every: Annotated[int, COUNT] = 1
    """Epochs between two validations."""


@dataclass(frozen=True)
class ProtocolOptions(_study_options.SeedOptions):
    """Seeds, search and scoring."""

    seeds: Annotated[int, Range(1, 10_000)] = 1
    """Number of seeds, trained at once; the table then shows mean ± standard deviation."""
    sweep: UseAppendAction[tuple[str, ...]] = ()
    """Values of a number to try, such as lr=1e-3,3e-3; repeat for a grid, which is trained at once
    and decided on validation data."""
    refit: Literal["none", "valid", "all"] = "valid"
    """What the final model trains on, as long as validation found best: the training part (none),
    or the validation part too (valid). With all, that of valid is scored, and one more, which is
    saved for use, trains on all data."""
    k: Annotated[tuple[int, ...], Range(1, 2**16)] = (5, 10, 20)
    """Cut-offs of the test metrics; validation always goes by NDCG@20."""


@dataclass(frozen=True)
class OutputOptions(_study_options.OutputOptions):
    """Where results go and what computes them."""

    out: Path | None = None
    """Run directory; by default runs/LOSS-TIME."""
    checkpoint_seconds: Annotated[float, NOT_NEGATIVE] = 5.0
    """Least time between two checkpoints."""
    mesh: str | None = field(default=None, metadata={WAS: None})
    """Several devices, such as data=4,table=2: batches are spread over data, and the rows of tables
    over table. A run goes on with other devices too."""
    processes: str | None = field(default=None, metadata={WAS: None})
    """Train together with other processes: auto where the cluster says who there is, or which of
    how many this is, and where the first listens, such as 0/2@localhost:1234. All must see the same
    files."""
