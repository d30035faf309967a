"""Datasets from the net: downloaded, checked against pinned values, then unpacked."""

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

from ._datasets import DATASETS, Dataset
from ._errors import DataError
from ._images._releases import IMAGE_SETS, ImageSet

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def download(name: str, *, cache: str | Path | None = None) -> Path:
    """The file of a dataset in :data:`DATASETS`, downloaded unless the cache has it.

    Of a set in :data:`IMAGE_SETS` it is the archive. It is downloaded anew once the entry names
    another archive: by its address, checksum or member.

    Read the licence first, on the page that the entry names as its ``home``. MovieLens belongs to
    GroupLens, which forbids to pass it on.

    Args:
      name: Such as ``movielens:100k``.
      cache: The folder to keep it in. By default it is the environment variable
        ``CRL_JAX_CACHE``, else ``~/.cache/crl_jax``.

    Returns:
      The path of the file, such as ``u.data``.

    Raises:
      ValueError: If there is no such dataset.
      DataError: If what comes differs from the entry in a single byte.
      ConnectionError: If it cannot be downloaded. There is no second try.
    """
    folder = cache_folder(cache) / name.replace(":", "-")
    if name in IMAGE_SETS:
        return fetch_archive(IMAGE_SETS[name], folder)
    if name not in DATASETS:
        names = ", ".join([*DATASETS, *IMAGE_SETS])
        raise ValueError(f"`name` must be one of {names}, got {name!r}.")
    return fetch(DATASETS[name], folder)


def cache_folder(cache: str | Path | None) -> Path:
    """The folder that is asked for, or that the environment names, or one of the user's."""
    return Path(cache or os.environ.get("CRL_JAX_CACHE") or Path.home() / ".cache" / "crl_jax")


def fetch(dataset: Dataset, folder: Path) -> Path:
    """The wanted file of a dataset, in ``folder``: whole, or not there at all."""
    target = folder / Path(dataset.member).name
    note = target.with_name(f".{target.name}.origin")
    if _is_of(dataset, target, note):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, for a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        zipped, unpacked = Path(scratch, "archive.zip"), Path(scratch, "member")
        _download(dataset, zipped)
        _unpack(dataset, zipped, unpacked)
        noted = Path(scratch, "origin")
        noted.write_bytes(_origin(dataset))
        target.unlink(missing_ok=True)  # a note never stands beside a file that it is not about
        noted.replace(note)
        unpacked.replace(target)
    return target


def fetch_archive(archive: ImageSet, folder: Path) -> Path:
    """The archive as it is, in ``folder``: whole, or not there at all.

    One that was put there by hand is taken if its checksum is right.
    """
    target = folder / Path(urlsplit(archive.url).path).name
    note = target.with_name(f".{target.name}.origin")
    origin = f"{archive.url} with SHA-256 {archive.sha256}\n".encode()
    there = target.is_file() and target.stat().st_size == archive.size
    if there and note.is_file() and note.read_bytes() == origin:
        return target
    right = there and _sha256(target) == archive.sha256
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        if not right:
            arrived = Path(scratch, "archive")
            _download(archive, arrived)
            arrived.replace(target)
        noted = Path(scratch, "origin")
        noted.write_bytes(origin)
        noted.replace(note)
    return target


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _is_of(dataset: Dataset, target: Path, note: Path) -> bool:
    """Whether the file is what the entry names, by its size and by the note of its origin.

    A file without a note was there before notes were written, and is taken for what it should be.
    """
    if not target.is_file() or target.stat().st_size != dataset.member_size:
        return False
    return not note.exists() or note.read_bytes() == _origin(dataset)


def _origin(dataset: Dataset) -> bytes:
    return f"{dataset.member} of {dataset.url} with SHA-256 {dataset.sha256}\n".encode()


def _download(dataset: Dataset | ImageSet, to: Path) -> None:
    """Writes the archive; its checksum is right when this returns."""
    digest, size = hashlib.sha256(), 0
    try:
        with (
            urllib.request.urlopen(dataset.url, timeout=_TIMEOUT_SECONDS) as source,
            to.open("wb") as file,
        ):
            while (block := source.read(_BLOCK)) and size <= dataset.size:
                file.write(block)
                digest.update(block)
                size += len(block)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"{dataset.url}: not downloaded ({error}). Fetch and unpack it by hand, "
            "and give the path of the folder instead."
        ) from error
    if size != dataset.size or digest.hexdigest() != dataset.sha256:
        raise DataError(
            f"{dataset.url}: expected {dataset.size} bytes with SHA-256 {dataset.sha256}, "
            f"got {'more than ' * (size > dataset.size)}{min(size, dataset.size)} bytes "
            f"with {digest.hexdigest()}."
        )


def _unpack(dataset: Dataset, zipped: Path, to: Path) -> None:
    """Writes the one wanted member; no name inside the archive decides where."""
    try:
        with zipfile.ZipFile(zipped) as content:
            if dataset.member not in (names := content.namelist()):
                raise DataError(
                    f"{dataset.url}: expected the member {dataset.member}, got {_listed(names)}."
                )
            info = content.getinfo(dataset.member)
            # The declared size bounds what is read below, so a bomb cannot go off.
            if info.file_size != dataset.member_size:
                raise DataError(
                    f"{dataset.url}: expected {dataset.member_size} bytes in "
                    f"{dataset.member}, got {info.file_size}."
                )
            with content.open(info) as source, to.open("wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{dataset.url}: expected a zip archive, got {error}.") from None
    if to.stat().st_size != dataset.member_size:
        raise DataError(
            f"{dataset.url}: expected {dataset.member_size} bytes in {dataset.member}, "
            f"got {to.stat().st_size}."
        )


def _listed(names: list[str]) -> str:
    """The first names of a list."""
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "") or "none"
