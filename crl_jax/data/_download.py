"""MovieLens from GroupLens: downloaded, checked against pinned values, then unpacked."""

import hashlib
import http.client
import os
import shutil
import tempfile
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ._outcomes import DataError

_BLOCK = 1 << 20
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Archive:
    """A zip archive on the net and the one file wanted from it.

    Attributes:
      url: Where it is.
      sha256: Of the archive.
      size: Of the archive, in bytes.
      member: The file's name inside.
      member_size: The file's unpacked size, in bytes.
    """

    url: str
    sha256: str
    size: int
    member: str
    member_size: int


_GROUPLENS = "https://files.grouplens.org/datasets/movielens"

# Frozen releases. Archive sizes and SHA-256 are those TensorFlow Datasets pins in
# url_checksums/movielens.txt.
MOVIELENS = {
    "100k": Archive(
        f"{_GROUPLENS}/ml-100k.zip",
        "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
        4_924_029,
        "ml-100k/u.data",
        1_979_173,
    ),
    "1m": Archive(
        f"{_GROUPLENS}/ml-1m.zip",
        "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
        5_917_549,
        "ml-1m/ratings.dat",
        24_594_131,
    ),
    "20m": Archive(
        f"{_GROUPLENS}/ml-20m.zip",
        "96f243c338a8665f6bcc89c53edf6ee39162a846940de6b7c8c48aeada765ff3",
        198_702_078,
        "ml-20m/ratings.csv",
        533_444_411,
    ),
    "25m": Archive(
        f"{_GROUPLENS}/ml-25m.zip",
        "8b21cfb7eb1706b4ec0aac894368d90acf26ebdfb6aced3ebd4ad5bd1eb9c6aa",
        261_978_986,
        "ml-25m/ratings.csv",
        678_260_987,
    ),
}


def download_movielens(name: str, *, cache: str | Path | None = None) -> Path:
    """The ratings file of a MovieLens release, downloaded unless the cache has it.

    The data belong to GroupLens and come under its licence
    (https://grouplens.org/datasets/movielens), which forbids to pass them on.

    Args:
      name: ``100k``, ``1m``, ``20m`` or ``25m``.
      cache: The folder to keep it in; by default the environment variable
        ``CRL_JAX_CACHE``, else ``~/.cache/crl_jax``.

    Returns:
      The path of ``u.data``, ``ratings.dat`` or ``ratings.csv``.

    Raises:
      ValueError: If there is no such release.
      DataError: If what comes is not the release, byte for byte.
      ConnectionError: If it cannot be downloaded. There is no second try.
    """
    if name not in MOVIELENS:
        raise ValueError(f"`name` must be one of {', '.join(MOVIELENS)}, got {name!r}.")
    folder = cache or os.environ.get("CRL_JAX_CACHE") or Path.home() / ".cache" / "crl_jax"
    return fetch(MOVIELENS[name], Path(folder) / f"movielens-{name}")


def fetch(archive: Archive, folder: Path) -> Path:
    """The wanted file of an archive, in ``folder``: whole, or not there at all."""
    target = folder / Path(archive.member).name
    if target.is_file() and target.stat().st_size == archive.member_size:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the target, for a rename is atomic only within one file system.
    with tempfile.TemporaryDirectory(prefix=".part-", dir=folder) as scratch:
        zipped, unpacked = Path(scratch, "archive.zip"), Path(scratch, "member")
        _download(archive, zipped)
        _unpack(archive, zipped, unpacked)
        unpacked.replace(target)
    return target


def _download(archive: Archive, to: Path) -> None:
    """Writes the archive; its checksum is right when this returns."""
    digest, size = hashlib.sha256(), 0
    try:
        with (
            urllib.request.urlopen(archive.url, timeout=_TIMEOUT_SECONDS) as source,
            to.open("wb") as file,
        ):
            while (block := source.read(_BLOCK)) and size <= archive.size:
                file.write(block)
                digest.update(block)
                size += len(block)
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(
            f"{archive.url}: not downloaded ({error}). Fetch and unpack it by hand, "
            "and give the path of the folder instead."
        ) from error
    if size != archive.size or digest.hexdigest() != archive.sha256:
        raise DataError(
            f"{archive.url}: expected {archive.size} bytes with SHA-256 {archive.sha256}, "
            f"got {'more than ' * (size > archive.size)}{min(size, archive.size)} bytes "
            f"with {digest.hexdigest()}."
        )


def _unpack(archive: Archive, zipped: Path, to: Path) -> None:
    """Writes the one wanted member; no name inside the archive decides where."""
    try:
        with zipfile.ZipFile(zipped) as content:
            info = content.getinfo(archive.member)
            # The declared size bounds what is read below, so a bomb cannot go off.
            if info.file_size != archive.member_size:
                raise DataError(
                    f"{archive.url}: expected {archive.member_size} bytes in "
                    f"{archive.member}, got {info.file_size}."
                )
            with content.open(info) as source, to.open("wb") as file:
                shutil.copyfileobj(source, file, _BLOCK)
    except KeyError:
        raise DataError(f"{archive.url}: expected the member {archive.member}, got none.") from None
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{archive.url}: expected a zip archive, got {error}.") from None
    if to.stat().st_size != archive.member_size:
        raise DataError(
            f"{archive.url}: expected {archive.member_size} bytes in {archive.member}, "
            f"got {to.stat().st_size}."
        )
