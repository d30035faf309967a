"""Locks between processes. One that is killed leaves none behind: the system takes it away."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows has no such locks: there nothing is held
    fcntl = None


@contextlib.contextmanager
def hold(path: Path, *, busy: str | None = None) -> Iterator[None]:
    """Holds the lock at ``path`` for a while.

    On a system or a file system without locks, or where nothing can be written, it holds nothing.

    Args:
      path: A file of the lock's own; it is made for the while. Its folder must be there.
      busy: What to say where another process holds the lock; None waits for it.

    Raises:
      ValueError: With ``busy``, if another process holds the lock.
    """
    with contextlib.ExitStack() as stack:
        file = _acquire(path, busy)
        if file is not None:
            stack.enter_context(file)
            stack.callback(path.unlink, missing_ok=True)  # before it is closed, and with it free
        yield


def _acquire(path: Path, busy: str | None) -> IO[bytes] | None:
    if fcntl is None:
        return None
    while True:
        try:
            file = path.open("ab")
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return None
            raise
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
            # Who held it before may have removed the file since it was opened here.
            if path.exists() and os.path.samestat(path.stat(), os.fstat(file.fileno())):
                return file
        except BlockingIOError:
            file.close()
            raise ValueError(busy) from None
        except OSError:
            file.close()
            return None
        file.close()
