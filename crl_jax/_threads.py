"""Parallel ``map`` over threads, for functions that release the GIL."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_AHEAD = 4
"""Maximum number of queued items per thread."""

A = TypeVar("A")
B = TypeVar("B")


def thread_map(
    function: Callable[[A], B], items: Iterable[A], max_threads: int | None = None
) -> Iterator[B]:
    """Parallel ``map`` over threads, in order, with a bounded number of pending items.

    An exception of a thread is raised by the iterator. Closing it ends the threads.

    Pillow releases the GIL while decoding and resizing, scikit-learn while fitting a support
    vector machine.
    """
    n_threads = min(max_threads or cpu_count(), cpu_count())
    with ThreadPoolExecutor(n_threads) as pool:
        waiting: list[Future[B]] = []
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > _AHEAD * n_threads:
                    yield waiting.pop(0).result()
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def cpu_count() -> int:
    """Returns the number of CPU cores available to the process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
