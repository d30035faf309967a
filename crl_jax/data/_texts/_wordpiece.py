"""WordPiece tokenization: vocabularies, their training, and token ids."""

import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from ..._checks import check_count, check_distinct
from ..._files import whole
from ..._optional import import_optional
from .._archive import read_text
from .._errors import DataError

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PAD, UNKNOWN, FIRST, LAST)

_BLOCK = 4_096  # texts encoded at once; larger blocks take more memory and no less time

Array = jax.Array | np.ndarray


class Tokens(NamedTuple):
    """Padded token ids, the input of text encoders; a pytree of two arrays.

    A single example has shape ``[length]`` instead of ``[n, length]``.

    Attributes:
      ids: Vocabulary indices, int32 ``[n, length]``.
      mask: False for padding, bool ``[n, length]``.
    """

    ids: Int[Array, "n length"]
    mask: Bool[Array, "n length"]


@dataclass(frozen=True)
class WordPiece:
    """WordPiece tokenizer.

    A text becomes ``[CLS]``, its pieces, ``[SEP]`` and padding. It is split at blanks and
    punctuation, and around each Chinese character. Each word is split greedily into the longest
    pieces in the vocabulary, and is ``[UNK]`` if there are none. Needs the package tokenizers.

    Attributes:
      pieces: Vocabulary of distinct pieces, in the order of their ids. Pieces that continue a word
        start with ``##``.
      lowercase: Whether texts are converted to lower case without accents ("uncased" models).

    Raises:
      ValueError: If pieces are not distinct, or one of ``[PAD]``, ``[UNK]``, ``[CLS]``, ``[SEP]``
        is missing.

    References:
      Devlin et al., `BERT <https://arxiv.org/abs/1810.04805>`_, 2019, section 3; Wu et al.,
      `Google's Neural Machine Translation System <https://arxiv.org/abs/1609.08144>`_, 2016,
      section 4.1.

    >>> words = WordPiece(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "play", "##ing", "well"))
    >>> words.encode(["Playing well", "so"], length=6).ids
    array([[2, 4, 5, 6, 3, 0],
           [2, 1, 3, 0, 0, 0]], dtype=int32)
    """

    pieces: tuple[str, ...] = field(repr=False)
    lowercase: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "pieces", tuple(self.pieces))
        check_distinct("pieces", self.pieces)
        if missing := [piece for piece in SPECIAL if piece not in self.pieces]:
            raise ValueError(f"`pieces` must contain {', '.join(SPECIAL)}, got no {missing[0]}.")

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, lowercase: bool = True) -> "WordPiece":
        """Reads a ``vocab.txt`` with a piece per line.

        Raises:
          DataError: If the file is not UTF-8, a line is empty or repeated, or a special piece is
            missing.
        """
        path = Path(path)
        lines = read_text(path).split("\n")
        if lines[-1] == "":
            lines.pop()
        line_by_piece: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            piece = line.removesuffix("\r")
            if not piece or piece in line_by_piece:
                got = f"{piece!r} of line {line_by_piece[piece]}" if piece else "an empty line"
                raise DataError(f"{path}:{number}: expected a new piece, got {got}.")
            line_by_piece[piece] = number
        if missing := [piece for piece in SPECIAL if piece not in line_by_piece]:
            raise DataError(
                f"{path}: expected the pieces {', '.join(SPECIAL)}, got no {missing[0]}."
            )
        return cls(tuple(line_by_piece), lowercase)

    @classmethod
    def learn(cls, texts: Iterable[str], size: int, *, lowercase: bool = True) -> "WordPiece":
        """Trains a vocabulary of at most ``size`` >= 5 pieces on texts by byte-pair merges.

        Starting from the special pieces and the characters that occur at least twice, the most
        frequent pair of pieces within words is merged repeatedly, as long as one occurs twice; ties
        are resolved by code points. The result does not depend on the order of the texts.

        Raises:
          ValueError: If ``size`` is below 5, or a text is invalid, as for :meth:`encode`.
        """
        check_count("size", size, len(SPECIAL) + 1)
        counts = cls(SPECIAL, lowercase)._word_counts(texts)
        return cls((*SPECIAL, *_learn_pieces(counts, size - len(SPECIAL))), lowercase)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``vocab.txt`` atomically; :meth:`read` reads it."""
        with whole(Path(path)) as partial:
            partial.write_text("".join(f"{piece}\n" for piece in self.pieces), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, texts: Sequence[str], length: int) -> Tokens:
        """Tokenizes texts, truncated and padded to ``length`` tokens; arrays are on the host.

        Raises:
          ValueError: If ``length``, which includes ``[CLS]`` and ``[SEP]``, is below 2, or a text
            is not a string or has a surrogate, which is no character.
        """
        check_count("length", length, 2)
        texts = _checked(texts)
        ids = np.full((len(texts), length), self.pieces.index(PAD), np.int32)
        mask = np.zeros((len(texts), length), bool)
        self._tokenizer.enable_truncation(length)
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            for row, encoding in enumerate(self._tokenizer.encode_batch_fast(block), start):
                tokens = encoding.ids
                ids[row, : len(tokens)] = tokens
                mask[row, : len(tokens)] = True
        return Tokens(ids, mask)

    def lengths(self, texts: Sequence[str]) -> np.ndarray:
        """Number of tokens of each text, including ``[CLS]`` and ``[SEP]``; int32 ``[n]``.

        Raises:
          ValueError: If a text is invalid, as for :meth:`encode`.
        """
        self._tokenizer.no_truncation()
        encodings = self._tokenizer.encode_batch_fast(_checked(texts))
        return np.array([len(encoding.ids) for encoding in encodings], np.int32)

    def _word_counts(self, texts: Iterable[str]) -> Counter[str]:
        """Counts normalized words."""
        normal = map(self._tokenizer.normalizer.normalize_str, _checked(texts))
        split = self._tokenizer.pre_tokenizer.pre_tokenize_str
        return Counter(word for text in normal for word, _ in split(text))

    @cached_property
    def _tokenizer(self) -> Any:
        tokenizers = import_optional(
            "tokenizers", "WordPiece tokenization needs tokenizers", "text"
        )
        ids = {piece: i for i, piece in enumerate(self.pieces)}
        tokenizer = tokenizers.Tokenizer(
            tokenizers.models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=100)
        )
        tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, lowercase=self.lowercase
        )
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
        tokenizer.post_processor = tokenizers.processors.BertProcessing(
            (LAST, ids[LAST]), (FIRST, ids[FIRST])
        )
        return tokenizer


def _checked(texts: Iterable[str]) -> list[str]:
    """Returns texts as a list; ``ValueError`` unless they are strings that UTF-8 can represent."""
    if isinstance(texts, str):
        raise ValueError(f"`texts` must be a sequence of strings, got the string {texts!r:.50}.")
    texts = list(texts)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"`texts` must be strings, got {text!r:.50} at index {i}.")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            surrogate = text[error.start]
            raise ValueError(
                f"`texts` must have no surrogates, got {surrogate!r} at index {i}."
            ) from None
    return texts


# The trainer of tokenizers 0.23 is not used because its result varies between processes with the
# same texts: of 2,000 pieces learned from the docstrings about 1 % differ, and the ids of most do.
def _learn_pieces(word_counts: Mapping[str, int], size: int) -> list[str]:
    """Learns at most ``size`` pieces: characters by frequency, then merges in their order."""
    split = {word: [word[0], *("##" + char for char in word[1:])] for word in word_counts}
    char_counts: Counter[str] = Counter()
    for word, pieces in split.items():
        for piece in pieces:
            char_counts[piece] += word_counts[word]
    # A character that occurs once is more likely noise than a part of unseen words.
    frequent = sorted((-n, piece) for piece, n in char_counts.items() if n > 1)
    vocabulary = dict.fromkeys(piece for _, piece in frequent[:size])  # an ordered set
    # Words with an unknown character become [UNK], so that their pairs are not counted.
    split = {word: pieces for word, pieces in split.items() if vocabulary.keys() >= {*pieces}}
    counts: Counter[tuple[str, str]] = Counter()
    words_with: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for word, pieces in split.items():
        for pair in pairwise(pieces):
            counts[pair] += word_counts[word]
            words_with[pair].add(word)
    queue = [(-n, pair) for pair, n in counts.items()]
    heapq.heapify(queue)
    while queue and len(vocabulary) < size:
        negative, pair = heapq.heappop(queue)
        n = counts[pair]
        if n != -negative:  # a stale count: merges have removed occurrences
            if n > 1:
                heapq.heappush(queue, (-n, pair))
            continue
        if n < 2:
            break
        merged = pair[0] + pair[1].removeprefix("##")
        vocabulary[merged] = None  # two pairs may give the same piece
        changed: set[tuple[str, str]] = set()
        for word in words_with.pop(pair):
            before, split[word] = split[word], _merge(split[word], pair, merged)
            for sign, pieces in ((-1, before), (1, split[word])):
                for other in pairwise(pieces):
                    counts[other] += sign * word_counts[word]
                    changed.add(other)
                    if sign > 0:
                        words_with[other].add(word)
        del counts[pair]
        for other in changed - {pair}:
            if counts[other] > 1:
                heapq.heappush(queue, (-counts[other], other))
    return list(vocabulary)


def _merge(pieces: list[str], pair: tuple[str, str], merged: str) -> list[str]:
    out, i = [], 0
    while i < len(pieces):
        is_pair = tuple(pieces[i : i + 2]) == pair
        out.append(merged if is_pair else pieces[i])
        i += 1 + is_pair
    return out
