"""Small files, folders, archives and images, for tests of readers."""

import contextlib
import io
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image


@contextlib.contextmanager
def space(n):
    """Limits files that the body writes to ``n`` bytes, to simulate a full disk."""
    resource = pytest.importorskip("resource")  # Windows has none
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def write(path, content=""):
    """Writes text or bytes to a file, whose folder is created, and returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def fill(folder, files):
    """Writes files, named relative to a folder, and returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write(folder / name, content)
    return folder


def zipped(files, mode=0):
    """Returns a zip archive; ``mode`` is the type and the permissions of all members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def tarred(files, mode="w", kind=tarfile.REGTYPE, link=""):
    """Returns a tar archive, whose members may be links or devices."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.type, member.linkname = len(content), kind, link
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def packed(path, files):
    """Writes a zip or tar archive, depending on the file extension."""
    modes = {".tar": "w", ".gz": "w:gz", ".tgz": "w:gz", ".bz2": "w:bz2", ".xz": "w:xz"}
    content = zipped(files) if path.suffix == ".zip" else tarred(files, modes[path.suffix])
    return write(path, content)


def encoded(pixels, form="PNG", **options):
    """Encodes an array or an image; a number gives 2 × 2 grey pixels of this value."""
    if isinstance(pixels, int):
        pixels = np.full((2, 2), pixels, np.uint8)
    image = Image.fromarray(pixels) if isinstance(pixels, np.ndarray) else pixels
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def warned(function, *args, **kwargs):
    """Calls a function and returns its result and the texts of its warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = function(*args, **kwargs)
    return result, [str(warning.message) for warning in caught]
