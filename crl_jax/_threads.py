"""``map`` over the cores, for work that lets go of Python's lock."""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_AHEAD = 4
"""Items that wait for each thread."""

A = TypeVar("A")
B = TypeVar("B")


def thread_map(function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
    """``map`` over threads, in order, with a bounded number of items under way.

    Pillow holds no lock while it decodes or resizes, nor scikit-learn while it fits a support
    vector machine.
    """
    n_threads = cpu_count()
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
    """Cores that the process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
