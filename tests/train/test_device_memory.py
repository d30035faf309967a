"""Check that a training fits into device memory, before it starts."""

import jax
import numpy as np
import pytest
from _helpers.ranking import fit, split
from _helpers.refusals import raises

from crl_jax import train

GIB = 2**30


class Device:
    """A device with a given memory limit."""

    def __init__(self, limit, platform="gpu"):
        self.limit, self.platform = limit, platform

    def memory_stats(self):
        return {"bytes_limit": self.limit}


def check(limit, optimizer, platform="gpu", mesh=None, n_rows=(600, 400)):
    """Checks tables of 64 columns, without allocating them."""
    from crl_jax.train._device_memory import check_device_memory
    from crl_jax.train._epoch import RunStates
    from crl_jax.train._sharding import Sharding

    def init():
        params = {name: jax.numpy.zeros((n, 64)) for name, n in zip(("users", "items"), n_rows)}
        state = train.State(0, 0, params, optimizer.init(params), ())
        return jax.tree.map(lambda x: jax.numpy.asarray(x)[None], RunStates(state, (), False))

    sharding = None
    if mesh is not None:
        tables = tuple(((jax.tree_util.DictKey(k),), n) for k, n in zip(("users", "items"), n_rows))
        sharding = Sharding(mesh, tables, isinstance(optimizer, train.RowOptimizer))
    states = jax.eval_shape(init)
    check_device_memory(Device(limit, platform), lambda: states, (), optimizer, sharding)


TABLES = 1000 * 64 * 4
"""Bytes of the tables."""
ROWS = 3 * TABLES + 1000 * 4 * 4
"""Bytes of the state of row-wise Adam: tables, two moments, and four numbers per row."""


@pytest.mark.parametrize(
    ("optimizer", "platform", "needed"),
    [
        (train.RowOptimizer(1e-3), "gpu", ROWS),
        (train.RowOptimizer(1e-3), "tpu", 2 * ROWS),
        (train.Optimizer(1e-3), "gpu", 4 * TABLES),
    ],
)
def test_rejects_state_and_temporaries_beyond_memory_limit(optimizer, platform, needed):
    check(needed + 100, optimizer, platform)
    with raises(ValueError, match="`task` must fit into .* per device, got at least .*"):
        check(needed - 1, optimizer, platform)


def test_tables_packed_in_place_need_no_second_copy(monkeypatch):
    """A table of 896 rows of whole tiles; one of 104 rows is copied, with its state."""
    monkeypatch.setattr("crl_jax.train.rows._packed.IN_PLACE", 128)
    copied = 104 * (3 * 64 * 4 + 4 * 4)
    check(ROWS + copied + 100, train.RowOptimizer(1e-3), "tpu", n_rows=(896, 104))
    with raises(ValueError, match="`task` must fit into"):
        check(ROWS + copied - 1, train.RowOptimizer(1e-3), "tpu", n_rows=(896, 104))


def test_mesh_divides_required_memory_between_devices():
    devices = np.array(jax.devices()[:8])
    mesh = jax.sharding.Mesh(devices.reshape(2, 4), ("data", "table"))
    for optimizer, needed in (
        (train.RowOptimizer(1e-3), ROWS // 8), (train.Optimizer(1e-3), TABLES),
    ):  # fmt: skip
        check(needed + 100, optimizer, mesh=mesh)
        with raises(ValueError, match="or a narrower table"):
            check(needed - 1, optimizer, mesh=mesh)


def test_fit_rejects_excessive_memory_before_first_epoch(monkeypatch):
    from crl_jax.train import _fit

    own = _fit.check_device_memory
    monkeypatch.setattr(_fit, "check_device_memory", lambda device, *rest: own(Device(1000), *rest))
    monkeypatch.setattr(_fit, "run_epochs", None)
    with raises(ValueError, match=r"got at least .*Use .*`mesh`.*, a RowOptimizer.* or a narrower"):
        fit(split().train, epochs=1)
