"""The files of a folder, a zip or a tar archive: listed, and read in memory.

Nothing of an archive is written to disk. Its sizes are bounded before anything is read, and what
is neither a file nor a folder is refused, as is a path that leaves the archive.
"""

import hashlib
import json
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from ._errors import DataError
from ._readers import say_missing

_LARGEST = 4 << 30  # the largest file of all releases, of STL-10, has 2.6 GiB
_MOST = 10_000_000  # files in an archive
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,  # an encrypted zip
    NotImplementedError,  # packed in a way that Python does not know
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
)


@runtime_checkable
class _Readable(Protocol):
    def read(self, n_bytes: int, /) -> bytes: ...


class Content:
    """One file of a store, read from its start to its end.

    Attributes:
      name: As the store lists it.
      where: The path to name in messages.
      size: In bytes.
    """

    def __init__(self, name: str, where: str, size: int, file: _Readable) -> None:
        self.name, self.where, self.size = name, where, size
        self._file = file

    def read(self, n_bytes: int | None = None) -> bytes:
        """The next ``n_bytes``, by default the whole file.

        Raises:
          DataError: If there are fewer, or the archive is broken.
        """
        wanted = self.size if n_bytes is None else n_bytes
        with _said(self.where):
            got = self._file.read(wanted)
        if len(got) != wanted:
            raise DataError(f"{self.where}: expected {wanted} more bytes, got {len(got)}.")
        return got


class Store(ABC):
    """Files by their names, which have ``/`` between folders.

    Attributes:
      origin: The path of the folder or archive.
      sizes: The size of every file in bytes, in the order of their paths.
    """

    origin: Path
    sizes: dict[str, int]
    _reading: Generator[Content, None, None] | None = None

    def where(self, name: str) -> str:
        """The path of a file for messages."""
        return f"{self.origin}/{name}".rstrip("/")

    def read(self, name: str, largest: int) -> bytes:
        """One file, which must not be larger than that."""
        if self.sizes[name] > largest:
            raise DataError(
                f"{self.where(name)}: expected at most {largest} bytes, got {self.sizes[name]}."
            )
        (whole,) = (content.read() for content in self.each([name]))
        return whole

    def each(self, names: Collection[str]) -> Iterator[Content]:
        """The files in an order that is quick to read; each is good until the next one."""
        self.close()
        self._reading = self._each(names)
        return self._reading

    def close(self) -> None:
        """Closes the file that is being read."""
        if self._reading is not None:
            self._reading.close()

    @abstractmethod
    def _each(self, names: Collection[str]) -> Generator[Content, None, None]: ...


class _Folder(Store):
    def __init__(self, origin: Path) -> None:
        self.origin = origin
        self.sizes = {name: status.st_size for name, status in _walk(origin)}

    def _each(self, names: Collection[str]) -> Generator[Content, None, None]:
        for name in names:
            with (self.origin / name).open("rb") as file:
                yield Content(name, self.where(name), self.sizes[name], file)


class _Zip(Store):
    def __init__(self, origin: Path, archive: zipfile.ZipFile) -> None:
        self.origin, self._archive = origin, archive
        self._infos = {}
        for info in archive.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            if not info.is_dir():
                if kind not in (0, stat.S_IFREG):
                    raise DataError(f"{self.where(info.filename)}: expected a file, got a link.")
                _add(self._infos, info.filename, info, info.file_size, origin)
        self.sizes = _sorted({name: info.file_size for name, info in self._infos.items()})

    def _each(self, names: Collection[str]) -> Generator[Content, None, None]:
        for name in names:
            with ExitStack() as stack:
                with _said(self.where(name)):
                    file = stack.enter_context(self._archive.open(self._infos[name]))
                yield Content(name, self.where(name), self.sizes[name], file)


class _Tar(Store):
    """A tar archive is read from front to back, for a packed one has no other way."""

    def __init__(self, origin: Path) -> None:
        self.origin = origin
        sizes: dict[str, int] = {}
        for name, info, _ in self._members():
            _add(sizes, name, info.size, info.size, origin)
        self.sizes = _sorted(sizes)

    def _each(self, names: Collection[str]) -> Generator[Content, None, None]:
        left = set(names)
        for raw, info, archive in self._members() if left else ():
            name = _plain(raw)
            if name in left:
                left.remove(name)
                with _said(self.where(name)):
                    file = archive.extractfile(info)
                assert file is not None  # it is for files, which this one is
                yield Content(name, self.where(name), info.size, file)
            if not left:
                return
        if left:  # it has changed since it was listed
            raise DataError(f"{self.where(min(left))}: no such file.")

    def _members(self) -> Iterator[tuple[str, tarfile.TarInfo, tarfile.TarFile]]:
        with ExitStack() as stack:
            with _said(self.origin):
                archive = stack.enter_context(tarfile.open(self.origin))
            while True:
                with _said(self.origin):
                    info = archive.next()
                if info is None:
                    return
                archive.members = []  # pyright: ignore[reportAttributeAccessIssue]: all it has met
                if info.isdir():
                    continue
                if not info.isreg():
                    raise DataError(f"{self.where(info.name)}: expected a file, got a link.")
                yield info.name, info, archive


@contextmanager
def open_store(path: Path) -> Iterator[Store]:
    """The files of a folder or an archive.

    Raises:
      FileNotFoundError: If there is nothing at ``path``.
      DataError: If it is neither, or an archive that is broken or has what does not belong.
    """
    if not path.exists():
        raise FileNotFoundError(say_missing(path))
    with ExitStack() as stack:
        if path.is_dir():
            store = _Folder(path)
        elif _begins(path, b"PK"):
            with _said(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
            store = _Zip(path, archive)
        else:
            with _said(path):
                is_tar = tarfile.is_tarfile(path)
            if not is_tar:
                raise DataError(f"{path}: expected a folder, a zip or a tar archive.")
            store = _Tar(path)
        stack.callback(store.close)  # before the archive
        yield store


def fingerprint(path: Path) -> str:
    """Changes with the content: it tells the size and time of the archive or of all files."""
    if path.is_dir():
        files = [(name, status.st_size, status.st_mtime_ns) for name, status in _walk(path)]
        return hashlib.sha256(json.dumps(files).encode()).hexdigest()
    status = path.stat()
    return f"{status.st_size} bytes of {status.st_mtime_ns}"


def by_path(name: str) -> list[str]:
    """The key that puts names in the order of folders, and of files in each."""
    return name.split("/")


def _walk(folder: Path) -> list[tuple[str, os.stat_result]]:
    """All files below a folder, through links too, but in no circle."""
    found: list[tuple[str, os.stat_result]] = []
    waiting = [("", folder, frozenset[tuple[int, int]]())]
    while waiting:
        prefix, place, above = waiting.pop()
        status = place.stat()
        this = (status.st_dev, status.st_ino)
        if this in above:
            raise DataError(f"{place}: expected folders, got a link to a folder that it lies in.")
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append((f"{prefix}{entry.name}/", Path(entry), above | {this}))
                else:
                    found.append((prefix + entry.name, entry.stat()))
    return sorted(found, key=lambda file: by_path(file[0]))


def _begins(path: Path, with_bytes: bytes) -> bool:
    with path.open("rb") as file:
        return file.read(len(with_bytes)) == with_bytes


def _add(files: dict, raw: str, file: object, size: int, origin: Path) -> None:
    """Takes a file of an archive into the list, if there is nothing odd about it."""
    if size > _LARGEST:
        raise DataError(f"{origin}/{raw}: expected at most {_LARGEST} bytes, got {size}.")
    name = _plain(raw)
    parts = name.split("/")
    if "\\" in raw or ":" in parts[0] or {"", ".."} & {*parts}:
        raise DataError(f"{origin}: expected paths within the archive, got {raw!r}.")
    if name in files:
        raise DataError(f"{origin}: expected each path once, got {name} twice.")
    if len(files) == _MOST:
        raise DataError(f"{origin}: expected at most {_MOST} files.")
    files[name] = file


def _plain(raw: str) -> str:
    """A path without the ``./`` that tar may put in front."""
    return raw.removeprefix("./")


def _sorted(sizes: dict[str, int]) -> dict[str, int]:
    return {name: sizes[name] for name in sorted(sizes, key=by_path)}


@contextmanager
def _said(where: str | Path) -> Iterator[None]:
    """Whatever an archive does when it is broken is an error of the data."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, PermissionError):
            raise
        raise DataError(f"{where}: not readable ({error or type(error).__name__}).") from error
