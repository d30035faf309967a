"""Downloads of registered datasets, verified against pinned checksums."""

import http.client
import shutil
import tempfile
import urllib.request
import zipfile
from functools import partial
from os import environ
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .._checks import check_choice
from .._optional import import_optional
from ._datasets import DATASETS, IMAGE_SETS, Dataset, ImageSet
from ._errors import DataError

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


def download(name: str, *, cache: str | Path | None = None) -> Path:
    """Downloads a registered dataset unless the cache has it, and returns its path.

    A changed entry, with another URL, checksum or member, is downloaded again. Read the licence on
    the entry's ``home`` page first: GroupLens does not allow redistribution of MovieLens.

    Args:
      name: Name in :data:`DATASETS`, such as ``movielens:100k``, or in :data:`IMAGE_SETS`.
      cache: Cache folder; by default the environment variable ``CRL_JAX_CACHE``, else
        ``~/.cache/crl_jax``.

    Returns:
      Path of the file of interactions, such as ``u.data``, or of the archive of images.

    Raises:
      ValueError: If there is no such dataset.
      DataError: If the downloaded bytes differ from the entry.
      ConnectionError: If the download fails; it is not retried.
      ImportError: If pooch is not installed.
    """
    check_choice("name", name, [*DATASETS, *IMAGE_SETS])
    entry = DATASETS.get(name) or IMAGE_SETS[name]
    return fetch(entry, cache_folder(cache) / name.replace(":", "-"))


def cache_folder(cache: str | Path | None) -> Path:
    """Returns ``cache``, or the folder that the environment sets, or the user's default."""
    return Path(cache or environ.get("CRL_JAX_CACHE") or Path.home() / ".cache" / "crl_jax")


def fetch(entry: Dataset | ImageSet, folder: Path) -> Path:
    """Returns the file of an entry below ``folder``; it is downloaded and replaced atomically.

    A hidden file next to it records its origin, so that checksums are not computed again. An
    archive without this record is accepted if its checksum is right, a member if its size is.
    """
    is_member = isinstance(entry, Dataset)
    if is_member:
        target, size = folder / Path(entry.member).name, entry.member_size
    else:
        target, size = folder / Path(urlsplit(entry.url).path).name, entry.size
    part = f"{entry.member} of " if is_member else ""
    origin = f"{part}{entry.url} with SHA-256 {entry.sha256}\n"
    record = target.with_name(f".{target.name}.origin")
    has_size = target.is_file() and target.stat().st_size == size
    if has_size and (record.read_text() == origin if record.exists() else is_member):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # In the same folder: a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        new_record, member = Path(scratch, "origin"), Path(scratch, "member")
        new_record.write_text(origin)
        archive = Path(scratch, "archive.zip") if is_member else target
        _retrieve(entry, archive)
        if is_member:
            _extract_member(entry, archive, member)
            target.unlink(missing_ok=True)  # a record never describes another file
        new_record.replace(record)
        if is_member:
            member.replace(target)
    return target


def _retrieve(entry: Dataset | ImageSet, target: Path) -> None:
    """Downloads an archive to ``target`` unless a file with its checksum is there."""
    pooch = import_optional("pooch", "Downloads need pooch", "data")
    pooch.get_logger().setLevel("WARNING")
    try:
        pooch.retrieve(
            entry.url, f"sha256:{entry.sha256}", target.name, target.parent,
            downloader=partial(_receive, entry),
        )  # fmt: skip
    except DataError:
        raise
    except ValueError:  # another checksum
        raise DataError(
            f"{entry.url}: expected {entry.size} bytes with SHA-256 {entry.sha256}, "
            "got other bytes."
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"{entry.url}: not downloaded ({error}). Download and unpack it by hand, "
            "and use the path of the folder instead."
        ) from error


def _receive(entry: Dataset | ImageSet, url: str, path: str, _: Any) -> None:
    """Downloads exactly ``entry.size`` bytes.

    Pooch's own downloader has no limit, and undoes the content encoding that some servers declare
    for .tar.gz files, so that their checksums differ.
    """
    received = 0
    with urllib.request.urlopen(url, timeout=_TIMEOUT_SECONDS) as source, open(path, "wb") as file:
        while (block := source.read(_BLOCK)) and received <= entry.size:
            file.write(block)
            received += len(block)
    if received != entry.size:
        more = "more than " * (received > entry.size)
        raise DataError(
            f"{url}: expected {entry.size} bytes with SHA-256 {entry.sha256}, "
            f"got {more}{min(received, entry.size)} bytes."
        )


def _extract_member(dataset: Dataset, archive: Path, target: Path) -> None:
    """Writes one member of a zip archive to ``target``."""
    member, expected = dataset.member, dataset.member_size
    try:
        with zipfile.ZipFile(archive) as content:
            names = content.namelist()
            if member not in names:
                listed = ", ".join(names[:10]) + (", …" if len(names) > 10 else "") or "none"
                raise DataError(f"{dataset.url}: expected the member {member}, got {listed}.")
            size = content.getinfo(member).file_size  # bounds the bytes that are read
            if size == expected:
                with content.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, _BLOCK)
                size = target.stat().st_size
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{dataset.url}: expected a zip archive, got {error}.") from None
    if size != expected:
        raise DataError(f"{dataset.url}: expected {expected} bytes in {member}, got {size}.")
