"""WordPiece: texts as numbers of the longest pieces of words that a vocabulary has."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..._checks import check_count
from ..._files import whole
from .._errors import DataError
from ._tokens import Tokens

PAD, UNKNOWN, FIRST, LAST = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
SPECIAL = (PAD, UNKNOWN, FIRST, LAST)

_BLOCK = 4_096  # texts that are encoded together; more take memory and no less time


@dataclass(frozen=True)
class WordPiece:
    """A vocabulary of pieces of words, and how texts are cut into them.

    A text becomes ``[CLS]``, its pieces, ``[SEP]`` and fillers. It is cut at blanks and
    punctuation, and a Chinese character is a word by itself; then each word becomes the longest
    pieces that the vocabulary has, and ``[UNK]`` if there are none. Needs the package tokenizers.

    Attributes:
      pieces: The vocabulary, distinct, in order. Those that go on with a word start with ``##``.
      lowercase: Whether texts become lower-case without accents first, as "uncased" ones do.

    Raises:
      ValueError: If a piece stands there twice, or one of ``[PAD]``, ``[UNK]``, ``[CLS]``,
        ``[SEP]`` is missing.

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
        if len(set(self.pieces)) < len(self.pieces):
            raise ValueError(
                f"`pieces` must be distinct, got {_first_repeated(self.pieces)!r} twice."
            )
        if missing := [piece for piece in SPECIAL if piece not in self.pieces]:
            raise ValueError(f"`pieces` must hold {', '.join(SPECIAL)}, got no {missing[0]}.")

    @classmethod
    def read(cls, path: str | os.PathLike[str], *, lowercase: bool = True) -> "WordPiece":
        """The vocabulary in a ``vocab.txt``, a piece in each line.

        Raises:
          DataError: If the file is not UTF-8, a line is empty or repeats another, or a special
            piece is missing.
        """
        path = Path(path)
        try:
            lines = path.read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise DataError(f"{path}: expected UTF-8 text, got {error.reason}.") from None
        if lines[-1] == "":
            lines.pop()
        pieces = tuple(line.removesuffix("\r") for line in lines)
        places: dict[str, int] = {}
        for number, piece in enumerate(pieces, 1):
            if not piece or piece in places:
                was = f"{piece!r} of line {places[piece]}" if piece else "an empty line"
                raise DataError(f"{path}:{number}: expected a new piece, got {was}.")
            places[piece] = number
        if missing := [piece for piece in SPECIAL if piece not in places]:
            raise DataError(
                f"{path}: expected the pieces {', '.join(SPECIAL)}, got no {missing[0]}."
            )
        return cls(pieces, lowercase)

    @classmethod
    def learn(cls, texts: Iterable[str], size: int, *, lowercase: bool = True) -> "WordPiece":
        """A vocabulary of the pieces that texts are made of, for an encoder from scratch.

        It starts from the characters that occur twice or more, and repeatedly joins the pair of
        pieces that is the most frequent within words; of equally frequent ones the first in the
        order of code points. The same texts give the same vocabulary in any order.

        Args:
          texts: What the vocabulary is to cut.
          size: Pieces at most, the four special ones among them. Fewer come where nothing is left
            that occurs twice.
          lowercase: As the attribute.

        Raises:
          ValueError: If ``size`` is below 5.
        """
        from ._learn import learn_pieces

        check_count("size", size, len(SPECIAL) + 1)
        words = cls(SPECIAL, lowercase)._counted(texts)
        return cls((*SPECIAL, *learn_pieces(words, size - len(SPECIAL))), lowercase)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a ``vocab.txt``, atomically; :meth:`read` reads it."""
        with whole(Path(path)) as partial:
            partial.write_text("".join(f"{piece}\n" for piece in self.pieces), encoding="utf-8")

    def __len__(self) -> int:
        return len(self.pieces)

    def encode(self, texts: Sequence[str], length: int) -> Tokens:
        """Texts as arrays on the host; what is longer loses its end.

        Args:
          texts: The texts.
          length: Tokens of each, ``[CLS]``, ``[SEP]`` and fillers among them, >= 2.

        Raises:
          ValueError: If ``length`` is below 2, or a text is none.
        """
        check_count("length", length, 2)
        for place, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"`texts` must be text, got {text!r:.50} at index {place}.")
        ids = np.full((len(texts), length), self.pieces.index(PAD), np.int32)
        mask = np.zeros((len(texts), length), bool)
        self._tokenizer.enable_truncation(length)
        for start in range(0, len(texts), _BLOCK):
            block = list(texts[start : start + _BLOCK])
            for row, found in enumerate(self._tokenizer.encode_batch_fast(block), start):
                own = found.ids
                ids[row, : len(own)] = own
                mask[row, : len(own)] = True
        return Tokens(ids, mask)

    def lengths(self, texts: Sequence[str]) -> np.ndarray:
        """How many tokens each text has, ``[CLS]`` and ``[SEP]`` among them; int32 ``[n]``."""
        self._tokenizer.no_truncation()
        found = self._tokenizer.encode_batch_fast(list(texts))
        return np.array([len(each.ids) for each in found], np.int32)

    def _counted(self, texts: Iterable[str]) -> dict[str, int]:
        """The words of texts, as they are cut before pieces are looked for, and how often each."""
        tokenizer, counts = self._tokenizer, dict[str, int]()
        for text in texts:
            normal = tokenizer.normalizer.normalize_str(text)
            for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal):
                counts[word] = counts.get(word, 0) + 1
        return counts

    @cached_property
    def _tokenizer(self) -> Any:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "Cutting texts into pieces needs tokenizers: pip install 'crl_jax[text]'"
            ) from error
        from tokenizers import models, normalizers, pre_tokenizers, processors

        ids = {piece: place for place, piece in enumerate(self.pieces)}
        made = tokenizers.Tokenizer(
            models.WordPiece(ids, unk_token=UNKNOWN, max_input_chars_per_word=100)
        )
        made.normalizer = normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, lowercase=self.lowercase
        )
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        made.post_processor = processors.BertProcessing((LAST, ids[LAST]), (FIRST, ids[FIRST]))
        return made


def _first_repeated(pieces: Sequence[str]) -> str:
    seen: set[str] = set()
    return next(piece for piece in pieces if piece in seen or seen.add(piece))
