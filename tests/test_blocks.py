"""Splitting of rows into blocks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crl_jax._blocks import split_rows


@pytest.mark.parametrize("shape", [(2, 5), (4, 2), (1, 3, 3)])
@pytest.mark.parametrize("dtype", [bool, np.int32, np.float32])
def test_split_rows_pads_and_reshapes_sharded_rows(shape, dtype):
    rows = np.arange(24).reshape(8, 3).astype(dtype)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    x = jax.device_put(jnp.asarray(rows), NamedSharding(mesh, PartitionSpec("data")))
    padded = np.zeros((int(np.prod(shape)), 3), dtype)
    padded[:8] = rows
    split = jax.jit(split_rows, static_argnums=1)(x, shape)
    np.testing.assert_array_equal(split, padded.reshape(*shape, 3))
