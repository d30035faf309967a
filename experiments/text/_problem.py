"""Loading, tokenization, subsampling and splitting of the texts of a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import data, tasks

from .._bert import BertOptions, Encoder, load_encoder
from .._program import rename_arguments
from .._study import OnStage
from ._config import DataOptions
from ._host import TokenRows

_VALID = 0.1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TextTable:
    """Token table on the device: an augmentation that maps the index of a text to its tokens.

    The mapping is deterministic: two views of a text differ only by dropout.

    Attributes:
      tokens: Tokens of all texts.
    """

    tokens: data.Tokens

    def __call__(self, key: Any, index: Any) -> data.Tokens:
        """Returns the tokens of the text at an index."""
        del key
        return self.plain(index)

    def plain(self, index: Any) -> data.Tokens:
        """Returns the same tokens, without a random key."""
        return data.Tokens(self.tokens.ids[index], self.tokens.mask[index])


@dataclass(frozen=True, eq=False)
class Part:
    """Subset of the texts.

    Attributes:
      inputs: Indices of the texts in the table, int32 ``[n]``; with ``--batches host`` their
        tokens, see :class:`TokenRows`, int32 ``[n, length]``.
      labels: Class labels, -1 for unlabelled texts, int32 ``[n]``.
      classes: Names of the classes; empty if no text has a label.
    """

    inputs: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, index: Any) -> "Part":
        """Returns the subset selected by indices, a mask or a slice."""
        return Part(self.inputs[index], self.labels[index], self.classes)

    @property
    def labelled(self) -> "Part":
        """The labelled texts."""
        return self.take(self.labels >= 0)

    @property
    def evaluated(self) -> "Part":
        """The texts for evaluation: the labelled ones, or all if there are no classes."""
        return self.labelled if self.classes else self

    @property
    def data(self) -> tasks.LabelledExamples:
        """Training examples: indices or tokens, and labels."""
        return tasks.LabelledExamples(self.inputs, self.labels)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Sentence pairs: both sentences as in :class:`Part`, and human similarity scores."""

    first: np.ndarray
    second: np.ndarray
    scores: np.ndarray


@dataclass(frozen=True, eq=False)
class Problem:
    """The texts of a run.

    Attributes:
      table: Augmentation that returns the tokens of a text.
      encoder: The encoder before any training.
      train: Training texts of the final model.
      test: Test texts, evaluated once, at the end.
      learn: Training texts of the hyper-parameter search.
      valid: Validation texts of the search.
      pairs: Held-out sentence pairs, or None.
      n_cut: Number of truncated training texts.
    """

    table: TextTable | TokenRows
    encoder: Encoder
    train: Part
    test: Part
    learn: Part
    valid: Part
    pairs: Pairs | None
    n_cut: int

    def part(self, phase: str) -> Part:
        """Returns the training texts of a phase."""
        return self.learn if phase == "search" else self.train


def load_split(options: DataOptions) -> data.TextSplit:
    """Reads the texts that the flags select, and splits off a test part if there is none.

    Raises:
      DataError: If the texts cannot be read.
    """
    return data.load_texts(
        options.data, text_col=_column(options.text_col), label_col=_column(options.label_col),
        test=options.test_fraction, seed=options.split_seed, encoding=options.encoding,
    )  # fmt: skip


def load_problem(
    options: DataOptions, encoding: BertOptions, on_stage: OnStage, on_host: bool = False
) -> Problem:
    """Reads the texts, draws the requested subsets, and tokenizes them.

    Tokens are on the device, or with ``on_host`` in host memory.

    Raises:
      ValueError: If there are fewer texts than requested, or too few classes to train on.
      DataError: If the texts or the weights cannot be read.
      ImportError: If the package tokenizers is missing.
    """
    on_stage("reading the texts")
    split = load_split(options)
    if split.valid is not None and options.valid_fraction is not None:
        raise ValueError(
            f"--valid-fraction: --data {options.data} has a part for validation, which decides."
        )
    seeds = np.random.default_rng(options.split_seed).spawn(3)
    train = split.train.take(
        sample_indices("n_train", split.train.labels, options.n_train, seeds[0])
    )
    train_labels = np.full(len(train), -1, np.int32)
    labelled_rows = sample_indices("n_labels", train.labels, options.n_labels, seeds[1])
    train_labels[labelled_rows] = train.labels[labelled_rows]
    pairs = None
    if options.pairs is not None:
        columns = {"first_col": "sentence1", "second_col": "sentence2", "score_col": "score"}
        with rename_arguments(**{name: f"the column {column}" for name, column in columns.items()}):
            pairs = data.load_text_pairs(options.pairs)
    if pairs is not None and len(np.unique(pairs.scores)) < 2:
        raise ValueError(f"--pairs {options.pairs}: all scores are equal, which orders no pair.")
    on_stage("cutting texts into tokens")
    encoder = load_encoder(encoding, train.texts, options.length)
    valid_texts = split.valid.texts if split.valid is not None else ()
    pair_texts = () if pairs is None else (pairs.first, pairs.second)
    lists = [train.texts, split.test.texts, valid_texts, *pair_texts]
    tokens = encoder.tokenizer.encode([text for texts in lists for text in texts], options.length)
    indices = _list_indices(lists)
    table: TextTable | TokenRows
    if on_host:
        table = TokenRows(encoder.tokenizer.pieces.index("[PAD]"))
        indices = [np.where(tokens.mask[rows], tokens.ids[rows], -1) for rows in indices]
    else:
        table = TextTable(jax.tree.map(jnp.asarray, tokens))
    classes = split.train.classes
    train_part = Part(indices[0], train_labels, classes)
    test = Part(indices[1], split.test.labels, classes)
    for name, labels in (("training", train_labels), ("test", test.labels)):
        if classes and len(np.unique(labels[labels >= 0])) < 2:
            raise ValueError(f"--data {options.data}: the {name} part has less than two classes.")
    if split.valid is not None:
        learn, valid = train_part, Part(indices[2], split.valid.labels, classes)
    else:
        learn, valid = _cut(
            train_part,
            _VALID if options.valid_fraction is None else options.valid_fraction,
            seeds[2],
        )
    return Problem(
        table, encoder, train_part, test, learn, valid,
        None if pairs is None else Pairs(indices[3], indices[4], pairs.scores),
        int(np.sum(encoder.tokenizer.lengths(train.texts) > options.length)),
    )  # fmt: skip


def sample_indices(
    name: str, labels: np.ndarray, n: int | None, rng: np.random.Generator
) -> np.ndarray:
    """Returns sorted indices of ``n`` random examples, with one of each class if ``n`` allows it.

    Raises:
      ValueError: If there are fewer than ``n`` examples.
    """
    if n is None:
        return np.arange(len(labels))
    if n > len(labels):
        raise ValueError(f"`{name}` must be at most {len(labels)}, got {n}.")
    order = rng.permutation(len(labels))
    first = np.sort(np.unique(labels[order], return_index=True)[1])
    return np.sort(np.concatenate([order[first], np.delete(order, first)])[:n])


def _cut(part: Part, share: float, rng: np.random.Generator) -> tuple[Part, Part]:
    """Splits off a fraction of the labelled texts; returns the training and validation parts."""
    known = rng.permutation(np.flatnonzero(part.labels >= 0))
    held_out = np.zeros(len(part), bool)
    held_out[known[: round(share * len(known))]] = True
    return part.take(~held_out), part.take(held_out)


def _list_indices(lists: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Returns the indices of each list within the concatenation of all lists."""
    ends = np.cumsum([len(texts) for texts in lists])
    return [np.arange(end - len(texts), end, dtype=np.int32) for end, texts in zip(ends, lists)]


def _column(value: str | None) -> str | int | None:
    return int(value) if value is not None and value.isdecimal() else value
