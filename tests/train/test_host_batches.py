"""Batches gathered ahead by threads: bounded, in order, with errors that reach the caller."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import _threads
from crl_jax.data import DataError
from crl_jax.train import HostBatches

WAIT = 60
"""Seconds after which a test fails instead of waiting forever."""


class Source:
    """Examples ``0, 1, …`` that record which of their batches are gathered."""

    def __init__(self, n, on_gather=lambda batch: None):
        self.shape, self.on_gather, self.n_gathered = (n,), on_gather, 0
        self.lock = threading.Lock()

    def __getitem__(self, rows):
        with self.lock:
            self.n_gathered += 1
            batch = self.n_gathered
        self.on_gather(batch)
        return SimpleNamespace(rows=rows, n=len(rows))


def rows_of(batches):
    return [batch.rows.tolist() for batch in batches]


def test_prefetches_next_batch():
    second_started = threading.Event()
    source = Source(40, lambda batch: second_started.set() if batch == 2 else None)
    batches = HostBatches.from_arrays(source, 4).epoch_of(0)
    next(batches)  # the caller computes
    assert second_started.wait(WAIT)


def test_prefetching_is_bounded():
    source, used, most = Source(400), 0, 0
    for used, _ in enumerate(HostBatches.from_arrays(source, 4).epoch_of(0)):
        most = max(most, source.n_gathered - used)
    assert used == 99
    assert 1 < most <= 10


def test_order_depends_only_on_seed_and_epoch(monkeypatch):
    monkeypatch.setattr(_threads, "cpu_count", lambda: 2)
    second_gathered = threading.Event()

    def swap(batch):  # the first batch is finished after the second
        if batch == 1:
            assert second_gathered.wait(WAIT)
        else:
            second_gathered.set()

    slow = rows_of(HostBatches.from_arrays(Source(40, swap), 4, seed=3).epoch_of(5))
    assert slow == rows_of(HostBatches.from_arrays(Source(40), 4, seed=3).epoch_of(5))
    assert slow != rows_of(HostBatches.from_arrays(Source(40), 4, seed=3).epoch_of(6))
    assert sorted(np.concatenate(slow).tolist()) == list(range(40))


def test_thread_error_reaches_caller():
    def fail(batch):
        if batch == 5:
            raise DataError("images/7.png: not decoded.")

    batches = HostBatches.from_arrays(Source(400, fail), 4).epoch_of(0)
    with raises(DataError, match=r"images/7\.png: not decoded"):
        list(batches)


@pytest.mark.parametrize("n_used", [0, 3])
def test_interrupted_epoch_stops_threads(n_used):
    before = set(threading.enumerate())
    batches = HostBatches.from_arrays(Source(400), 4).epoch_of(0)
    for _ in range(n_used):
        next(batches)
    if n_used:
        assert set(threading.enumerate()) > before
    batches.close()
    assert set(threading.enumerate()) <= before


def test_processes_gather_disjoint_parts(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    parts = []
    for process in range(2):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        parts.append(rows_of(HostBatches.from_arrays(Source(40), 8).epoch_of(0)))
    assert [len(batch) for batch in parts[0]] == [4] * 5
    seen = np.concatenate([np.ravel(part) for part in parts])
    assert sorted(seen.tolist()) == list(range(40))
