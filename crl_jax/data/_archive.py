"""Folders, archives and text files, read within size limits.

An archive is unpacked to a temporary folder, so that every reader reads folders. Paths that leave
the archive, links, devices and oversized members are refused before they are written.
"""

import gzip
import hashlib
import json
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ._download import cache_folder
from ._errors import DataError, warn_if
from ._readers import say_missing

Encoding = Literal["utf-8", "latin-1"]

_MAX_FILE_BYTES = 4 << 30  # the largest file of all supported releases, STL-10's, has 2.6 GiB
_MAX_TOTAL_BYTES = 64 << 30
_MAX_FILES = 10_000_000
_READ_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip
    NotImplementedError,  # an unsupported compression method
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)
_BINARY_SIGNATURES = {
    b"PAR1": "a Parquet file",
    b"PK\x03\x04": "a zip archive",
    b"BZh": "a bzip2 file",
    b"\xfd7zXZ\0": "an xz file",
    b"\x28\xb5\x2f\xfd": "a Zstandard file",
    b"%PDF": "a PDF file",
    b"SQLite": "an SQLite database",
}
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


@dataclass(frozen=True)
class FileTree:
    """Files below a folder.

    Attributes:
      root: The folder on disk.
      origin: The folder or archive that messages name.
      sizes: Size of each file in bytes by its path relative to ``root``, in path order.
    """

    root: Path
    origin: Path
    sizes: dict[str, int]

    def where(self, name: str) -> str:
        """Path of a file as messages name it."""
        return f"{self.origin}/{name}".rstrip("/")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Reads a file.

        Raises:
          DataError: If it is larger than ``max_bytes``.
        """
        if self.sizes[name] > max_bytes:
            raise DataError(
                f"{self.where(name)}: expected at most {max_bytes} bytes, got {self.sizes[name]}."
            )
        return (self.root / name).read_bytes()


@contextmanager
def open_tree(path: Path, cache: str | Path | None = None) -> Iterator[FileTree]:
    """Opens a folder, or unpacks an archive to a folder that is deleted on exit.

    Args:
      path: A folder, or a zip or tar archive.
      cache: Folder to unpack to, see :func:`crl_jax.data.download`; the system's temporary folder
        if it is not writable.

    Raises:
      FileNotFoundError: If ``path`` does not exist.
      DataError: If it is neither a folder nor a valid archive, or an archive is not safe.
    """
    require_exists(path)
    if path.is_dir():
        yield FileTree(path, path, {name: status.st_size for name, status in _walk(path)})
        return
    if not path.is_file():  # opening a pipe would wait for a writer
        raise DataError(f"{path}: expected a folder, a zip or a tar archive, got a special file.")
    with _temporary_folder(cache_folder(cache)) as root:
        yield FileTree(root, path, _unpack(path, root))


def fingerprint(path: Path) -> str:
    """Digest of the sizes and modification times of an archive or of all files of a folder."""
    if path.is_dir():
        files = [(name, status.st_size, status.st_mtime_ns) for name, status in _walk(path)]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()
    status = path.stat()
    return f"{status.st_size} bytes of {status.st_mtime_ns}"


def require_exists(path: Path, hint: str = "") -> None:
    """Raises ``FileNotFoundError`` and lists the nearest folder if ``path`` is absent."""
    if not path.exists():
        raise FileNotFoundError(say_missing(path) + hint)


def read_text(path: Path, encoding: Encoding | None = "utf-8") -> str:
    """Reads a text file, see :func:`decode_text`; a gzip file is decompressed.

    Raises:
      FileNotFoundError: If there is no such file.
      DataError: If it is no regular file, or not text.
    """
    require_exists(path)
    if not path.is_file():
        kind = "a folder" if path.is_dir() else "a special file"
        raise DataError(f"{path}: expected a regular file, got {kind}.")
    content = path.read_bytes()
    if content.startswith(b"\x1f\x8b"):
        with _data_errors(path), gzip.open(path) as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    if len(content) > _MAX_FILE_BYTES:
        raise DataError(f"{path}: expected at most {_MAX_FILE_BYTES} bytes of text, got more.")
    return decode_text(content, str(path), encoding)


def decode_text(content: bytes, where: str, encoding: Encoding | None = "utf-8") -> str:
    """Decodes text and drops a byte order mark.

    Args:
      content: The bytes.
      where: Path for messages.
      encoding: None detects UTF-16 and UTF-32 by their byte order marks, and falls back from UTF-8
        to Latin-1 with a warning.

    Raises:
      DataError: If the bytes are not text in the encoding; the message has the line.
    """
    if encoding is None:
        for mark, name in _BYTE_ORDER_MARKS.items():
            if content.startswith(mark):
                try:
                    return content.decode(name)
                except UnicodeDecodeError as error:
                    raise DataError(f"{where}: expected {name} text, got {error.reason}.") from None
    try:
        text = content.decode("latin-1" if encoding == "latin-1" else "utf-8-sig")
    except UnicodeDecodeError as error:
        _refuse_binary(content, where)
        line = content.count(b"\n", 0, error.start) + 1
        if encoding is not None:
            byte = content[error.start]
            raise DataError(
                f"{where}:{line}: expected UTF-8 text, got the byte {byte:#04x}."
            ) from None
        warn_if(1, f"line {line} is not UTF-8, and the file was read as Latin-1", of=where)
        return content.decode("latin-1")
    if "\0" in text:
        _refuse_binary(content, where)
    return text


def _refuse_binary(content: bytes, where: str) -> None:
    """Raises ``DataError`` if the bytes have the signature of a binary file or a NUL."""
    for signature, kind in _BINARY_SIGNATURES.items():
        if content.startswith(signature):
            raise DataError(f"{where}: expected a text file, got {kind}.")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise DataError(f"{where}:{line}: expected text, got binary data (a NUL byte).")


def _unpack(path: Path, root: Path) -> dict[str, int]:
    """Unpacks a zip or tar archive below ``root``; returns the sizes of its files in path order."""
    sizes: dict[str, int] = {}
    total = [0]

    def check(raw: str, size: int, is_regular: bool) -> str:
        """Returns the safe path of a member, or raises ``DataError``."""
        name = raw.removeprefix("./")
        parts = name.split("/")
        if not is_regular:
            raise DataError(f"{path}/{name}: expected a regular file, got a link or a device.")
        if size > _MAX_FILE_BYTES:
            raise DataError(f"{path}/{name}: expected at most {_MAX_FILE_BYTES} bytes, got {size}.")
        if "\\" in name or ":" in parts[0] or {"", ".."} & {*parts}:
            raise DataError(f"{path}: expected paths within the archive, got {raw!r}.")
        if name in sizes:
            raise DataError(f"{path}: expected each path once, got {name} twice.")
        if len(sizes) == _MAX_FILES:
            raise DataError(f"{path}: expected at most {_MAX_FILES} files.")
        sizes[name] = size
        total[0] += size
        if total[0] > _MAX_TOTAL_BYTES:
            raise DataError(f"{path}: expected at most {_MAX_TOTAL_BYTES} bytes in all files.")
        return name

    def write(name: str, source: Any) -> None:
        assert source is not None  # None for links only, which are refused
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
        if target.stat().st_size != sizes[name]:
            raise EOFError(f"{target.stat().st_size} of {sizes[name]} bytes")

    with _data_errors(path), path.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    if is_zip:
        with _data_errors(path), zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if not info.is_dir()]
            kinds = [stat.S_IFMT(info.external_attr >> 16) for info in members]
            names = [
                check(info.filename, info.file_size, kind in (0, stat.S_IFREG))
                for info, kind in zip(members, kinds)
            ]  # nothing is unpacked before all are checked
            for name, info in zip(names, members):
                with _data_errors(f"{path}/{name}"):
                    write(name, archive.open(info))
    else:
        with _data_errors(path):
            if not tarfile.is_tarfile(path):
                raise DataError(f"{path}: expected a folder, a zip or a tar archive.")
            with tarfile.open(path) as archive:
                while (info := archive.next()) is not None:
                    archive.members = []  # pyright: ignore[reportAttributeAccessIssue]: grows
                    if not info.isdir():
                        name = check(info.name, info.size, info.isreg())
                        with _data_errors(f"{path}/{name}"):
                            write(name, archive.extractfile(info))
    return {name: sizes[name] for name in sorted(sizes, key=_path_key)}


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    scratch, is_new = None, not parent.exists()
    with suppress(OSError):
        parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(prefix=".unpacked-", dir=parent)
    with scratch or tempfile.TemporaryDirectory(prefix="crl_jax-") as name:
        yield Path(name)
    if is_new:
        with suppress(OSError):  # not empty
            parent.rmdir()


def _path_key(name: str) -> list[str]:
    """Sort key: folders in order, and files in each."""
    return name.split("/")


def _walk(folder: Path) -> list[tuple[str, os.stat_result]]:
    """Lists all files below a folder; links are followed, loops and special files refused."""
    files: list[tuple[str, os.stat_result]] = []
    stack = [("", folder, frozenset[tuple[int, int]]())]
    while stack:
        prefix, current, ancestors = stack.pop()
        status = current.stat()
        inode = (status.st_dev, status.st_ino)
        if inode in ancestors:
            raise DataError(f"{current}: symbolic link loop.")
        with os.scandir(current) as entries:
            for entry in entries:
                if entry.is_dir():
                    stack.append((f"{prefix}{entry.name}/", Path(entry), ancestors | {inode}))
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    raise DataError(
                        f"{entry.path}: expected a file, got a symbolic link to a missing one."
                    ) from None
                if not stat.S_ISREG(status.st_mode):
                    raise DataError(f"{entry.path}: expected a regular file, got a special file.")
                files.append((prefix + entry.name, status))
    return sorted(files, key=lambda file: _path_key(file[0]))


@contextmanager
def _data_errors(where: str | Path) -> Iterator[None]:
    """Converts errors of reading a broken archive to ``DataError``."""
    try:
        yield
    except _READ_ERRORS as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(f"{where}: not readable ({error or type(error).__name__}).") from error
