"""Anchors streamed from host memory: training matches anchors on the device."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.ranking import fit_ranking, split, taken_by_all_but_one
from _helpers.refusals import raises

from crl_jax import data, losses, models, tasks, train
from crl_jax.data import Interactions

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


SPLIT = split()


def pairs(batches, n_items):
    return np.concatenate([batch.users * n_items + batch.items for batch in batches])


def log_with_full_catalogue_user(n_users=7, n_items=5):
    """Interactions whose first user has seen the whole catalogue."""
    users = np.concatenate([np.zeros(n_items, int), np.arange(1, n_users)])
    items = np.concatenate([np.arange(n_items), np.arange(1, n_users) % n_items])
    return Interactions.from_arrays(users, items)


def test_epoch_contains_each_interaction_once_in_random_order():
    log = SPLIT.train
    host = tasks.host_interactions(log, 64, seed=3)
    epochs = [list(host.epoch_of(epoch)) for epoch in (0, 1, 0)]
    assert host.n == len(log)
    assert {len(batch.users) for batch in epochs[0][:-1]} == {64}
    found = [pairs(batches, log.n_items) for batches in epochs]
    wanted = log.users.astype(np.int64) * log.n_items + log.items
    for order in found:
        np.testing.assert_array_equal(np.sort(order), wanted)
    np.testing.assert_array_equal(found[0], found[2])
    assert np.mean(found[0] == found[1]) < 0.05
    other = tasks.host_interactions(log, 64, seed=4)
    assert np.mean(pairs(other.epoch_of(0), log.n_items) == found[0]) < 0.05


def test_skips_users_who_saw_whole_catalogue():
    host = tasks.host_interactions(log_with_full_catalogue_user(), 4)
    users = np.concatenate([batch.users for batch in host.epoch_of(0)])
    assert host.n == 6
    assert sorted(users) == [1, 2, 3, 4, 5, 6]


def test_processes_partition_epoch(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    shares = []
    for process in range(3):
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        host = tasks.host_interactions(SPLIT.train, 300)
        shares.append(list(host.epoch_of(0)))
        assert host.n == len(SPLIT.train)
        assert len(shares[-1][0].users) == 100
    assert abs(len(pairs(shares[0], 1)) - len(pairs(shares[2], 1))) <= 1
    log = SPLIT.train
    together = np.concatenate([pairs(share, log.n_items) for share in shares])
    np.testing.assert_array_equal(
        np.sort(together), log.users.astype(np.int64) * log.n_items + log.items
    )
    with raises(ValueError, match="`batch_size` must be a multiple of 3"):
        tasks.host_interactions(SPLIT.train, 256)


@pytest.mark.parametrize("kind", [train.Optimizer, train.RowOptimizer])
def test_host_batches_match_device_batches(kind):
    """A batch holds all interactions, and each user has a single possible negative."""
    _, log = taken_by_all_but_one()
    run = partial(
        fit_ranking, log, loss=losses.bpr, encoder=models.MatrixFactorization(6, 5, 4), epochs=2,
        optimizer=kind(1e-2), config=train.TrainConfig(24),
    )  # fmt: skip
    here, host = run(), run(batches=tasks.host_interactions(log, 24))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), host.params, here.params
    )  # fmt: skip
    np.testing.assert_allclose(host.history[-1]["loss"], here.history[-1]["loss"], rtol=1e-5)


def test_streamed_task_holds_no_anchors_on_device():
    encoder = models.MatrixFactorization(SPLIT.train.n_users, SPLIT.train.n_items, 4)

    def task_bytes(streamed):
        task = tasks.Ranking.from_interactions(
            SPLIT.train, encoder=encoder, loss=losses.bpr, streamed=streamed
        )
        return sum(np.asarray(x).nbytes for x in jax.tree.leaves(task))

    assert task_bytes(False) - task_bytes(True) == 8 * len(SPLIT.train)


def test_rejects_options_that_need_all_anchors_on_device():
    host = tasks.host_interactions(SPLIT.train, 512)
    with raises(ValueError, match=r"`batches` from the host .* got users"):
        fit_ranking(SPLIT.train, loss=losses.bpr, epochs=1, batches=host, anchors="users")
    with raises(ValueError, match=r"`batches` from the host .* got `confidence`"):
        confidence = tasks.ConfidenceEM(jnp.full(80, 0.5))
        fit_ranking(SPLIT.train, loss=losses.bpr, epochs=1, batches=host, confidence=confidence)


def test_accepts_memory_mapped_items(tmp_path):
    log = data.simulate(n_users=50, n_items=40, n_exposed=20).interactions
    np.save(tmp_path / "items.npy", log.items)
    items = np.load(tmp_path / "items.npy", mmap_mode="r")
    mapped = Interactions(log.indptr, items, log.user_ids, log.item_ids)
    assert isinstance(mapped.items.base, np.memmap)
    found, wanted = (pairs(tasks.host_interactions(x, 64).epoch_of(0), 40) for x in (mapped, log))
    np.testing.assert_array_equal(found, wanted)
