"""WordPiece tokenisation: stored ids, a greedy reference search, and learned vocabularies."""

import json
import unicodedata
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given
from hypothesis import strategies as st

from crl_jax.data import DataError, WordPiece

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = WordPiece((*SPECIAL, "play", "##ing", "##s", "well", "!", "naive", "好", "a", "##b"))


def test_encoding_matches_stored_ids(real_data):
    folder = real_data / "minilm-l3"
    stored = np.load(folder / "expected_outputs.npz")
    texts = json.loads((folder / "expected_sentences.json").read_text())
    words = WordPiece.read(folder / "vocab.txt")
    assert len(words) == 30_522
    found = words.encode(texts, length=stored["input_ids"].shape[1])
    np.testing.assert_array_equal(found.ids, stored["input_ids"])
    np.testing.assert_array_equal(found.mask, stored["attention_mask"] > 0)
    np.testing.assert_array_equal(words.lengths(texts), stored["attention_mask"].sum(axis=1))
    assert found.ids.dtype == np.int32


def test_chinese_is_split_into_characters(real_data):
    words = WordPiece.read(real_data / "text-zh" / "bert-base-chinese-vocab.txt")
    found = words.encode(["体验2D巅峰"], length=12)
    pieces = [words.pieces[i] for i in found.ids[0][found.mask[0]]]
    assert pieces == ["[CLS]", "体", "验", "2d", "巅", "峰", "[SEP]"]


def encode_reference(text):
    """Returns the ids of words of plain letters: longest piece first, or the whole word unknown."""
    place = {piece: i for i, piece in enumerate(WORDS.pieces)}
    ids = [2]
    for word in text.split():
        own, start = [], 0
        while start < len(word):
            ends = [e for e in range(len(word), start, -1)
                    if ("##" if start else "") + word[start:e] in place]  # fmt: skip
            if not ends:
                own = [1]
                break
            own.append(place[("##" if start else "") + word[start : ends[0]]])
            start = ends[0]
        ids += own
    return [*ids, 3]


@given(st.lists(st.sampled_from(["playing", "plays", "abb", "wellb", "aing", "playq", "q"])))
def test_encoding_matches_greedy_longest_match(words):
    text = " ".join(words)
    found = WORDS.encode([text], length=80)
    assert found.ids[0][found.mask[0]].tolist() == encode_reference(text)
    assert not found.ids[0][~found.mask[0]].any()


def test_handles_case_accents_and_punctuation():
    found = WORDS.encode(["Playing WELL!", "naïve好"], length=7)
    assert found.ids.tolist() == [[2, 4, 5, 7, 8, 3, 0], [2, 9, 10, 3, 0, 0, 0]]
    cased = WordPiece(WORDS.pieces, lowercase=False)
    assert cased.encode(["Playing naïve well"], length=5).ids.tolist() == [[2, 1, 1, 7, 3]]
    # Text that looks like a special token is not treated as one.
    assert 3 not in WORDS.encode(["[SEP] well"], length=9).ids[0, :-5].tolist()[1:]


def test_truncates_long_texts_and_keeps_order():
    texts = ["well " * (n % 9) for n in range(5000)]  # more than one tokenisation batch
    found = WORDS.encode(texts, length=6)
    assert found.mask.sum(axis=1).tolist() == [min(n % 9 + 2, 6) for n in range(5000)]
    assert found.ids[4998].tolist() == [2, 7, 7, 7, 3, 0]
    assert found.ids[4994].tolist() == [2, 7, 7, 7, 7, 3]
    assert WORDS.lengths(texts)[4994] == 10
    assert WORDS.encode([], length=6).ids.shape == (0, 6)


def test_vocabulary_file_round_trip(tmp_path):
    WORDS.save(tmp_path / "vocab.txt")
    assert WordPiece.read(tmp_path / "vocab.txt") == WORDS
    windows = (tmp_path / "vocab.txt").read_bytes().replace(b"\n", b"\r\n")
    (tmp_path / "vocab.txt").write_bytes(windows)
    assert WordPiece.read(tmp_path / "vocab.txt") == WORDS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\nb\na\n", ":7: expected a new piece, got 'a' of line 5"),
        (b"[PAD]\n\n[UNK]\n", ":2: expected a new piece, got an empty line"),
        (b"[PAD]\n[UNK]\n[CLS]\n", r"got no \[SEP\]"),
        (b"\xff", "expected UTF-8 text"),
    ],
)
def test_rejects_invalid_files(tmp_path, content, message):
    (tmp_path / "vocab.txt").write_bytes(content)
    with raises(DataError, match=message):
        WordPiece.read(tmp_path / "vocab.txt")


def test_rejects_invalid_arguments():
    with raises(ValueError, match="`pieces` must be distinct, got 'a' 2 times"):
        WordPiece((*SPECIAL, "a", "a"))
    with raises(ValueError, match=r"`pieces` must contain .*, got no \[CLS\]"):
        WordPiece(("[PAD]", "[UNK]", "[SEP]"))
    with raises(ValueError, match="`length` must be at least 2, got 1"):
        WORDS.encode(["a"], length=1)
    with raises(ValueError, match="`texts` must be strings, got 5 at index 1"):
        WORDS.encode(["a", 5], length=4)
    for call in (WORDS.lengths, lambda x: WordPiece.learn(x, 9), lambda x: WORDS.encode(x, 4)):
        with raises(ValueError, match="`texts` must be strings, got None at index 1"):
            call(["a", None])
        with raises(ValueError, match=r"`texts` must have no surrogates, got '.ud83d' at index 1"):
            call(["a", "half an emoji \ud83d"])
        with raises(
            ValueError, match="`texts` must be a sequence of strings, got the string 'one'"
        ):
            call("one")
    with raises(ValueError, match="`size` must be at least 5, got 4"):
        WordPiece.learn(["a"], size=4)


def learn_reference(texts, size):
    """Reference training, which counts all pairs again in each step."""
    counts = Counter(word for text in texts for word in text.split())
    cut = {word: [word[0], *("##" + c for c in word[1:])] for word in counts}
    letters = Counter()
    for word, n in counts.items():
        for piece in cut[word]:
            letters[piece] += n
    found = [p for p, n in sorted(letters.items(), key=lambda i: (-i[1], i[0])) if n > 1][:size]
    cut = {word: pieces for word, pieces in cut.items() if set(pieces) <= set(found)}
    while len(found) < size:
        pairs = Counter()
        for word, pieces in cut.items():
            for pair in pairwise(pieces):
                pairs[pair] += counts[word]
        best = min(pairs.items(), key=lambda i: (-i[1], i[0]), default=(None, 0))
        if best[1] < 2:
            break
        (a, b), joined = best[0], best[0][0] + best[0][1][2:]
        if joined not in found:
            found.append(joined)
        for word, pieces in cut.items():
            i, out = 0, []
            while i < len(pieces):
                both = pieces[i : i + 2] == [a, b]
                out.append(joined if both else pieces[i])
                i += 1 + both
            cut[word] = out
    return found


@given(st.lists(st.text("abc ", max_size=20), max_size=12), st.integers(5, 30))
def test_learning_merges_most_frequent_pair(texts, size):
    learned = WordPiece.learn(texts, size)
    assert learned.pieces == (*SPECIAL, *learn_reference(texts, size - 4))
    assert WordPiece.learn(texts[::-1], size) == learned


def test_learned_vocabulary_covers_its_texts():
    texts = ["the cat sat on the mat", "a Càt and the hats", "that cat"] * 2
    words = WordPiece.learn(texts, size=40)
    assert len(words) <= 40
    assert {"cat", "the"} <= set(words.pieces)
    found = words.encode(texts, length=24)
    assert not (found.ids == 1).any()
    plain = [unicodedata.normalize("NFD", t.lower()).replace("\u0300", "") for t in texts]
    for ids, mask, text in zip(found.ids, found.mask, plain, strict=True):
        pieces = [words.pieces[i] for i in ids[mask]][1:-1]
        assert "".join(p.removeprefix("##") for p in pieces) == text.replace(" ", "")
