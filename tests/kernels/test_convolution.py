"""Convolutions against float64 references, in micro-batches and on several devices."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import refused
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy.signal import correlate

from crl_jax._mesh import use_batch_mesh
from crl_jax.kernels._convolution import convolve

pytestmark = pytest.mark.usefixtures("quick_compiles")


def random_inputs(batch, rows, columns, n_in, n_out):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, rows, columns, n_in))
    return x, rng.normal(size=(3, 3, n_in, n_out)), rng.normal(size=(*x.shape[:3], n_out))


def reference_convolution(x, kernel):
    """Convolution in float64, one image and one output channel at a time."""
    x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    out = [[correlate(image, w, "valid")[..., 0] for w in np.moveaxis(kernel, 3, 0)] for image in x]
    return np.moveaxis(np.array(out), 1, 3)


def reference_gradients(x, kernel, slope):
    """Both gradients in float64: an inner product for each tap."""
    wide = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    kernel_gradient, padded_gradient = np.zeros_like(kernel), np.zeros_like(wide)
    rows, columns = x.shape[1:3]
    for i in range(3):
        for j in range(3):
            at = np.s_[:, i : i + rows, j : j + columns]
            kernel_gradient[i, j] = np.einsum("brsc,brsk->ck", wide[at], slope)
            padded_gradient[at] += slope @ kernel[i, j].T
    return padded_gradient[:, 1:-1, 1:-1], kernel_gradient


@pytest.mark.parametrize("n_in", [3, 128])
def test_convolution_and_gradients_match_float64(n_in):
    x, kernel, slope = random_inputs(3, 6, 5, n_in, 130)

    @jax.jit
    def both(x, kernel, slope):
        out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
        return out, *back(slope)

    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    found = zip(
        both(*single), (reference_convolution(x, kernel), *reference_gradients(x, kernel, slope))
    )
    for got, want in found:
        assert got.dtype == jnp.float32
        assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("n_channels", [2, 32, 128])
def test_empty_batch_has_empty_output_and_zero_kernel_gradient(n_channels):
    x, kernel, slope = map(jnp.asarray, random_inputs(0, 4, 5, n_channels, n_channels))
    out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
    image_gradient, kernel_gradient = back(slope)
    assert out.shape == image_gradient.shape == (0, 4, 5, n_channels)
    np.testing.assert_array_equal(kernel_gradient, np.zeros_like(kernel))


@pytest.mark.parametrize(
    ("n_channels", "axes"),
    [
        (16, {"data": 8}),
        (128, {"data": 2, "table": 4}),
    ],
)
def test_devices_convolve_local_images(n_channels, axes, monkeypatch):
    """Images are not exchanged, and kernel gradients are reduced once, after all micro-batches."""
    monkeypatch.setattr("crl_jax.kernels._convolution._MICROBATCH_BYTES", 2**11)
    x, kernel, slope = random_inputs(64, 4, 4, n_channels, n_channels)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(*axes.values()), tuple(axes))

    @jax.jit
    def both(x, kernel, slope):
        with use_batch_mesh(mesh):
            out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
            return out, *back(slope)

    batch_sharding, replicated = (
        NamedSharding(mesh, PartitionSpec(*over)) for over in (("data",), ())
    )
    shardings = batch_sharding, replicated, batch_sharding
    arrays = [
        jax.device_put(jnp.asarray(a, jnp.float32), p)
        for a, p in zip((x, kernel, slope), shardings)
    ]
    compiled = both.lower(*arrays).compile()
    for got, want in zip(
        compiled(*arrays),
        (reference_convolution(x, kernel), *reference_gradients(x, kernel, slope)),
    ):
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    text = compiled.as_text()
    collectives = re.findall(r"= (\S+) (all-gather|all-to-all|collective-permute|all-reduce)", text)
    assert [name for _, name in collectives] == ["all-reduce"]
    assert "while" in text
    (entry,) = re.findall(r"^ENTRY .*?^}", text, re.M | re.S)
    assert "all-reduce" in entry


@pytest.mark.parametrize("n_channels", [16, 128])
def test_gradients_of_uneven_batch_match_float64(n_channels):
    x, kernel, slope = random_inputs(13, 4, 4, n_channels, n_channels)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))

    @jax.jit
    def both(x, kernel, slope):
        with use_batch_mesh(mesh):
            return jax.vjp(partial(convolve, method="cpu"), x, kernel)[1](slope)

    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    for got, want in zip(both(*single), reference_gradients(x, kernel, slope)):
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()


@pytest.mark.parametrize(
    ("size", "stride", "method", "named"),
    [
        (2, 1, "xla", "kernel"),
        (4, 2, "cpu", "kernel"),
        (3, 0, "xla", "stride"),
        (3, 1, "gpu", "method"),
    ],
)
def test_rejects_invalid_arguments(size, stride, method, named):
    with refused(named):
        convolve(jnp.ones((1, 8, 8, 2)), jnp.ones((size, size, 2, 2)), stride, method)
