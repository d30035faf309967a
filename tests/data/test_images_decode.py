"""Image files of all formats become arrays of one size; broken ones are reported by name."""

import io
import sys
import time
import zipfile
from contextlib import suppress

import numpy as np
import pytest
from _helpers.files import encoded, fill, write
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from crl_jax._threads import thread_map
from crl_jax.data import DataError, DataWarning, Images, load_images
from crl_jax.data._images._decode import resize, resize_square

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 6, 3), np.uint8)
GREY = RNG.integers(0, 256, (6, 6), np.uint8)


def put(folder, images, suffix=".png", **options):
    """Images as train/a/0.png, 1.png, …; the first one is also the test split."""
    form = Image.registered_extensions()[suffix.lower()]
    for number, image in enumerate([*images, images[0]]):
        content = image if isinstance(image, bytes) else encoded(image, form, **options)
        part = "train" if number < len(images) else "test"
        write(folder / part / "a" / f"{number}{suffix}", content)
    return folder


def write_and_load(folder, images, size=None, **options):
    return load_images(put(folder, images, **options), size=size).train.images


@pytest.mark.parametrize(
    "suffix", [".png", ".bmp", ".ppm", ".tif", ".tiff", ".webp", ".PNG", ".jpg", ".jpeg", ".JPEG"]
)
def test_decodes_every_file_format(tmp_path, suffix):
    options = {"lossless": True} if suffix == ".webp" else {}
    images = write_and_load(tmp_path, [Image.fromarray(COLOUR)], suffix=suffix, **options)
    if suffix.lower() in (".jpg", ".jpeg"):  # with losses, as Pillow decodes it
        with Image.open(tmp_path / "train" / "a" / f"0{suffix}") as image:
            np.testing.assert_array_equal(images, np.asarray(image)[None])
    else:
        np.testing.assert_array_equal(images, COLOUR[None])


def test_grey_images_keep_one_channel_unless_mixed(tmp_path):
    grey, colour = Image.fromarray(GREY), Image.fromarray(COLOUR)
    images = write_and_load(tmp_path / "grey", [grey, grey.rotate(90)])
    np.testing.assert_array_equal(images[..., 0], [GREY, np.rot90(GREY)])
    assert images.shape == (2, 6, 6, 1)
    for place, several in enumerate(([grey, colour, grey], [colour, grey])):
        images = write_and_load(tmp_path / str(place), several)
        for image, one in zip(images, several, strict=True):
            expected = COLOUR if one is colour else np.stack([GREY] * 3, -1)
            np.testing.assert_array_equal(image, expected)


PALETTE = Image.fromarray(COLOUR).quantize(16)
CLEAR = np.asarray(PALETTE) == PALETTE.getpixel((0, 0))
SEE_THROUGH = PALETTE.copy()
SEE_THROUGH.info["transparency"] = PALETTE.getpixel((0, 0))
RGBA = np.dstack([COLOUR, np.full((6, 6), 255, np.uint8)])
RGBA[0, :2] = (10, 20, 30, 0), (100, 0, 0, 51)  # clear, and a fifth of red
ON_WHITE = COLOUR.copy()
ON_WHITE[0, :2] = (255, 255, 255), (224, 204, 204)
CMYK = Image.fromarray(COLOUR).convert("CMYK")
MODES = {  # image and its pixels
    "palette": (PALETTE, PALETTE.convert("RGB")),
    "alpha": (Image.fromarray(RGBA), ON_WHITE),
    "see-through": (SEE_THROUGH, np.where(CLEAR[..., None], 255, PALETTE.convert("RGB"))),
    "bits": (Image.fromarray(GREY > 127), np.where(GREY > 127, 255, 0)),
    "grey-alpha": (Image.merge("LA", [Image.fromarray(GREY), Image.new("L", (6, 6))]), 255),
    "deep": (Image.fromarray(GREY.astype(np.uint16) * 257 + 100), GREY),
    "cmyk": (CMYK, CMYK.convert("RGB")),
}


@pytest.mark.parametrize("mode", MODES)
def test_converts_pillow_modes(tmp_path, mode):
    image, expected = MODES[mode]
    (found,) = write_and_load(tmp_path, [image], suffix=".tif" if mode == "cmyk" else ".png")
    found = found[..., 0] if found.shape[-1] == 1 else found
    np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))


def test_scales_16_bit_range_to_8_bits(tmp_path):
    deep = np.array([[0, 128, 129, 65535], [256, 257, 65406, 65407]], np.uint16)
    (found,) = write_and_load(tmp_path, [Image.fromarray(deep)])
    np.testing.assert_array_equal(found[..., 0], np.rint(deep * (255 / 65535)))


def test_applies_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was rotated
    image = Image.fromarray(COLOUR[:4])
    (found,) = write_and_load(tmp_path, [image], exif=exif)
    np.testing.assert_array_equal(found, np.rot90(COLOUR[:4], -1))
    np.testing.assert_array_equal(
        found, np.asarray(ImageOps.exif_transpose(Image.open(tmp_path / "train" / "a" / "0.png")))
    )


def test_mixed_sizes_require_size_argument(tmp_path):
    images = [Image.fromarray(COLOUR), Image.fromarray(COLOUR[:5])]
    with raises(DataError, match=r"`size` makes .*/0.png has 6 × 6 pixels, .*/1.png has 5 × 6"):
        load_images(put(tmp_path, images))
    assert load_images(tmp_path, size=4).train.images.shape == (2, 4, 4, 3)


def reference(image, size):
    """Antialiased resizing in float64: a triangle as wide as two new pixels, cut at the centre."""
    height, width = image.shape[:2]
    side, out = min(height, width), image.astype(np.float64)
    for axis, length in ((0, height), (1, width)):
        scale = side / size
        reach = max(scale, 1)
        centres = (length - side) / 2 + (np.arange(size) + 0.5) * scale
        distance = (np.arange(length) + 0.5 - centres[:, None]) / reach
        weights = np.maximum(0, 1 - np.abs(distance))
        out = np.moveaxis(
            np.tensordot(weights / weights.sum(1, keepdims=True), out, (1, axis)), 0, axis
        )
    return out


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(1, 24),
    st.sampled_from([1, 3]),
    st.randoms(),
)
def test_resize_matches_antialiased_centre_crop(height, width, size, channels, random):
    pixels = np.random.default_rng(random.randrange(99)).integers(
        0, 256, (1, height, width, channels), np.uint8
    )
    found = resize(pixels, size)
    assert found.shape == (1, size, size, channels)
    # Pillow rounds to 8 bits after each of the two directions.
    np.testing.assert_allclose(found[0], reference(pixels[0], size), atol=1.6)


def test_resize_crops_centre():
    stripes = np.zeros((1, 4, 12, 1), np.uint8)
    stripes[:, :, 4:8] = 255
    assert resize(stripes, 4).min() == 255
    assert resize(stripes, None) is stripes
    square = Image.fromarray(COLOUR)
    assert resize_square(square, 6) is square


def test_files_and_arrays_resize_equally(tmp_path):
    images = RNG.integers(0, 256, (3, 9, 5, 3), np.uint8)
    from_files = write_and_load(tmp_path, [Image.fromarray(image) for image in images], size=4)
    np.testing.assert_array_equal(from_files, resize(images, 4))
    in_memory = load_images((images, [0, 0, 0]), size=4, test=0.4)
    assert in_memory.train.images.shape == (2, 4, 4, 3)


@pytest.mark.parametrize("limit", [1, 100, 4 << 20])
def test_block_size_does_not_change_result(tmp_path, monkeypatch, limit):
    monkeypatch.setattr("crl_jax.data._images._decode._BLOCK_BYTES", limit)
    images = RNG.integers(0, 256, (150, 2, 2, 3), np.uint8)
    files = {f"a/{number:03}.png": encoded(image) for number, image in enumerate(images)}
    folder = fill(tmp_path / "set", files)
    split = load_images(folder)
    for part in (split.train, split.test):
        assert len(part) in (120, 30)
        index = [np.flatnonzero((images == one).all((1, 2, 3)))[0] for one in part.images]
        assert index == sorted(index)
    assert len(split.train) + len(split.test) == 150
    np.testing.assert_array_equal(
        load_images(folder, size=1).train.images, resize(split.train.images, 1)
    )


FRAMES = [Image.fromarray(GREY), Image.fromarray(GREY[::-1])]
ANIMATION = encoded(FRAMES[0], "GIF", save_all=True, append_images=FRAMES[1:])
GOOD = encoded(COLOUR)


@pytest.mark.parametrize(
    ("content", "suffix", "message"),
    [
        (b"", ".png", "not decoded"),
        (b"no image", ".jpg", "not decoded"),
        (GOOD[:-30], ".png", "not decoded"),
        (GOOD[:60] + b"????" + GOOD[64:], ".png", "not decoded"),
        (ANIMATION, ".gif", "expected one image, got several frames"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", ".png", "not decoded"),
        (
            encoded(GREY, "PCX"),
            ".png",
            "not decoded .*cannot identify",
        ),  # a format that is not supported
        (encoded(GREY).replace(b"IHDR", b"IDHR"), ".png", "not decoded"),
    ],
)
def test_reports_broken_file(tmp_path, content, suffix, message):
    put(tmp_path, [Image.fromarray(GREY)])
    write(tmp_path / "train" / "a" / f"9{suffix}", content)
    with raises(DataError, match=rf"train/a/9{suffix}: {message}"):
        load_images(tmp_path)


@settings(deadline=None, max_examples=60)
@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
def test_corrupted_byte_raises_data_error_or_decodes(tmp_path_factory, place, change):
    content = bytearray(GOOD)
    content[place] ^= change
    put(folder := tmp_path_factory.mktemp("changed"), [bytes(content)])
    with suppress(DataError):
        images = load_images(folder).train.images
        assert images.shape[0] == 1


DEEP = Image.fromarray(GREY.astype(np.float32))
LONG = Image.new("L", (1, 65_536))
SQUARE = Image.fromarray(GREY)


@pytest.mark.parametrize(
    ("image", "suffix", "limit", "message"),
    [
        (DEEP, ".tif", None, "expected 8 or 16 bits a channel, got the mode F"),
        (SQUARE, ".png", 35, r"0.png: (not decoded \(|expected at most 35 pixels, )"),
        (SQUARE, ".png", 10, r"0.png: not decoded \(Image size \(36 pixels\) exceeds"),
        (LONG, ".png", None, r"at most 65535 pixels a side, got 65536 × 1 pixels"),
    ],
    ids=["floats", "bomb", "larger bomb", "long"],
)
def test_rejects_oversized_and_unsupported_images_before_decoding(
    tmp_path, monkeypatch, image, suffix, limit, message
):
    put(tmp_path, [image], suffix)
    if limit is not None:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda *_: pytest.fail("decoded"))
    with raises(DataError, match=message):
        load_images(tmp_path)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_rejects_bomb_that_pillow_only_warns_of(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 35)
    with raises(DataError, match=r"0.png: expected at most 35 pixels, got 6 × 6 pixels"):
        write_and_load(tmp_path, [SQUARE])


def test_reports_out_of_memory(tmp_path, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr("crl_jax.data._images._decode.np.empty", full)
    with raises(DataError, match=r"fit in memory, got 2 .* 6 × 6 pixels. Reduce `size"):
        write_and_load(tmp_path, [Image.fromarray(GREY)])


def test_rejects_files_over_size_limit(tmp_path, monkeypatch):
    monkeypatch.setattr("crl_jax.data._images._decode._MAX_FILE_BYTES", 100)
    with raises(DataError, match=r"0.png: expected at most 100 bytes, got \d{3}"):
        write_and_load(tmp_path, [Image.fromarray(COLOUR)])


def test_pillow_is_optional(tmp_path, monkeypatch):
    put(tmp_path, [Image.fromarray(GREY)])
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with raises(ImportError, match=r"Pillow: pip install 'crl_jax\[data\]'"):
        load_images(tmp_path)
    assert isinstance(load_images("digits").train, Images)


@pytest.mark.parametrize("n_threads", [1, 3])
def test_thread_map_keeps_order_and_bounds_prefetch(monkeypatch, n_threads):
    monkeypatch.setattr("crl_jax._threads.cpu_count", lambda: n_threads)
    consumed = []

    def items(n):
        for i in range(n):
            consumed.append(i)
            yield i

    found = thread_map(lambda i: i * i, items(5000))
    assert next(found) == 0
    assert len(consumed) == 4 * n_threads + 1
    assert [0, *found] == [i * i for i in range(5000)]
    consumed.clear()
    with raises(ZeroDivisionError):
        list(thread_map(lambda i: 1 // (i - 70), items(100_000)))
    assert len(consumed) < 1000


def test_thread_map_stops_after_error(monkeypatch):
    monkeypatch.setattr("crl_jax._threads.cpu_count", lambda: 1)
    started = []

    def fail(i):
        started.append(i)
        time.sleep(0.05)
        raise KeyError(i)

    with raises(KeyError):
        list(thread_map(fail, range(5)))
    assert len(started) <= 2


@pytest.mark.data
def test_cifar10_as_class_folders(real_data, tmp_path):
    """Every 600th image of the real archive, in a separate archive."""
    with zipfile.ZipFile(real_data / "cifar10" / "cifar10-jpeg.zip") as whole:
        names = whole.namelist()
        kept = sorted(names)[::600]
        with zipfile.ZipFile(tmp_path / "some.zip", "w") as some:
            for name in reversed(kept):
                some.writestr(name, whole.read(name))
        assert len(names) == 60_000
        split = load_images(tmp_path)  # the folder of the archive
        classes = sorted({name.split("/")[1] for name in names})
        for part in ("train", "test"):
            images, of_part = getattr(split, part), [n for n in kept if n.startswith(part)]
            assert [images.classes[label] for label in images.labels] == [
                name.split("/")[1] for name in of_part
            ]
            for pixels, name in zip(images.images, of_part, strict=True):
                with Image.open(io.BytesIO(whole.read(name))) as image:
                    np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))
    assert split.train.classes == tuple(classes)
    assert split.train.images.shape[1:] == (32, 32, 3)


def test_reports_several_broken_files(tmp_path):
    put(tmp_path, [Image.fromarray(GREY)])
    fill(tmp_path / "train" / "a", {"x.png": b"", "y.png": b"no image"})
    with raises(DataError, match=r"2 images cannot be read: .*x.png.*empty.*y.png") as caught:
        load_images(tmp_path)
    assert "0x" not in str(caught.value)
    fill(tmp_path / "train" / "a", {f"z{i}.png": b"" for i in range(12)})
    with raises(DataError, match=r"^10 or more images cannot be read"):
        load_images(tmp_path)


@pytest.mark.parametrize("high", [4095, 4096])
def test_warns_of_dark_16_bit_images(tmp_path, high):
    deep = np.linspace(0, high, 36).astype(np.uint16).reshape(6, 6)
    put(tmp_path, [Image.fromarray(deep), Image.fromarray(deep // 2)])
    if high > 4095:
        assert load_images(tmp_path).train.images.max() == 16
        return
    with pytest.warns(DataWarning, match="images with 16 bits .* no value above 4095 of 65535"):
        load_images(tmp_path)
