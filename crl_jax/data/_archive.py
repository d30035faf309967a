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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ._download import cache_folder
from ._errors import DataError, printable, warn_if
from ._readers import missing_file_message

Encoding = Literal["utf-8", "latin-1"]

_MAX_FILE_BYTES = 4 << 30  # the largest file of all supported releases, STL-10's, has 2.6 GiB
_MAX_TOTAL_BYTES = 64 << 30
_MAX_FILES = 10_000_000
_READ_ERRORS = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip, or an unsupported compression method
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
    """Files below the folder ``root``, which messages name ``origin``.

    ``sizes`` has the bytes of each file by its path relative to ``root``, in path order.
    """

    root: Path
    origin: Path
    sizes: dict[str, int]

    def where(self, name: str) -> str:
        """Path of a file as messages name it."""
        return f"{self.origin}/{printable(name)}".rstrip("/")

    def read(self, name: str, max_bytes: int) -> bytes:
        """Reads a file; raises ``DataError`` if it is larger than ``max_bytes``."""
        if self.sizes[name] > max_bytes:
            raise DataError(
                f"{self.where(name)}: expected at most {max_bytes} bytes, got {self.sizes[name]}."
            )
        return (self.root / name).read_bytes()


@contextmanager
def open_tree(path: Path, cache: str | Path | None = None) -> Iterator[FileTree]:
    """Opens a folder, or unpacks a zip or tar archive to a folder that is deleted on exit.

    That folder is in the folder of downloads, see :func:`crl_jax.data.download`, or the system's
    temporary folder if it is not writable. Raises ``FileNotFoundError`` if ``path`` does not exist,
    and ``DataError`` if it is neither a folder nor a valid archive, or an archive is not safe.
    """
    require_exists(path)
    if path.is_dir():
        yield FileTree(path, path, {name: status.st_size for name, status in _walk(path)})
        return
    if not path.is_file():  # opening a pipe would wait for a writer
        raise DataError(f"{path}: expected a folder, a zip or a tar archive, got a special file.")
    with _temporary_folder(cache_folder(cache)) as root:
        _unpack(path, root)
        yield FileTree(root, path, {name: status.st_size for name, status in _walk(root)})


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
        raise FileNotFoundError(missing_file_message(path) + hint)


def read_text(path: Path, encoding: Encoding | None = "utf-8") -> str:
    """Reads a text file, see :func:`decode_text`; a gzip file is decompressed."""
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
    """Decodes text and drops a byte order mark; ``DataError`` names the line ``where`` it fails.

    With None, byte order marks of UTF-16 and UTF-32 are detected, and bytes that are not UTF-8 are
    read as Latin-1 with a warning.
    """
    marks = _BYTE_ORDER_MARKS.items() if encoding is None else ()
    marked = next((name for mark, name in marks if content.startswith(mark)), None)
    try:
        text = content.decode(marked or ("latin-1" if encoding == "latin-1" else "utf-8-sig"))
    except UnicodeDecodeError as error:
        if marked:
            raise DataError(f"{where}: expected {marked} text, got {error.reason}.") from None
        _refuse_binary(content, where)
        line = content.count(b"\n", 0, error.start) + 1
        if encoding is not None:
            byte = content[error.start]
            raise DataError(
                f"{where}:{line}: expected UTF-8 text, got the byte {byte:#04x}."
            ) from None
        warn_if(1, f"line {line} is not UTF-8, and the file was read as Latin-1", origin=where)
        return content.decode("latin-1")
    if "\0" in text and not marked:
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


def _unpack(path: Path, root: Path) -> None:
    """Unpacks a zip or tar archive below ``root``."""
    with _data_errors(path):
        with path.open("rb") as file:
            is_zip = file.read(2) == b"PK"
        if not is_zip and not tarfile.is_tarfile(path):
            raise DataError(f"{path}: expected a folder, a zip or a tar archive.")
        with zipfile.ZipFile(path) if is_zip else tarfile.open(path) as archive:
            members = _checked(path, archive)
            # A tar archive is read once, and of a zip archive all members are checked first.
            for name, size, open_member in list(members) if is_zip else members:
                target = root / name
                with _data_errors(f"{path}/{printable(name)}"):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with open_member() as source, target.open("xb") as file:
                        shutil.copyfileobj(source, file, 1 << 20)
                    if target.stat().st_size != size:
                        raise EOFError(f"{target.stat().st_size} of {size} bytes")


def _checked(
    path: Path, archive: zipfile.ZipFile | tarfile.TarFile
) -> Iterator[tuple[str, int, Callable[[], Any]]]:
    """Yields the path, size and opener of each safe member."""
    seen: set[str] = set()
    total = 0
    for raw, size, is_regular, open_member in _members(archive):
        name = raw.removeprefix("./")
        parts, where = name.split("/"), f"{path}/{printable(name)}"
        if not is_regular:
            raise DataError(f"{where}: expected a regular file, got a link or a device.")
        if size > _MAX_FILE_BYTES:
            raise DataError(f"{where}: expected at most {_MAX_FILE_BYTES} bytes, got {size}.")
        if "\\" in name or ":" in parts[0] or {"", ".."} & {*parts}:
            raise DataError(f"{path}: expected paths within the archive, got {raw!r}.")
        if name in seen:
            raise DataError(f"{path}: expected each path once, got {printable(name)} twice.")
        if len(seen) == _MAX_FILES:
            raise DataError(f"{path}: expected at most {_MAX_FILES} files.")
        seen.add(name)
        total += size
        if total > _MAX_TOTAL_BYTES:
            raise DataError(f"{path}: expected at most {_MAX_TOTAL_BYTES} bytes in all files.")
        yield name, size, open_member


def _members(
    archive: zipfile.ZipFile | tarfile.TarFile,
) -> Iterator[tuple[str, int, bool, Callable[[], Any]]]:
    """Yields the name, size, whether it is a regular file, and opener of each member."""
    if isinstance(archive, zipfile.ZipFile):
        for info in archive.infolist():
            is_regular = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            if not info.filename.endswith("/"):  # `is_dir` fails for an empty name
                yield info.filename, info.file_size, is_regular, partial(archive.open, info)
        return
    while (info := archive.next()) is not None:
        archive.members = []  # pyright: ignore[reportAttributeAccessIssue]: grows
        if not info.isdir():
            yield info.name, info.size, info.isreg(), partial(archive.extractfile, info)


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


def _walk(
    folder: Path, prefix: str = "", above: frozenset[Path] = frozenset()
) -> Iterator[tuple[str, os.stat_result]]:
    """Yields all files below a folder in path order; links are followed, loops refused."""
    real = folder.resolve()
    if real in above:
        raise DataError(f"{folder}: symbolic link loop.")
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir():
                yield from _walk(Path(entry), f"{prefix}{entry.name}/", above | {real})
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                raise DataError(
                    f"{entry.path}: expected a file, got a symbolic link to a missing one."
                ) from None
            if not stat.S_ISREG(status.st_mode):
                raise DataError(f"{entry.path}: expected a regular file, got a special file.")
            yield prefix + entry.name, status


@contextmanager
def _data_errors(where: str | Path) -> Iterator[None]:
    """Converts errors of reading a broken archive to ``DataError``."""
    try:
        yield
    except _READ_ERRORS as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(f"{where}: not readable ({error or type(error).__name__}).") from error
