"""Captioned images: arrays, folders of photographs, pictograms, digits, and their splits."""

import re

import numpy as np
import pytest
from _helpers.files import encoded, fill, zipped
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import data
from crl_jax.data import (
    CaptionedImages,
    CaptionedImageSplit,
    DataError,
    DataWarning,
    load_captioned,
)
from crl_jax.data._captions import _readers
from crl_jax.data._captions._captioned import split_captioned

RNG = np.random.default_rng(0)


def make_captioned(n=6, texts_each=2, groups=None):
    owners = np.repeat(np.arange(n), texts_each).astype(np.int32)
    texts = tuple(f"image {i}, text {t}" for t, i in enumerate(owners))
    pixels = RNG.integers(0, 256, (n, 4, 5, 3), np.uint8)
    return CaptionedImages(pixels, texts, owners, None if groups is None else np.int32(groups))


def write_photographs(folder, names, captions, **lists):
    """Writes a folder with a zip archive of images, a caption table and lists of parts."""
    images = {name: encoded(10 * place) for place, name in enumerate(names)}
    tables = {"captions.tsv": captions, **{f"{name}.txt": text for name, text in lists.items()}}
    return fill(folder, {"images.zip": zipped(images), **tables})


def write_pictograms(folder, table, **drawings):
    fill(folder, {"pairs.tsv": table})
    for name, images in drawings.items():
        np.savez_compressed(folder / f"{name}.npz", images=images)
    return folder


def shades(n, side=4):
    return np.broadcast_to(np.arange(n).astype(np.uint8)[:, None, None, None], (n, side, side, 3))


def test_take_keeps_captions_and_groups():
    whole = make_captioned(6, groups=[5, 5, 7, -1, 8, 9])
    some = whole.take([4, 1])
    np.testing.assert_array_equal(some.images, whole.images[[4, 1]])
    assert some.texts == (*whole.texts[2:4], *whole.texts[8:10])
    assert some.image_of_text.tolist() == [1, 1, 0, 0]
    assert some.groups is not None
    assert some.groups.tolist() == [8, 5]
    assert some.text_groups.tolist() == [5, 5, 8, 8]
    assert make_captioned(3).text_groups.tolist() == [0, 0, 1, 1, 2, 2]
    assert whole.take(np.arange(6) % 2 == 0).texts == whole.take(slice(0, 6, 2)).texts
    with raises(ValueError, match="read-only"):
        some.image_of_text[0] = 1
    with raises(ValueError, match="`index` must be distinct"):
        whole.take([1, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": np.zeros((2, 4, 4), np.uint8)}, "`images` must be a 4-dimensional array"),
        ({"texts": ("a", 3)}, "`texts` must be non-empty strings, got 3"),
        ({"texts": ("a",)}, r"`image_of_text` must have shape \(1,\)"),
        ({"image_of_text": np.array([0, 2], np.int32)}, r"`image_of_text` must lie in \[0, 2\)"),
        ({"groups": np.zeros(3, np.int32)}, r"`groups` must have shape \(2,\), got \(3,\)"),
    ],
)
def test_rejects_inconsistent_fields(change, message, unchecked):
    fields = {
        "images": np.zeros((2, 4, 4, 1), np.uint8), "texts": ("a", "b"),
        "image_of_text": np.array([0, 1], np.int32),
    }  # fmt: skip
    with raises(ValueError, match=message):
        CaptionedImages(**fields | change)
    with raises(ValueError, match="`test` must have shape"):
        CaptionedImageSplit(make_captioned(), CaptionedImages(**fields))


@settings(deadline=None)
@given(
    st.lists(st.integers(-1, 6), min_size=12, max_size=30), st.floats(0.01, 0.45),
    st.floats(0.01, 0.45), st.integers(0, 5), st.booleans(),
)  # fmt: skip
def test_split_is_partition_and_keeps_groups_together(groups, valid, test, seed, by_group):
    n = len(groups)
    whole = CaptionedImages(
        np.arange(n).astype(np.uint8).reshape(n, 1, 1, 1), tuple(map(str, range(n))),
        np.arange(n, dtype=np.int32), np.int32(groups),
    )  # fmt: skip
    n_ungrouped = sum(g < 0 for g in groups)
    units = n_ungrouped + len({g for g in groups if g >= 0}) if by_group else n
    if units < 3:
        with raises(DataError, match="at least 3 groups"):
            split_captioned(whole, valid, test, seed, "x", by_group=by_group)
        return
    split = split_captioned(whole, valid, test, seed, "x", by_group=by_group)
    again = split_captioned(whole, valid, test, seed, "x", by_group=by_group)
    texts = {name: set(part.texts) for name, part in split.parts()}
    assert {name: set(part.texts) for name, part in again.parts()} == texts
    assert sorted(text for part in texts.values() for text in part) == sorted(whole.texts)
    assert all(texts.values())
    if by_group:
        for group in {g for g in groups if g >= 0}:
            own = {str(i) for i, g in enumerate(groups) if g == group}
            assert sum(bool(own & part) for part in texts.values()) == 1
    else:
        assert len(texts["test"]) == min(max(round(test * n), 1), n - 2)


def test_seed_changes_split():
    whole = make_captioned(30)
    tests = {load_captioned(whole, seed=seed).test.texts for seed in range(3)}
    assert len(tests) == 3


def test_reads_photographs_split_by_lists(tmp_path):
    """Captions in columns and in lines; images in the order of the lists."""
    folder = write_photographs(
        tmp_path / "p", ["b.png", "sub/a.png", "c.png", "d.png"],
        "image\tcaption1\tcaption2\nb.png\tone\ttwo\na.png\tthree\t\nc.png\tfour\nd.png\tfive\n"
        "a.png\tsix\n",
        train="c.png\na.png\n", dev="d.png\n", test="b.png\n",
    )  # fmt: skip
    split = load_captioned(folder)
    parts = dict(split.parts())
    assert parts["train"].texts == ("three", "six", "four")
    assert parts["train"].image_of_text.tolist() == [1, 1, 0]
    assert [parts[p].texts for p in ("valid", "test")] == [("five",), ("one", "two")]
    assert parts["train"].images[:, 0, 0, 0].tolist() == [20, 10]
    assert load_captioned(folder, size=3).test.images.shape == (1, 3, 3, 1)
    with raises(ValueError, match="`valid` requires a source without parts"):
        load_captioned(folder, valid=0.5)


def test_photographs_without_lists_are_split_at_random(tmp_path):
    files = {f"images/{place}.png": encoded(place) for place in range(11)}
    captions = "".join(f"{i}.png\ttext {i}\n" for i in range(10))
    folder = fill(tmp_path / "p", {**files, "captions.tsv": captions})
    with pytest.warns(DataWarning, match="skipped 1 images without a caption"):
        split = load_captioned(folder, valid=0.2, test=0.3)
    assert {name: len(part) for name, part in split.parts()} == {"train": 5, "valid": 2, "test": 3}


@pytest.mark.parametrize(
    ("captions", "lists", "message"),
    [
        ("a.png\tx\nz.png\ty\n", {}, r"captions.tsv:2: expected an image in .*images.zip, got 'z"),
        ("a.png\n", {}, "captions.tsv:1: expected a name, a tab and captions"),
        ("name\tcaption\n", {}, "captions.tsv: expected a line for each image, got none"),
        ("a.png\tx\n", {"train": "a.png\n"}, r"expected train.txt and test.txt, got no test.txt"),
        ("a.png\tx\nb.png\ty\n", {"train": "a.png\n", "test": "b.png\na.png\n"},
         "test.txt:2: expected each image once, got 'a.png', which is in train.txt"),
        ("a.png\tx\n", {"train": "a.png\n\nb.png\n", "test": "a.png\n"},
         "train.txt:3: expected an image with a caption, got 'b.png'"),
        ("a.png\tx\n", {"train": "a.png\na.png\n", "test": "b.png\n"},
         "train.txt:2: expected each name once"),
        ("holiday.heic\ta beach\na.png\tx\n", {},  # a first row with a suffix is no header
         r"captions.tsv:1: expected an image in .*'holiday.heic'"),
        ("a.png\tx\nb.png\ty\n", {"train": "a.png\n", "test": ""},
         "test.txt: expected a name of an image in each line"),
    ],
)  # fmt: skip
def test_rejects_invalid_photograph_folders(tmp_path, captions, lists, message):
    folder = write_photographs(tmp_path / "p", ["a.png", "b.png"], captions, **lists)
    with raises(DataError, match=message):
        load_captioned(folder)


HEAD = "label_en\tskin_variant\tpen_row\tink_row\tlabel_zh\n"
HANDS = (
    "hand\t0\t0\t1\t手\nhand: dark skin tone\t1\t1\t-1\t黑手\nkiss\t0\t2\t2\t吻\n"
    "kiss: person, person, light skin tone, dark skin tone\t1\t3\t3\t吻吻\n"
    "kiss: woman, man\t0\t4\t-1\t男女吻\nkiss: woman, man, light skin tone\t1\t-1\t4\t白吻\n"
    "cat\t0\t5\t-1\t猫\n"
)


def test_pictogram_variants_share_group(tmp_path):
    """Each drawing of a pictogram is an image; its skin tones form a group across all artists."""
    folder = write_pictograms(tmp_path / "p", HEAD + HANDS, pen_4=shades(6), ink=50 + shades(5))
    split = load_captioned(folder)
    group_of = {}
    for _, part in split.parts():
        assert part.groups is not None
        for text, group in zip(part.texts, part.groups.tolist()):
            assert group_of.setdefault(text, group) == group
    names = ["hand", "kiss", "kiss: woman, man", "cat"]
    assert len({group_of[name] for name in names}) == len(set(group_of.values())) == 4
    assert group_of["hand: dark skin tone"] == group_of["hand"]
    assert group_of["kiss: person, person, light skin tone, dark skin tone"] == group_of["kiss"]
    assert group_of["kiss: woman, man, light skin tone"] == group_of["kiss: woman, man"]
    pixels = {
        (text, int(image[0, 0, 0]))
        for _, part in split.parts()
        for text, image in zip(part.texts, part.images)
    }
    assert {("hand", 0), ("hand", 51), ("cat", 5)} <= pixels
    assert len(pixels) == 10


def test_selects_pictogram_drawings_and_language(tmp_path):
    folder = write_pictograms(tmp_path / "p", HEAD + HANDS, pen=shades(6), ink=shades(5, side=8))
    with raises(DataError, match=r"drawings differ in size.*set `size` to resize"):
        load_captioned(folder)
    with pytest.warns(DataWarning, match="skipped 1 pictograms without a drawing"):
        split = load_captioned(folder, drawings=["pen"], column="label_zh")
    texts = {text for _, part in split.parts() for text in part.texts}
    assert texts == {"手", "黑手", "吻", "吻吻", "男女吻", "猫"}
    assert load_captioned(folder, size=4).train.images.shape[1:] == (4, 4, 3)


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        (HEAD + "hand\t0\t6\t0\t手\n", {}, r"pairs.tsv:2: .* a drawing in \[-1, 6\).*'6'"),
        (HEAD + "hand\t0\tx\t0\t手\n", {}, r"pairs.tsv:2: expected an index of .*'x'"),
        (HEAD + "hand\t0\n", {}, "pairs.tsv:2: expected 5 cells, got 2"),
        (HEAD, {}, "pairs.tsv: expected a line for each pictogram"),
        (HEAD + "\t0\t0\t0\t手\n", {}, "pairs.tsv:2: expected a text in label_en, got none"),
        (HEAD + HANDS, {"column": "label_fr"}, "pairs.tsv:1: expected a column label_fr"),
        (HEAD + HANDS, {"drawings": ["oil"]}, r"pairs.tsv:1: expected columns NAME_row of \['oil"),
        (HEAD.replace("ink", "oil") + HANDS, {}, r"expected one file oil.npz or oil_….npz, got 0"),
    ],
)
def test_rejects_invalid_pictogram_tables(tmp_path, table, options, message):
    folder = write_pictograms(tmp_path / "p", table, pen=shades(6), ink=shades(5))
    with raises(DataError, match=message):
        load_captioned(folder, **options)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((5, 4, 4))}, r"expected images uint8 .* got float64 \[5, 4, 4"),
        ({"images": np.array([{}], object)}, "array images is not readable"),
        ({"pictures": shades(5)}, "expected an array images, got pictures.npy"),
    ],
)
def test_rejects_invalid_drawing_files(tmp_path, arrays, message):
    folder = write_pictograms(tmp_path / "p", HEAD + HANDS, pen=shades(6))
    np.savez(folder / "ink.npz", **arrays)
    with raises(DataError, match=rf"ink.npz: {message}"):
        load_captioned(folder)


def test_loads_arrays_in_memory():
    pixels = RNG.integers(0, 256, (8, 5, 5), np.uint8)
    texts = ["one", ["two", "too"], *"345678"]
    groups = [0, 0, 1, 1, 2, 2, 3, 3]
    split = load_captioned((pixels, texts, groups))
    assert split.train.images.shape[1:] == (5, 5, 1)
    assert sorted(t for _, part in split.parts() for t in part.texts) == sorted("345678") + [
        "one", "too", "two"
    ]  # fmt: skip
    assert len({len(part) % 2 for _, part in split.parts()} | {0}) == 1  # whole groups
    kept = load_captioned(CaptionedImageSplit(make_captioned(), make_captioned(4)), size=2)
    assert kept.valid is None
    assert kept.test.images.shape == (4, 2, 2, 3)
    for source, message in (
        ((pixels, texts[1:]), "`texts` must hold one or several captions for each of 8 images"),
        ((pixels, "12345678"), "`texts` must hold"),
        ((pixels, texts, groups[1:]), "`groups` must be an integer for each of 8"),
        ((pixels / 255, texts), "`images` must be whole numbers"),
        (3, "`source` must be a name, a folder, Captioned"),
    ):
        with raises(ValueError, match=message):
            load_captioned(source)


def test_digit_captions_name_their_digit():
    split = load_captioned("digits")
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    templates = set()
    for _, part in split.parts():
        for text, group in zip(part.texts, part.text_groups):
            assert re.search(rf"\b{names[group]}\b", text)
            templates.add(re.sub(rf"\b{names[group]}\b", "…", text))
    assert len(templates) == 4
    assert [len(part) for _, part in split.parts()] == [1258, 180, 359]
    assert load_captioned("digits", seed=1).train.texts != split.train.texts
    images = data.load_images("digits", test=0.5)
    known = {image.tobytes() for _, part in images.parts() for image in part.images}
    assert {image.tobytes() for image in split.test.images} <= known


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "`size` must be a whole number of pixels"),
        ({"column": "x"}, "`column` requires a folder of pictogr"),
        ({"drawings": ["x"]}, "`drawings` requires"),
        ({"test": 1.0}, r"`test` must lie in \(0, 1\)"),
        ({"valid": 0.5, "test": 0.5}, r"`valid` \+ `test` must be less than 1"),
    ],
)
def test_rejects_invalid_options(options, message):
    with raises(ValueError, match=message):
        load_captioned("digits", **options)


def test_rejects_missing_sources(tmp_path):
    with raises(ValueError, match="expected a folder with captions.tsv or pairs.tsv"):
        load_captioned(tmp_path)
    with raises(FileNotFoundError, match="no such file"):
        load_captioned(tmp_path / "nothing")


@pytest.mark.data
def test_published_datasets_have_expected_sizes(real_data, monkeypatch):
    """The photographs are not decoded: their names, captions and lists are as published."""
    monkeypatch.setattr(_readers, "decode_images", lambda tree, names, size: shades(len(names)))
    with pytest.warns(DataWarning, match="skipped 91 images that are in no list"):
        split = load_captioned(real_data / "flickr8k-80px", size=16)
    sizes = {name: (len(part), len(part.texts)) for name, part in split.parts()}
    assert sizes == {"train": (6000, 30000), "valid": (1000, 5000), "test": (1000, 5000)}
    split = load_captioned(real_data / "emoji-pairs", size=8)
    groups = [set(part.image_groups.tolist()) for _, part in split.parts()]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 1941  # 1,890 are variants
    assert sum(len(part) for _, part in split.parts()) == 3569 + 3786


@pytest.mark.parametrize(
    "form", ["{i}.png", "images/{i}.png", "./{i}.png", "{folder}/images/{i}.png"]
)
def test_accepts_image_names_and_paths(tmp_path, form):
    names = [form.format(i=i, folder=tmp_path) for i in range(8)]
    files = {f"images/{i}.png": encoded(i) for i in range(8)}
    tables = {
        "captions.tsv": "".join(f"{name}\tcaption\n" for name in names),
        "train.txt": "\n".join(names[:5]),
        "test.txt": "\n".join(names[5:]),
    }
    assert len(load_captioned(fill(tmp_path, {**files, **tables})).test) == 3


@pytest.mark.parametrize("caption", [None, "", "  ", 3, ["x", ""]])
def test_rejects_invalid_captions_in_memory(caption):
    with raises(ValueError, match=r"`texts` must be non-empty strings, got .* for image 1"):
        load_captioned((np.zeros((4, 8, 8, 3), np.uint8), ["a", caption, "c", "d"]))
