"""Convolutions against those in float64, in micro-batches and on several devices."""

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


def drawn(batch, rows, columns, n_in, n_out):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, rows, columns, n_in))
    return x, rng.normal(size=(3, 3, n_in, n_out)), rng.normal(size=(*x.shape[:3], n_out))


def convolved(x, kernel):
    """In float64, one output channel of one image after the other."""
    x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    out = [[correlate(image, w, "valid")[..., 0] for w in np.moveaxis(kernel, 3, 0)] for image in x]
    return np.moveaxis(np.array(out), 1, 3)


def slopes(x, kernel, slope):
    """Both gradients in float64: an inner product for each tap."""
    wide = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)])
    of_kernel, of_wide = np.zeros_like(kernel), np.zeros_like(wide)
    rows, columns = x.shape[1:3]
    for i in range(3):
        for j in range(3):
            at = np.s_[:, i : i + rows, j : j + columns]
            of_kernel[i, j] = np.einsum("brsc,brsk->ck", wide[at], slope)
            of_wide[at] += slope @ kernel[i, j].T
    return of_wide[:, 1:-1, 1:-1], of_kernel


@pytest.mark.parametrize("n_in", [3, 128])
def test_a_convolution_and_its_gradients_are_those_of_float64(n_in):
    x, kernel, slope = drawn(3, 6, 5, n_in, 130)

    @jax.jit
    def both(x, kernel, slope):
        out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
        return out, *back(slope)

    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    found = zip(both(*single), (convolved(x, kernel), *slopes(x, kernel, slope)))
    for got, want in found:
        assert got.dtype == jnp.float32
        assert np.abs(got - want).max() < 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("n_channels", [2, 32, 128])
def test_no_images_give_none_and_leave_the_kernel_alone(n_channels):
    x, kernel, slope = map(jnp.asarray, drawn(0, 4, 5, n_channels, n_channels))
    out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
    of_images, of_kernel = back(slope)
    assert out.shape == of_images.shape == (0, 4, 5, n_channels)
    np.testing.assert_array_equal(of_kernel, np.zeros_like(kernel))


@pytest.mark.parametrize(
    ("n_channels", "axes"),
    [
        (16, {"data": 8}),
        (128, {"data": 2, "table": 4}),
    ],
)
def test_devices_convolve_their_own_images(n_channels, axes, monkeypatch):
    """No images go round, and a kernel's gradient does once, after all micro-batches."""
    monkeypatch.setattr("crl_jax.kernels._convolution._MICROBATCH_BYTES", 2**11)
    x, kernel, slope = drawn(64, 4, 4, n_channels, n_channels)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(*axes.values()), tuple(axes))

    @jax.jit
    def both(x, kernel, slope):
        with use_batch_mesh(mesh):
            out, back = jax.vjp(partial(convolve, method="cpu"), x, kernel)
            return out, *back(slope)

    spread, whole = (NamedSharding(mesh, PartitionSpec(*over)) for over in (("data",), ()))
    places = spread, whole, spread
    arrays = [
        jax.device_put(jnp.asarray(a, jnp.float32), p) for a, p in zip((x, kernel, slope), places)
    ]
    compiled = both.lower(*arrays).compile()
    for got, want in zip(compiled(*arrays), (convolved(x, kernel), *slopes(x, kernel, slope))):
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    text = compiled.as_text()
    moved = re.findall(r"= (\S+) (all-gather|all-to-all|collective-permute|all-reduce)", text)
    assert [name for _, name in moved] == ["all-reduce"]
    assert "while" in text
    (entry,) = re.findall(r"^ENTRY .*?^}", text, re.M | re.S)
    assert "all-reduce" in entry


@pytest.mark.parametrize("n_channels", [16, 128])
def test_a_batch_that_devices_cannot_share_evenly(n_channels):
    x, kernel, slope = drawn(13, 4, 4, n_channels, n_channels)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))

    @jax.jit
    def both(x, kernel, slope):
        with use_batch_mesh(mesh):
            return jax.vjp(partial(convolve, method="cpu"), x, kernel)[1](slope)

    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    for got, want in zip(both(*single), slopes(x, kernel, slope)):
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
def test_invalid_arguments_are_refused(size, stride, method, named):
    with refused(named):
        convolve(jnp.ones((1, 8, 8, 2)), jnp.ones((size, size, 2, 2)), stride, method)
