"""Labelled and unlabelled texts and sentence pairs, from files, folders and memory."""

import csv
import gzip
import json
import os
from collections import Counter

import numpy as np
import pytest
from _helpers.files import fill, warned
from _helpers.refusals import raises

from crl_jax import data
from crl_jax.data import DataError, DataWarning, Texts, TextSplit, load_text_pairs, load_texts
from crl_jax.data._texts._docstrings import first_sentence


def pairs_of(texts):
    return [(text, texts.classes[i]) for text, i in zip(texts.texts, texts.labels, strict=True)]


TRAIN = [("Good film", "pos"), ('a "bore", really', "neg"), ("great", "pos"), ("so dull", "neg")]
TEST = [("a joy", "pos")]


def tabs(rows):
    return "".join(f"{text}\t{label}\n" for text, label in rows)


def with_names(rows):
    return "label\tText\n" + "".join(f"{label}\t {text} \n" for text, label in rows)


def commas(rows):
    quoted = [(text.replace('"', '""'), label) for text, label in rows]
    return "id,sentence,label\r\n" + "".join(f'1,"{t}",{label}\r\n' for t, label in quoted)


def json_lines(rows):
    return "".join(json.dumps({"label": y, "sentence": x, "n": None}) + "\n" for x, y in rows)


@pytest.mark.parametrize(
    ("ending", "form"),
    [("tsv", tabs), ("txt", with_names), ("csv", commas), ("jsonl", json_lines)],
)
def test_reads_labelled_file_formats(tmp_path, ending, form):
    """A text with quotes and commas survives every format."""
    fill(tmp_path, {f"train.{ending}": form(TRAIN), f"test.{ending}": form(TEST)})
    split = load_texts(tmp_path)
    assert split.train.classes == split.test.classes == ("neg", "pos")
    assert (pairs_of(split.train), pairs_of(split.test)) == (TRAIN, TEST)
    assert split.valid is None
    assert split.train.labels.tolist() == [1, 0, 1, 0]


def test_leading_number_is_label(tmp_path):
    lines = "10 so what ?\n2 5 apples\r\n2\tno tab\n"
    fill(tmp_path, {"q.train.all": lines, "q.test.all": "2 x\n", "q.dev.all": "10 y\n"})
    split = load_texts(tmp_path / "q")
    assert pairs_of(split.train) == [("so what ?", "10"), ("5 apples", "2"), ("no tab", "2")]
    assert split.train.classes == ("2", "10")
    assert [(name, len(part)) for name, part in split.parts()] == [
        ("train", 3), ("valid", 1), ("test", 1),
    ]  # fmt: skip


def test_reads_leading_labels_and_class_names(tmp_path):
    rows = "0\tone\n1\ttwo\n0\tthree\n"
    fill(tmp_path, {"train.txt": rows, "test.txt": "1\tfour\n", "class.txt": "cat\ndog\n"})
    split = load_texts(tmp_path)
    assert pairs_of(split.train) == [("one", "cat"), ("two", "dog"), ("three", "cat")]
    assert pairs_of(split.test) == [("four", "dog")]


def test_columns_are_selected_by_name_or_position(tmp_path):
    rows = "x\ta\tmore\nx\tb\tless\ny\tc\tmore\n"
    fill(tmp_path, {"train.tsv": rows, "t.csv": "who,what\nx,a\ny,b\nx,c\n"})
    split = load_texts(tmp_path / "train.tsv", text_col=1, label_col=2, test=0.4)
    assert split.train.classes == ("less", "more")
    named = load_texts(tmp_path / "t.csv", text_col="what", label_col="who")
    assert {x for part in (named.train, named.test) for x in part.texts} == {"a", "b", "c"}
    tweets = fill(tmp_path, {"a.csv": "tweet,sentiment\n" + rows_of()}) / "a.csv"
    for columns in ({"label_col": "sentiment"}, {"text_col": "tweet", "label_col": "sentiment"}):
        split = load_texts(tweets, **columns)
        assert split.train.classes == ("bad", "good")
        assert len(split.train) + len(split.test) == 40
    by_position = load_texts(tweets, text_col=0, label_col=1)
    assert by_position.train.classes == ("bad", "good", "sentiment")
    no_header = fill(tmp_path, {"b.csv": "great,good\n" + rows_of()}) / "b.csv"
    assert load_texts(no_header).train.classes == ("bad", "good")


def rows_of(n=40):
    return "".join(f"words of line {i},{'good' if i % 2 else 'bad'}\n" for i in range(n))


def test_single_file_is_split_stratified_by_class(tmp_path):
    rows = [(f"text {i}", "abc"[i % 3]) for i in range(60)]
    fill(tmp_path, {"all.tsv": tabs(rows)})
    first, again, other = (load_texts(tmp_path / "all.tsv", test=0.25, seed=s) for s in (0, 0, 1))
    assert Counter(first.test.labels.tolist()) == {0: 5, 1: 5, 2: 5}
    assert sorted(pairs_of(first.train) + pairs_of(first.test)) == sorted(rows)
    assert first.test.texts == again.test.texts != other.test.texts
    memory = load_texts(([x for x, _ in rows], [y for _, y in rows]), test=0.25)
    assert pairs_of(memory.test) == pairs_of(first.test)
    assert len(load_texts(tmp_path / "all.tsv").test) == 12


def test_accepts_mapping_of_parts_and_data_in_memory(tmp_path):
    fill(tmp_path, {"one.tsv": tabs(TRAIN), "two.tsv": tabs(TEST)})
    split = load_texts({"train": tmp_path / "one.tsv", "test": str(tmp_path / "two.tsv")})
    assert pairs_of(split.train) == TRAIN
    assert load_texts(split) is split
    halves = load_texts(split.train, test=0.5)
    assert (len(halves.train), len(halves.test)) == (2, 2)
    numbers = load_texts((list("abcd"), np.array([7, 3, 7, 3])))
    assert numbers.train.classes == ("3", "7")


SENTENCES = ("2 dogs run", 'a "cat", asleep', "a bird")


@pytest.mark.parametrize(
    ("name", "content", "asked"),
    [
        ("a.txt", "2 dogs run\n\n a \"cat\", asleep \r\na bird\n", {}),
        ("corpus", "2 dogs run\na \"cat\", asleep\na bird", {}),
        ("a.txt", "1 2 dogs run\n2 a \"cat\", asleep\n3 a bird\n", {"label_col": ""}),
        ("a.csv", 'sentence\n2 dogs run\n"a ""cat"", asleep"\na bird\n', {}),
        ("a.csv", '2 dogs run\n"a ""cat"", asleep"\na bird\n', {}),
        ("a.tsv", "sentence\n2 dogs run\na \"cat\", asleep\na bird\n", {"label_col": ""}),
        ("a.tsv", "x\t2 dogs run\nx\ta \"cat\", asleep\ny\ta bird\n", {"label_col": ""}),
        ("a.tsv", "id\ttext\n1\t2 dogs run\n2\ta \"cat\", asleep\n3\ta bird\n",
         {"label_col": ""}),
        ("a.tsv", "1\t2 dogs run\n2\ta \"cat\", asleep\n3\ta bird\n",
         {"label_col": "", "text_col": 1}),
        ("a.jsonl", "".join(json.dumps({"text": each}) + "\n" for each in SENTENCES), {}),
        ("a.jsonl", json_lines([(each, "x") for each in SENTENCES]), {"label_col": ""}),
    ],
)  # fmt: skip
def test_reads_unlabelled_file_formats(tmp_path, name, content, asked):
    """One of the texts begins with a number, another has a comma."""
    (path := tmp_path / name).write_bytes(content.encode())
    split, _ = warned(load_texts, path, **asked)
    assert sorted(split.train.texts + split.test.texts) == sorted(SENTENCES)
    assert len(split.test) == 1
    for _, part in split.parts():
        assert part.classes == ()
        assert set(part.labels.tolist()) == {-1}
    files = {"train": path, "test": path, "valid": path}
    for _, part in warned(load_texts, files, **asked)[0].parts():
        assert part.texts == SENTENCES


def test_leading_numbers_are_labels_unless_disabled(tmp_path):
    fill(tmp_path, {"a.txt": "0 a\n1 b\n0 c\n", "b.txt": MIXED})
    assert load_texts(tmp_path / "a.txt").train.classes == ("0", "1")
    split = load_texts(tmp_path / "b.txt", label_col="")
    assert {"2 dogs", "3 cats", "a bird"} == {*split.train.texts, *split.test.texts}
    with raises(DataError, match=r"b\.txt:3: expected fields with tabs"):
        load_text_pairs(tmp_path / "b.txt")


MIXED = "2 dogs\n3 cats\na bird\n"


def test_unlabelled_texts_are_split_by_seed():
    texts = [f"text {i}" for i in range(50)]
    split, again = load_texts(texts, test=0.3), load_texts(np.array(texts), test=0.3)
    assert (len(split.train), len(split.test)) == (35, 15)
    assert {*split.train.texts, *split.test.texts} == {*texts}
    assert split.test.texts == again.test.texts
    assert load_texts(tuple(texts), test=0.3, seed=1).test.texts != split.test.texts
    assert load_texts(["one", "two"]).train.classes == ()
    labelled = load_texts((texts, [i % 2 for i in range(50)]))
    bare = load_texts(labelled, label_col="")
    assert (bare.train.texts, bare.test.classes) == (labelled.train.texts, ())
    assert load_texts(labelled.train, label_col="").train.classes == ()
    assert load_texts("docstrings", label_col="").test.classes == ()


def test_parts_must_agree_on_labels(tmp_path):
    fill(tmp_path / "both", {"train.txt": "one\ntwo\n", "test.txt": "three\n"})
    assert load_texts(tmp_path / "both").test.texts == ("three",)
    files = {"train": tmp_path / "both/train.txt", "test": tmp_path / "both/labelled.tsv"}
    fill(tmp_path / "both", {"labelled.tsv": "text\tlabel\nfour\tx\nfive\ty\n"})
    with raises(DataError, match=r"labelled\.tsv: expected a single column, as .*train\.txt"):
        load_texts(files)
    assert load_texts(files, label_col="").test.texts == ("four", "five")
    without = {"train": files["test"], "valid": files["test"], "test": tmp_path / "both/test.txt"}
    split, messages = warned(load_texts, without)
    assert "test.txt: it has no labels, and is not read" in messages[0]
    assert split.test.texts == ("four", "five")
    with raises(DataError, match=r"expected texts with labels, as .* has, got 1 columns"):
        load_texts({"train": files["test"], "test": files["test"], "valid": files["train"]})


def test_validation_part_replaces_missing_part(tmp_path):
    unlabelled = "qid\ttext_a\n0\tsomething\n"
    one = fill(tmp_path / "one", {"train.tsv": tabs(TRAIN), "dev.tsv": tabs(TEST),
                                     "test.tsv": unlabelled})  # fmt: skip
    split, messages = warned(load_texts, one)
    assert pairs_of(split.test) == TEST
    assert [message.rsplit(": ")[-1] for message in messages] == [
        "it has no labels, and is not read", "the file for validation is the test part",
    ]  # fmt: skip
    two = fill(tmp_path / "two", {"dev.tsv": tabs(TRAIN), "test.tsv": tabs(TEST)})
    with pytest.warns(DataWarning, match="the file for validation is the train part"):
        assert pairs_of(load_texts(two).train) == TRAIN


def test_detects_text_encodings(tmp_path):
    content = tabs([("café", "a"), ("thé", "b"), ("eau", "a"), ("vin", "b")])
    files = {
        "bom.tsv": b"\xef\xbb\xbf" + content.encode(),
        "utf16.tsv": content.encode("utf-16"),
        "utf32.tsv": content.encode("utf-32"),
        "plain.tsv.gz": gzip.compress(content.encode()),
    }
    fill(tmp_path, {**files, "old.tsv": content.encode("latin-1")})
    with pytest.warns(DataWarning, match="line 1 is not UTF-8, and the file was read as Latin-1"):
        old = load_texts(tmp_path / "old.tsv")
    assert {"café", "thé", "eau", "vin"} == {*old.train.texts, *old.test.texts}
    found = [load_texts(tmp_path / name) for name in files]
    for other in (*found, load_texts(tmp_path / "old.tsv", encoding="latin-1")):
        assert other.train.texts == old.train.texts


def test_warns_of_lines_without_text(tmp_path):
    fill(tmp_path, {"a.all": "1 x\n\n0 y\n0 \n1 z\n0 v\n\n"})
    split, messages = warned(load_texts, tmp_path / "a.all")
    assert sorted(split.train.texts + split.test.texts) == ["v", "x", "y", "z"]
    assert {message.rsplit(": ")[-1] for message in messages} == {
        "skipped 1 blank lines between the others",
        "skipped 1 lines without a text",
    }


@pytest.mark.parametrize("separator", ",;")
def test_blank_lines_in_quoted_text_are_not_counted(tmp_path, separator):
    rows = ["text,label", '"two\n\nlines",1', "", " , ", "one,0", "three,1", "four,0", "", ""]
    fill(tmp_path, {"a.csv": "\n".join(rows).replace(",", separator)})
    split, messages = warned(load_texts, tmp_path / "a.csv")
    assert sorted(split.train.texts + split.test.texts) == ["four", "one", "three", "two\n\nlines"]
    assert [x.rsplit(": ")[-1] for x in messages] == ["skipped 2 blank lines between the others"]


THREE = "x\ta\tmore\nx\tb\tless\ny\tc\tmore\n"
BAD = [  # file name, content, error, and options
    ("a.tsv", "text\tlabel\nx\t1\ny\n", "a.tsv:3: expected fields with tabs"),
    ("a.tsv", "text\tlabel\nx\t1\ny\t2\t3\n", "a.tsv:3: expected 2 fields"),
    ("a.tsv", "x\t1\ny\t\nz\t1\n", "a.tsv:2: expected a class, got an empty field"),
    ("a.txt", "0 one text\nand another\n", "a.txt:2: expected fields with tabs"),
    ("a.txt", "one\ntwo\tthree\n", "a.txt:2: expected a text without tabs"),
    ("a.txt", "one\n", "expected two texts or more, .* got 1 texts"),
    ("a.csv", 'one\n"two, three"\nfour, five\n', "a.csv:3: expected one field"),
    ("a.jsonl", '{"text": "half an emoji \\ud83d", "label": 1}\n', "a.jsonl:1: expected Unicode"),
    ("a.csv", ",,\n", "a.csv: expected a text in each line, got none"),
    ("a.csv", 'text,label\n"x,1\n', "a.csv:2: expected fields with commas"),
    ("a.csv", "text,label\nx\n", "a.csv:2: expected two fields or more"),
    ("a.csv", "tweet,sentiment\n" + rows_of(), "a.csv:1: cannot determine whether tweet, sentim"),
    ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "y"}\n', "a.jsonl:2: expected an object"),
    ("a.jsonl", '{"text": "x", "label": 1}\n{"te', "a.jsonl:2: expected JSON"),
    ("a.jsonl", "\n", "expected an object in each line, got none"),
    ("a.tsv", "", "expected a text in each line, got none"),
    ("a.tsv", "text\tnothing\nx\ty\n", 'got text, nothing. With "" no labels are read'),
    ("a.tsv", "x\t1\ny\t2\n", "expected a class of two texts or more"),
    ("a.tsv", THREE, "cannot determine `text_col`, got 3 columns"),
    ("a.tsv", THREE, "expected a column 5 of a text, got 3", {"text_col": 5, "label_col": 2}),
    ("a.tsv", THREE, "a column 'no' of a text, got no names", {"text_col": "no", "label_col": 2}),
    ("a.tsv", "1\ta\n2\tb\n", "cannot determine `text_col`, got 2 columns", {"label_col": ""}),
    ("b.txt", MIXED, "b.txt:3: expected fields with tabs, or a whole number"),
    ("b.txt", MIXED, "b.txt:3: expected fields with tabs", {"label_col": "label"}),
    ("a.tsv", b"caf\xe9\ta\n", "a.tsv:1: expected UTF-8 .* 0xe9", {"encoding": "utf-8"}),
    ("x.parquet", b"PAR1\0\0\xff", "expected a text file, got a Parquet file"),
    ("x.txt", b"ab\ncd\0ef\n", r"x.txt:2: expected text, got binary data \(a NUL byte\)"),
    ("y.txt", "ab\ncd\n".encode("utf-16-le"), "expected text, got binary data"),
    ("y.txt.gz", gzip.compress(rows_of().encode())[:-9], "not readable"),
]


@pytest.mark.parametrize("row", BAD, ids=range(len(BAD)))
def test_reports_file_and_line_of_invalid_rows(tmp_path, row):
    name, content, message, *options = row
    fill(tmp_path, {name: content})
    with raises(DataError, match=message):
        load_texts(tmp_path / name, **(options[0] if options else {}))


@pytest.mark.parametrize("label", ["label", 1])
def test_rejects_same_column_for_text_and_label(tmp_path, label):
    fill(tmp_path, {"a.tsv": "text\tlabel\nx\ta\n"})
    with raises(ValueError, match="`text_col` and `label_col` must be different columns"):
        load_texts(tmp_path / "a.tsv", text_col="label", label_col=label)


def test_rejects_special_files(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    for load in (load_texts, load_text_pairs):
        with raises(DataError, match="expected a regular file, got a special file"):
            load(tmp_path / "a.txt")


def test_rejects_inconsistent_parts(tmp_path):
    folder = fill(tmp_path / "x", {"train.tsv": tabs(TRAIN), "test.tsv": "a\tpos\nb\tmixed\n"})
    with raises(DataError, match=r"test\.tsv:2: expected a class of the training part"):
        load_texts(folder)
    with raises(ValueError, match="`test` requires texts without a test part"):
        load_texts(folder, test=0.5)
    with raises(DataError, match="expected labelled files for training and for testing"):
        load_texts({"test": folder / "train.tsv"})
    with raises(ValueError, match=r"`source` must name train, test and valid, got \['x'\]"):
        load_texts({"x": folder / "train.tsv"})
    fill(folder, {"b.train.tsv": "", "b.test.tsv": ""})
    with raises(DataError, match="expected files train and test of one set, got , b"):
        load_texts(folder)
    fill(folder, {"b.train.txt": ""})
    with raises(DataError, match="expected one file of a part"):
        load_texts(folder)


def test_rejects_missing_sources_and_invalid_options(tmp_path):
    with raises(FileNotFoundError, match="no such file"):
        load_texts(tmp_path / "nothing")
    with raises(FileNotFoundError, match="no such file"):
        load_texts({"train": tmp_path / "a", "test": tmp_path / "b"})
    with raises(FileNotFoundError, match="no such file"):
        load_text_pairs(tmp_path / "nothing")
    for wrong in (5, [], [1, 2, 3], ["a", 1, "b"], np.array("a"), np.array([["a"], ["b"]])):
        with raises(ValueError, match="`source` must be a name, a path"):
            load_texts(wrong)
    with raises(ValueError, match="`source` must be a path or"):
        load_text_pairs(5)
    with raises(ValueError, match=r"`test` must lie in \(0, 1\), got 1"):
        load_texts("docstrings", test=1.0)
    with raises(ValueError, match="`encoding` must be 'utf-8' or 'latin-1', got 'ascii'"):
        load_texts("docstrings", encoding="ascii")
    with raises(ValueError, match="`text_col` requires files: docstrings have no columns, got 'a'"):
        load_texts("docstrings", text_col="a")
    with raises(ValueError, match="`label_col` requires files: texts in memory have no columns"):
        load_texts(["a", "b"], label_col=1)


@pytest.mark.parametrize(
    ("texts", "labels", "classes", "message"),
    [
        (("a", ""), [0, 0], ("x",), "`texts` must be non-empty strings, got '' at index 1"),
        (("a",), np.zeros(1, np.int64), ("x",), "`labels` must be of int32"),
        (("a",), [0, 0], ("x",), r"`labels` must have shape \(1,\)"),
        (("a",), [1], ("x",), r"`labels` must lie in \[-1, 1\), got 1"),
        (("a",), [0], ("x", "x"), "`classes` must be distinct"),
    ],
)
def test_rejects_inconsistent_fields(texts, labels, classes, message):
    with raises(ValueError, match=message):
        Texts(texts, np.int32(labels) if isinstance(labels, list) else labels, classes)


def test_split_requires_equal_classes():
    one, two = (Texts(("a",), np.zeros(1, np.int32), (name,)) for name in "xy")
    with raises(ValueError, match="`test` must have the classes of `train`"):
        TextSplit(one, two)
    with raises(ValueError, match="read-only"):
        one.labels[0] = 0


@pytest.mark.parametrize(
    ("doc", "sentence"),
    [
        ("Adds.\n\n  More.", "Adds."),
        ("\n    Adds two\n    numbers. And more.\n    ", "Adds two numbers."),
        ("See :func:`~jax.numpy.add` or ``x``, *here*", "See jax.numpy.add or x, here"),
        ("By `Eq. 4 <https://x.y>`_ of e.g. Bach! Not this", "By Eq."),
    ],
)
def test_extracts_first_sentence_of_docstring(doc, sentence):
    assert first_sentence(doc).replace(" <https://x.y>_", "") == sentence


def test_docstrings_load_without_files():
    split = load_texts("docstrings", test=0.1)
    assert {"flax", "jax", "numpy", "optax", "scipy"} <= set(split.train.classes)
    texts = split.train.texts + split.test.texts
    assert len(set(texts)) == len(texts) > 1200
    assert max(Counter(split.train.labels.tolist()).values()) <= 270
    assert all(len(text.split()) >= 4 and "\n" not in text for text in texts)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "one\t\"two\t5\nthree\tfour\t0.5\n"),
        ("a.csv", "g\tf\t2012\t07\t5.0\tone\t\"two\n"
                  "g\tf\t2012\t08\t0.5\tthree\tfour\tfrom\tthere\n"),
        ("b.tsv", "year\ttask\tscore\tsentence1\tsentence2\n"
                  "1\tm\t5\tone\t\"two\n2\tm\t.5\tthree\tfour\n"),
        ("c.txt", "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
                  "6\tone\t\"two\t5\tNO\r\n7\tthree\tfour\t0.5\tYES\r\n"),
    ],
)  # fmt: skip
def test_reads_text_pair_formats(tmp_path, name, content):
    fill(tmp_path, {name: content})
    pairs = load_text_pairs(tmp_path / name)
    assert (pairs.first, pairs.second) == (("one", "three"), ('"two', "four"))
    assert pairs.scores.tolist() == [5, 0.5]
    assert pairs.groups is None
    assert pairs.take([1]).first == ("three",)


def test_reads_pair_groups_and_rejects_invalid_pairs(tmp_path):
    fill(tmp_path, {"a.tsv": "x\tone\ttwo\t1\ny\tthree\tfour\tnan\n"})
    pair_columns = {"first_col": 1, "second_col": 2, "group_col": 0}
    with raises(DataError, match=r"a\.tsv:2: expected a finite score, got 'nan'"):
        load_text_pairs(tmp_path / "a.tsv", score_col=3, **pair_columns)
    with raises(DataError, match="cannot determine `score_col`, got 4 columns"):
        load_text_pairs(tmp_path / "a.tsv", **pair_columns)
    fill(tmp_path, {"a.tsv": "x\tone\ttwo\t1\ny\tthree\tfour\t2\n"})
    pairs = load_text_pairs(tmp_path / "a.tsv", score_col=3, **pair_columns)
    assert pairs.groups == ("x", "y")
    assert pairs.take(pairs.scores > 1).groups == ("y",)
    with raises(ValueError, match=r"`second` must have shape \(1,\)"):
        load_text_pairs((["a"], ["b", "c"], [1.0]))
    with raises(ValueError, match="`scores` must be finite"):
        data.TextPairs(("a",), ("b",), np.array([np.inf], np.float32))


@pytest.mark.parametrize(
    ("name", "sizes", "n_classes"),
    [
        ("text-en/agnews", (10_001, 7_600), 4),
        ("text-en/sst2", (67_349, 872), 2),
        ("text-en/sentconv/TREC", (5_452, 500), 6),
        ("text-en/sentconv/stsa.fine", (8_544, 1_101, 2_210), 5),
        ("text-en/sentconv/stsa.binary", (6_920, 872, 1_821), 2),
        ("text-en/sentconv/mpqa.all", (8_483, 2_120), 2),
        ("text-en/sentconv/custrev.all", (3_017, 754), 2),
        ("text-en/sentconv/rt-polarity.all", (8_530, 2_132), 2),
        ("text-en/sentconv/subj.all", (8_000, 2_000), 2),
        ("text-zh/tnews", (53_360, 10_000), 15),
        ("text-zh/thucnews-title", (10_000, 10_000), 10),
        ("text-zh/chnsenticorp", (9_600, 1_200), 2),
    ],
)
def test_published_datasets_have_published_sizes(real_data, name, sizes, n_classes):
    split = warned(load_texts, real_data / name)[0]
    assert tuple(len(part) for _, part in split.parts()) == sizes
    assert len(split.train.classes) == n_classes
    assert set(split.test.labels.tolist()) == set(range(n_classes))
    if name == "text-zh/thucnews-title":
        assert split.train.classes[:2] == ("finance", "realty")


@pytest.mark.parametrize(
    ("name", "n", "most"),
    [
        ("text-en/sts/stsb-test.csv", 1_379, 5),
        ("text-en/sts/stsb-dev.csv", 1_500, 5),
        ("text-en/sts/stsb-train.csv", 5_749, 5),
        ("text-en/sts/SICK_test_annotated.txt", 4_927, 5),
        ("text-en/sts/sts12-16.tsv", 12_544, 5),
        ("text-zh/afqmc/dev.txt", 4_316, 1),
        ("text-zh/lcqmc/test.txt", 12_500, 1),
        ("text-zh/sts-b-zh/dev.txt", 1_458, 5),
    ],
)
def test_published_pairs_have_published_sizes(real_data, name, n, most):
    pairs = load_text_pairs(real_data / name)
    assert len(pairs) == n
    assert (pairs.scores.min(), pairs.scores.max()) == (0, most) or "SICK" in name


@pytest.mark.parametrize("first", ["text;label\n", ""])
@pytest.mark.parametrize("text", ["words {}", '"words, in; quotes {}"'])
def test_reads_semicolon_separated_csv(tmp_path, first, text):
    content = first + "".join(f"{text.format(i)};{i % 2}\n" for i in range(8))
    split = load_texts(fill(tmp_path, {"a.csv": content}) / "a.csv")
    assert split.train.classes == ("0", "1")
    texts = {text.format(i).strip('"') for i in range(8)}
    assert {*split.train.texts, *split.test.texts} == texts


def test_reads_long_csv_fields(tmp_path):
    limit = csv.field_size_limit()
    long = "word " * 30_000
    content = "text,label\n" + "".join(f"line {i},{i % 2}\n" for i in range(20)) + f"{long},1\n"
    split = load_texts(fill(tmp_path, {"a.csv": content}) / "a.csv")
    assert long.strip() in split.train.texts + split.test.texts
    assert csv.field_size_limit() == limit


def test_rejects_missing_labels_in_memory():
    texts = [f" line {i} " for i in range(12)]
    for labels in ([-1, 0, 1] * 4, [None, "a", "b"] * 4, np.array([np.nan, 0, 1] * 4)):
        with raises(ValueError, match=r"`labels` must be class names or integers >= 0, got"):
            load_texts((texts, labels))
    bare = load_texts(texts).train
    assert bare.texts[0] == bare.texts[0].strip()
    assert load_texts((bare.texts, bare.labels)).train.classes == ()
    assert load_texts((texts, ["-1", "1"] * 6)).train.classes == ("-1", "1")
    assert load_texts((texts, np.array([0.0, 1.0] * 6))).train.classes == ("0", "1")
