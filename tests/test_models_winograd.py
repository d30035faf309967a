"""Convolutions by tiles against convolutions in float64, in parts and on several devices."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy.signal import correlate

from crl_jax._mesh import use_batch_mesh
from crl_jax.kernels._convolution import convolve
from crl_jax.kernels._winograd import winograd_conv, winograd_kernel_grad

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


@pytest.mark.parametrize("rows", [1, 4, 7])
@pytest.mark.parametrize("columns", [2, 5])
@pytest.mark.parametrize("batch", [1, 13])
@pytest.mark.parametrize("part", [1, 2**12, 2**21])
def test_tiles_give_what_float64_gives(rows, columns, batch, part, monkeypatch):
    """Of odd sizes, and in parts that do not come out even."""
    monkeypatch.setattr("crl_jax.kernels._winograd._MICROBATCH_BYTES", part)
    x, kernel, slope = drawn(batch, rows, columns, 5, 3)
    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    got = jax.jit(winograd_conv)(*single[:2])
    np.testing.assert_allclose(got, convolved(x, kernel), rtol=1e-5, atol=1e-5)
    got = jax.jit(winograd_kernel_grad)(single[0], single[2])
    np.testing.assert_allclose(got, slopes(x, kernel, slope)[1], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("way", ["cpu", "core"])
@pytest.mark.parametrize("n_in", [32, 128])
def test_convolutions_of_many_channels_and_their_gradients(way, n_in):
    x, kernel, slope = drawn(3, 6, 5, n_in, 130)

    @jax.jit
    def both(x, kernel, slope):
        out, back = jax.vjp(partial(convolve, method=way), x, kernel)
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
    ("size", "n_in", "n_out", "stride", "dtype", "n"),
    [
        (3, 32, 32, 1, jnp.float32, 0),
        (3, 31, 32, 1, jnp.float32, 1),
        (3, 32, 31, 1, jnp.float32, 1),
        (3, 32, 32, 2, jnp.float32, 1),
        (5, 32, 32, 1, jnp.float32, 1),
        (3, 32, 32, 1, jnp.bfloat16, 1),
    ],
)
def test_where_tiles_stand_for_a_convolution(size, n_in, n_out, stride, dtype, n):
    x, kernel = jnp.ones((2, 4, 4, n_in), dtype), jnp.ones((size, size, n_in, n_out), dtype)
    text = jax.jit(partial(convolve, stride=stride, method="cpu")).lower(x, kernel).as_text()
    assert text.count("stablehlo.convolution") == n


def test_tiles_are_as_exact_as_a_convolution():
    """The root mean square of errors of many channels, against that of XLA's own way."""
    x, kernel, _ = drawn(2, 8, 8, 128, 64)
    want = convolved(x, kernel)
    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel)]

    def error(way):
        return np.sqrt(np.mean((jax.jit(partial(convolve, method=way))(*single) - want) ** 2))

    assert error("cpu") < 3 * error("xla")


@pytest.mark.parametrize(
    ("n_channels", "known", "axes"),
    [
        (16, True, {"data": 8}),
        (16, True, {"data": 2, "table": 4}),
        (128, True, {"data": 8}),
        (128, True, {"data": 2, "table": 4}),
        (128, False, {"data": 8}),
    ],
)
def test_devices_convolve_their_own_images(n_channels, known, axes, monkeypatch):
    """No images go round, and a kernel's gradient does once, after all parts.

    That of few channels does where the mesh is known.
    """
    monkeypatch.setattr("crl_jax.kernels._winograd._MICROBATCH_BYTES", 2**14)
    monkeypatch.setattr("crl_jax.kernels._convolution._MICROBATCH_BYTES", 2**11)
    x, kernel, slope = drawn(64, 4, 4, n_channels, n_channels)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(*axes.values()), tuple(axes))

    @jax.jit
    def both(x, kernel, slope):
        with use_batch_mesh(mesh if known else None):
            out, back = jax.vjp(partial(convolve, method="core"), x, kernel)
            return out, *back(slope)

    spread, whole = (NamedSharding(mesh, PartitionSpec(*over)) for over in (("data",), ()))
    places = spread, whole, spread
    arrays = [
        jax.device_put(jnp.asarray(a, jnp.float32), p) for a, p in zip((x, kernel, slope), places)
    ]
    for got, want in zip(both(*arrays), (convolved(x, kernel), *slopes(x, kernel, slope))):
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    text = both.lower(*arrays).compile().as_text()
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
            return jax.vjp(partial(convolve, method="core"), x, kernel)[1](slope)

    single = [jnp.asarray(each, jnp.float32) for each in (x, kernel, slope)]
    for got, want in zip(both(*single), slopes(x, kernel, slope)):
        assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
