"""Images in class folders and in Tiny ImageNet: files, their order and their labels."""

import numpy as np
import pytest
from _helpers.files import encoded, fill, warned
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.data import DataError, DataWarning, load_images


def shade(number):
    """Returns an image that encodes its number."""
    return np.full((2, 2, 3), number, np.uint8) + np.arange(3, dtype=np.uint8)


def put(folder, paths):
    """Writes images with the numbers 0, 1, … to the given paths."""
    return fill(folder, {path: encoded(shade(number)) for number, path in enumerate(paths)})


def numbers(images):
    for image in images.images:
        np.testing.assert_array_equal(image, shade(image[0, 0, 0]))
    return images.images[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("above", ["", "set/", "data/set/", "a b/é/"])
@pytest.mark.parametrize("second", ["test", "val", "Validation", "valid", "testing"])
def test_finds_splits_and_classes_in_order(tmp_path, above, second):
    paths = [
        "train/dog/2.png",
        "train/dog/10.PNG",
        "train/cat-1/x.png",
        "train/cat/b/x.png",
        "train/cat/a.png",
        f"{second}/dog/0.png",
    ]
    split = load_images(put(tmp_path / "x", [above + path for path in paths]))
    assert split.train.classes == ("cat", "cat-1", "dog")
    assert numbers(split.train) == [4, 3, 2, 1, 0]
    assert split.train.labels.tolist() == [0, 0, 1, 2, 2]
    assert split.train.names.tolist() == [above + paths[place] for place in (4, 3, 2, 1, 0)]
    assert numbers(split.test) == [5]
    assert split.test.labels.tolist() == [2]
    assert split.unlabelled is None


def test_reads_unlabelled_images_and_skips_validation(tmp_path):
    put(
        tmp_path,
        ["train/a/0.png", "test/a/1.png", "val/a/2.png", "unlabelled/x.png", "unlabelled/b/y.png"],
    )
    with pytest.warns(DataWarning, match="1 images for validation are not read"):
        split = load_images(tmp_path)
    assert split.train.classes == ("a",)
    assert numbers(split.test) == [1]
    assert numbers(split.unlabelled) == [4, 3]
    assert split.unlabelled.labels.tolist() == [-1, -1]


@pytest.mark.filterwarnings("ignore:.*all images are in set; the folders in it are the 3 classes")
@pytest.mark.parametrize("above", ["", "train/", "set/", "set/train/"])
def test_class_folders_without_parts_are_split(tmp_path, above):
    paths = [f"{above}{name}/{i}.png" for name in ("car", "train", "bus") for i in range(10)]
    split = load_images(put(tmp_path, paths))
    assert split.train.classes == ("bus", "car", "train")
    assert np.bincount(split.test.labels).tolist() == [2, 2, 2]
    assert sorted(numbers(split.train) + numbers(split.test)) == list(range(30))
    for part in (split.train, split.test):
        assert part.labels.tolist() == sorted(part.labels.tolist())
        of = [{1: 2, 0: 1, 2: 0}[number // 10] for number in numbers(part)]
        assert part.labels.tolist() == of
    assert numbers(load_images(tmp_path).test) == numbers(split.test)
    assert np.bincount(load_images(tmp_path, test=0.5).test.labels).tolist() == [5, 5, 5]


def test_warns_of_skipped_files(tmp_path):
    put(tmp_path, ["train/a/0.png", "test/a/1.png", "train/a/.2.png", "__MACOSX/train/a/3.png"])
    others = ("train/a/.DS_Store", "README", "notes.txt", "train/a/x.TXT", ".git/config")
    fill(tmp_path, dict.fromkeys(others, "x"))
    split, messages = warned(load_images, tmp_path)
    assert sorted(messages) == [
        f"{tmp_path}: skipped 3 files that are no images: 2 .txt, 1 README",
        f"{tmp_path}: skipped 4 hidden files",
    ]
    assert (numbers(split.train), numbers(split.test)) == ([0], [1])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], r"expected images \(.jpg, .*<class>/… alone, or a binary release .* got 0 files"),
        (["notes.txt"], "expected images .* got 1 files, none of them an image"),
        (["a/x.png", "y.png"], "y.png: expected the image in a class folder, as 1 others are"),
        (["train/x.png", "test/a/y.png"], "train/x.png: expected the image in a class folder"),
        (["train/a/x.png", "test/a/y.png", "z.png"], "z.png: expected the image in one of"),
        (["val/a/x.png", "test/a/y.png"], "expected a part train, got test, val"),
        (["test/a/x.png", "test/a/y.png"], "expected a part train, got test"),
        (
            ["train/a/x.png", "test/a/y.png", "b/z.png"],
            "expected the parts .* got b beside test, t",
        ),
        (["a/x.png", "b/y.png"], "expected a class of two images or more"),
        (["x.png"], "expected two images or more"),
        (["train/cat/0.png", "extra/1.png"], "expected the parts train and test .* got extra"),
    ],
)
def test_rejects_folders_without_class_structure(tmp_path, paths, message):
    put(tmp_path / "set", paths)
    with raises(DataError, match=message):
        load_images(tmp_path / "set")


@pytest.mark.parametrize("above", ["", "train/"])
def test_images_outside_class_folders_are_unlabelled(tmp_path, above):
    paths = [*(f"{above}{name}.png" for name in "badc"), *(["test/e.png"] if above else [])]
    with pytest.warns(DataWarning, match=f"{len(paths)} images are in no class folder"):
        split = load_images(put(tmp_path / "set", paths), test=None if above else 0.5)
    assert split.train.classes == ()
    assert str(split.train) == f"Images({len(split.train)} of 2 × 2 × 3, no labels)"
    found = {}
    for _, part in split.parts():
        assert (part.labels == -1).all()
        found |= dict(zip(part.names.tolist(), numbers(part), strict=True))
    assert found == {path: number for number, path in enumerate(paths)}
    assert len(split.test) == (1 if above else 2)


@pytest.mark.filterwarnings("error")
def test_labelled_false_ignores_class_folders(tmp_path):
    paths = ["2019/a.png", "2019/03/b.png", "c.png", "2020/d.png"]
    split = load_images(put(tmp_path / "set", paths), test=0.25, labelled=False)
    assert split.train.classes == ()
    assert (len(split.train), len(split.test)) == (3, 1)
    assert sorted([*split.train.names, *split.test.names]) == sorted(paths)
    (tmp_path / "set/c.png").unlink()
    assert load_images(tmp_path / "set", test=0.25).train.classes == ("2019", "2020")


def test_warns_of_classes_missing_in_training(tmp_path):
    put(tmp_path, ["train/b/0.png", "test/a/1.png", "test/b/2.png"])
    with pytest.warns(DataWarning, match="1 classes have no image in training"):
        split = load_images(tmp_path)
    assert split.train.classes == ("a", "b")
    assert split.train.labels.tolist() == [1]
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images(tmp_path, test=0.5)


def test_follows_symbolic_links_and_rejects_loops(tmp_path):
    put(tmp_path / "elsewhere", ["a/0.png", "b/1.png"])
    put(tmp_path / "set", ["test/a/2.png"])
    (tmp_path / "set" / "train").symlink_to(tmp_path / "elsewhere")
    split = load_images(tmp_path / "set")
    assert [image[0, 0, 0] for image in split.train.images] == [0, 1]
    (tmp_path / "elsewhere" / "c").symlink_to(tmp_path / "set")
    with raises(DataError, match="symbolic link loop"):
        load_images(tmp_path / "set")


def tiny(folder):
    """Tiny ImageNet in its published layout, with two classes."""
    paths = [f"train/{n}/images/{n}_{i}.JPEG" for n in ("n02", "n01") for i in range(3)]
    paths += [f"val/images/val_{i}.JPEG" for i in (0, 1, 10, 2)] + ["test/images/test_0.JPEG"]
    put(folder, paths)
    table = [("val_0.JPEG", "n02"), ("val_1.JPEG", "n01"), ("val_2.JPEG", "n02")]
    table.append(("val_10.JPEG", "n01"))
    rows = "".join(f"{name}\t{number}\t0\t0\t1\t1\n" for name, number in table)
    texts = {
        "val/val_annotations.txt": rows,
        "wnids.txt": "n02\nn01\n",
        "train/n01/n01_boxes.txt": "n01_0.JPEG\t0\t0\t1\t1\n",
        "words.txt": "n01\tgoldfish, Carassius\nn02\tcrane\nn03\tx\n",
    }
    return fill(folder, texts)


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
def test_reads_tiny_imagenet(tmp_path, monkeypatch):
    monkeypatch.setattr("crl_jax.data._images._decode.FORMATS", {".jpeg": "PNG"})
    monkeypatch.setattr("crl_jax.data._images._decode._DECODERS", ("PNG",))
    split = load_images(tiny(tmp_path / "tiny-imagenet-200").parent)
    assert split.train.classes == ("goldfish, Carassius", "crane")
    assert numbers(split.train) == [3, 4, 5, 0, 1, 2]
    assert split.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert numbers(split.test) == [6, 7, 8, 9]
    assert split.test.labels.tolist() == [1, 0, 0, 1]
    assert split.unlabelled is None
    (tmp_path / "tiny-imagenet-200" / "words.txt").write_text("n01\tcrane\nn02\tcrane\n")
    assert load_images(tmp_path).test.classes == ("crane (n01)", "crane (n02)")
    (tmp_path / "tiny-imagenet-200" / "words.txt").unlink()
    assert load_images(tmp_path).test.classes == ("n01", "n02")


@pytest.mark.filterwarnings("error")
def test_tiny_imagenet_requires_validation_labels(tmp_path):
    tiny(tmp_path)
    table = tmp_path / "val" / "val_annotations.txt"
    for text, got in (("", "None"), ("val_0.JPEG\tn09\t0\n", "n09")):
        table.write_text(text)
        with raises(DataError, match=rf"val_0.JPEG: expected a line .* 2 classes .* got {got}"):
            load_images(tmp_path)
    with raises(ValueError, match="`test` requires images without a test part"):
        load_images(tiny(tmp_path), test=0.5)


@settings(deadline=None, max_examples=30)
@given(
    st.dictionaries(
        st.text("ab-_é. ", min_size=1, max_size=4).filter(lambda name: name.strip(". ") == name),
        st.sets(st.text("xyZ0-", min_size=1, max_size=4), min_size=1, max_size=4),
        min_size=2,
        max_size=4,
    )
)
def test_every_image_has_the_class_of_its_folder(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("named")
    paths = [f"{name}/{file}.png" for name, files in names.items() for file in files]
    put(folder, [f"train/{path}" for path in paths] + ["test/" + paths[0]])
    split = load_images(folder, keep=False)
    assert split.train.classes == tuple(sorted(names))
    found = list(zip(numbers(split.train), split.train.labels.tolist(), strict=True))
    expected = [(i, sorted(names).index(path.split("/")[0])) for i, path in enumerate(paths)]
    assert sorted(found) == expected
    order = [tuple(paths[number].split("/")) for number, _ in found]
    assert order == sorted(order)


def test_warns_of_single_enclosing_folder(tmp_path):
    put(tmp_path, [f"cats/{year}/{i}.png" for year in (2020, 2021) for i in range(5)])
    with pytest.warns(DataWarning, match="all images are in cats; the folders in it are the 2 cl"):
        assert load_images(tmp_path).train.classes == ("2020", "2021")


def test_accepts_single_unlabelled_image(tmp_path):
    split = load_images(put(tmp_path / "set", ["x.png"]), labelled=False)
    assert (len(split.train), len(split.test)) == (1, 0)
    split = load_images((np.zeros((1, 4, 4), np.uint8), [0]), labelled=False)
    assert (len(split.train), len(split.test)) == (1, 0)
