"""Residual networks against a forward pass in float64, on all platforms and layouts."""

import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import moved_variables
from _helpers.refusals import raises
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from scipy.signal import correlate

from crl_jax.kernels._convolution import convolve
from crl_jax.models import BackboneWithHead, Network, Projection, ResNet
from crl_jax.models._normalization import batch_norm

pytestmark = pytest.mark.usefixtures("quick_compiles")

SMALL = ResNet((1, 1), width=4)
DEEP = ResNet((1, 1), width=4, bottleneck=True, stem="imagenet", n_channels=1)
GROUPS = ResNet((1, 1), width=4, norm="group", groups=2)


def images(settings, n=6, size=9):
    return jax.random.normal(jax.random.key(1), (n, size, size, settings.n_channels))


def initial(settings):
    return moved_variables(Network(settings))


def run_network(settings, train, *args, **kwargs):
    return jax.jit(partial(Network(settings).apply, train=train, **kwargs))(*args)


class Reference:
    """The forward pass in float64, and the running averages after it."""

    def __init__(self, settings, params, rest, train):
        wide = partial(jax.tree.map, lambda x: np.asarray(x, np.float64))
        self.settings, self.params, self.rest = settings, wide(params), wide(rest)
        self.train = train

    def conv(self, x, kernel, stride):
        edge = len(kernel) // 2
        x = np.pad(x, [(0, 0), (edge, edge), (edge, edge), (0, 0)])
        # All channels of an image at once: the last axis of the result is one number.
        out = [
            [correlate(image, kernel[..., o], "valid")[::stride, ::stride, 0] for image in x]
            for o in range(kernel.shape[-1])
        ]
        return np.moveaxis(np.array(out), 0, -1)

    def norm(self, x, own, rest):
        if self.settings.norm == "group":
            parts = x.reshape(*x.shape[:3], self.settings.groups, -1)
            mean, var = (f(parts, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
            x = ((parts - mean) / np.sqrt(var + 1e-5)).reshape(x.shape)
            return own["scale"] * x + own["bias"]
        mean, var = rest["mean"], rest["var"]
        if self.train:
            mean, var = x.mean(axis=(0, 1, 2)), x.var(axis=(0, 1, 2))
            n = x[..., 0].size
            rest["mean"] = 0.9 * rest["mean"] + 0.1 * mean
            rest["var"] = 0.9 * rest["var"] + 0.1 * var * n / (n - 1)
        return own["scale"] * (x - mean) / np.sqrt(var + 1e-5) + own["bias"]

    def layer(self, x, name, own, rest, stride):
        x = self.conv(x, own[f"conv{name}"]["kernel"], stride)
        return self.norm(x, own[f"norm{name}"], rest.get(f"norm{name}"))

    def block(self, x, name, stride):
        own, rest = self.params[name], self.rest.get(name, {})
        strides = [1, stride, 1] if self.settings.bottleneck else [stride, 1]
        out = x
        for place, s in enumerate(strides, 1):
            out = self.layer(np.maximum(out, 0), f"_{place}", own, rest, s)
        if "conv_skip" in own:
            x = self.layer(x, "_skip", own, rest, stride)
        return np.maximum(x + out, 0)

    def __call__(self, x):
        x = np.asarray(x, np.float64)
        is_large = self.settings.stem == "imagenet"
        x = np.maximum(self.layer(x, "", self.params, self.rest, 2 if is_large else 1), 0)
        if is_large:
            n = -(-x.shape[1] // 2)
            x = np.pad(x, [(0, 0), (1, 1), (1, 1), (0, 0)], constant_values=-np.inf)
            x = [x[:, i : i + 2 * n : 2, j : j + 2 * n : 2] for i in range(3) for j in range(3)]
            x = np.max([each[:, :n, :n] for each in x], axis=0)
        for stage, n_blocks in enumerate(self.settings.blocks, 1):
            for place in range(1, n_blocks + 1):
                stride = 2 if stage > 1 and place == 1 else 1
                x = self.block(x, f"block_{stage}_{place}", stride)
        return x.mean(axis=(1, 2))


@pytest.mark.parametrize(
    ("settings", "train", "way"),
    [(SMALL, False, "xla"), (SMALL, True, "cpu"), (DEEP, True, "xla"), (GROUPS, True, "cpu")],
    ids=["eval", "train", "neck", "group"],
)
def test_features_and_running_averages_match_float64(settings, train, way):
    settings = ResNet(**{**vars(settings), "convolution": way})
    params, rest = initial(settings)
    x = images(settings, size=21 if settings.stem == "imagenet" else 9)
    reference = Reference(settings, params, rest, train)
    want = reference(x)
    got, after = run_network(settings, train, params, rest, x)
    assert got.shape == (6, settings.n_features)
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)
    assert jax.tree.structure(after) == jax.tree.structure(rest)
    check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(check, after, reference.rest)


@pytest.mark.parametrize(
    ("depth", "published", "n_features"),
    [(18, 11_689_512, 512), (34, 21_797_672, 512), (50, 25_557_032, 2048)],
)
def test_parameter_counts_match_torchvision(depth, published, n_features):
    settings = ResNet(depth, stem="imagenet")
    params, _ = jax.eval_shape(Network(settings).init, jax.random.key(0))
    n = sum(x.size for x in jax.tree.leaves(params))
    assert settings.n_features == n_features
    assert n == published - 1000 * (n_features + 1)


def test_initial_values_match_he_initialization():
    settings = ResNet((1,), width=64, zero_init_residual=True)
    params, _ = jax.jit(Network(settings).init)(jax.random.key(0))
    kernel = np.asarray(params["block_1_1"]["conv_2"]["kernel"])
    np.testing.assert_allclose(kernel.std(), np.sqrt(2 / (9 * 64)), rtol=0.02)
    assert abs(kernel.mean()) < 4 * kernel.std() / np.sqrt(kernel.size)
    assert np.all(params["block_1_1"]["norm_2"]["scale"] == 0)
    assert np.all(params["block_1_1"]["norm_1"]["scale"] == 1)


@pytest.mark.parametrize(
    ("settings", "where"),
    [(SMALL, jnp.array([True, True, False, True, False, True])), (GROUPS, None)],
    ids=["batch", "group"],
)
def test_gradients_match_finite_differences(settings, where):
    """Directional derivatives in float64, with respect to the parameters and to the images."""
    start = initial(settings), images(settings)
    with jax.enable_x64(True):
        (params, rest), x = jax.tree.map(lambda x: x.astype(jnp.float64), start)
        slopes = np.random.default_rng(0).normal(size=(6, settings.n_features))

        @jax.jit
        @partial(jax.value_and_grad, argnums=(0, 1))
        def value_and_grad(params, x):
            args = (x,) if where is None else (x, where)
            return jnp.sum(slopes * Network(settings).apply(params, rest, *args, train=True)[0])

        rng, at = np.random.default_rng(1), (params, x)
        _, gradient = value_and_grad(*at)
        for _ in range(3):
            way = jax.tree.map(lambda x: rng.normal(size=x.shape), at)
            step = jax.tree.map(lambda w: 1e-6 * w, way)
            ahead, back = (
                value_and_grad(*jax.tree.map(lambda a, s, sign=sign: a + sign * s, at, step))[0]
                for sign in (1, -1)
            )
            along = sum(map(np.vdot, jax.tree.leaves(gradient), jax.tree.leaves(way)))
            np.testing.assert_allclose((ahead - back) / 2e-6, along, rtol=1e-5)


def output_and_gradients(way, x, kernel, stride):
    """Returns the output of a convolution, and both gradients along one cotangent."""

    def convolve_with_gradients(x, kernel):
        out, back = jax.vjp(partial(convolve, stride=stride, method=way), x, kernel)
        return out, *back(jax.random.normal(jax.random.key(2), out.shape))

    return jax.jit(convolve_with_gradients)(x, kernel)


@pytest.mark.parametrize(
    ("size", "stride", "batch"),
    [(1, 1, 13), (1, 2, 13), (3, 2, 13), (3, 3, 1), (5, 3, 13), (7, 1, 1)],
)
def test_convolution_methods_agree(size, stride, batch, monkeypatch):
    """Includes batch sizes that are not divisible by the number of micro-batches."""
    monkeypatch.setattr("crl_jax.kernels._convolution._MICROBATCH_BYTES", 5 * 4 * 8 * 9 * 2)
    x = jax.random.normal(jax.random.key(0), (batch, 8, 9, 2))
    kernel = jax.random.normal(jax.random.key(1), (size, size, 2, 3))
    for got, want in zip(
        *(output_and_gradients(each, x, kernel, stride) for each in ("cpu", "xla"))
    ):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_convolutions_are_lowered_per_platform():
    """A single trace serves both platforms: the implementation is chosen during lowering."""

    def gradient(x, kernel):
        return jax.grad(lambda kernel: jnp.sum(convolve(x, kernel) ** 2))(kernel)

    x, kernel = jnp.ones((1, 4, 4, 64)), jnp.ones((3, 3, 64, 64))
    traced = jax.jit(gradient).trace(x, kernel)
    text_of = {
        platform: traced.lower(lowering_platforms=(platform,)).as_text()
        for platform in ("cpu", "tpu")
    }
    counts = {platform: text.count("stablehlo.convolution") for platform, text in text_of.items()}
    assert counts == {"cpu": 2, "tpu": 2}
    assert text_of["cpu"].count("optimization_barrier") > 0
    assert text_of["tpu"].count("optimization_barrier") == 0


def test_vmapped_convolutions_are_not_grouped():
    x = jax.random.normal(jax.random.key(0), (3, 5, 4, 4, 2))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 2, 2))

    def value(way, x, kernel):
        return jnp.sum(jnp.sin(convolve(x, kernel, 1, way)))

    gradients = {
        way: jax.jit(jax.vmap(jax.grad(partial(value, way), (0, 1))))(x, kernel)
        for way in ("cpu", "xla")
    }
    check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(check, gradients["cpu"], gradients["xla"])
    text = jax.jit(jax.vmap(partial(value, "cpu"))).lower(x, kernel).as_text()
    assert "feature_group_count = 1" in text
    assert "feature_group_count = 3" not in text


@pytest.mark.usefixtures("all_optimisations")
def test_gradients_in_loop_use_fast_dimension_order():
    """Covers convolutions of each size and stride inside a loop, as in training."""

    def step(kernels, x):
        def value(kernels):
            small, large, strided = kernels
            x_skip = convolve(x, small, 2, "cpu")
            x_out = convolve(convolve(x, large, 1, "cpu"), strided, 2, "cpu")
            return jnp.sum(jnp.sin(x_skip + x_out))

        return jax.tree.map(jnp.subtract, kernels, jax.grad(value)(kernels)), None

    kernels = [jnp.ones((size, size, 4, 4)) for size in (1, 3, 3)]
    xs = jnp.ones((2, 16, 9, 9, 4))
    text = jax.jit(partial(jax.lax.scan, step)).lower(kernels, xs).compile().as_text()
    labels = re.findall(r"convolution\(.*dim_labels=([\w>-]+)", text)
    assert set(labels) == {"b01f_01io->b01f"}
    assert len(labels) >= 2 + 2 + 1  # 1x1 kernels become matrix products


def test_no_variable_has_a_weak_type():
    """Outputs of a step have no weak types, which would recompile the second call."""
    both = BackboneWithHead(SMALL, Projection((4, 4)))
    variables = jax.eval_shape(Network(both).init, jax.random.key(0))
    assert not any(x.weak_type for x in jax.tree.leaves(variables))


def test_batch_statistics_span_all_devices():
    params, rest = initial(SMALL)
    x = images(SMALL, n=16)

    @jax.jit
    def step(params, x):
        def value(params):
            z, after = Network(SMALL).apply(params, rest, x, train=True)
            return jnp.sum(jnp.sin(z)), after

        return jax.value_and_grad(value, has_aux=True)(params)

    one = step(params, x)
    mesh = Mesh(np.array(jax.devices()[:8]), ("data",))
    sharded_x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    replicated_params = jax.device_put(params, NamedSharding(mesh, PartitionSpec()))
    compiled = step.lower(replicated_params, sharded_x).compile()
    many = compiled(replicated_params, sharded_x)
    check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(check, many, one)
    # Each device convolves its own images: 2 of 16.
    text = compiled.as_text()
    assert "f32[2,9,9,4]" in text
    assert "f32[16,9,9,4]" not in text


def test_masked_images_do_not_affect_batch_statistics():
    params, rest = initial(SMALL)
    x = images(SMALL)
    where = jnp.array([True, False, True, True, False, False])
    with_outliers = x.at[1].set(jnp.inf).at[4].set(1e3)
    got, after = run_network(SMALL, True, params, rest, with_outliers, where)
    want, few_after = run_network(SMALL, True, params, rest, x[where])
    np.testing.assert_allclose(got[where], want, rtol=1e-4, atol=1e-5)
    check = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5)
    jax.tree.map(check, after, few_after)


def test_fully_masked_batch_keeps_running_averages():
    params, rest = initial(SMALL)
    got, after = run_network(SMALL, True, params, rest, images(SMALL), jnp.zeros(6, bool))
    assert np.isfinite(got).all()
    jax.tree.map(np.testing.assert_array_equal, after, rest)


@pytest.mark.parametrize("settings", [SMALL, GROUPS], ids=["batch", "group"])
def test_bfloat16_is_close_and_keeps_float32_averages(settings):
    params, rest = initial(settings)
    x = images(settings, n=16, size=21)
    want, wanted = run_network(settings, True, params, rest, x)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    got, after = run_network(settings, True, half, rest, x.astype(jnp.bfloat16))
    assert got.dtype == jnp.bfloat16
    assert np.abs(got.astype(np.float32) - want).max() < 0.05 * np.abs(want).max()
    for new, old in zip(jax.tree.leaves(after), jax.tree.leaves(wanted)):
        assert new.dtype == jnp.float32
        np.testing.assert_allclose(new, old, atol=0.05 * np.abs(old).max())


def test_batch_statistics_are_accurate_for_large_mean():
    x = 30 + jax.random.normal(jax.random.key(0), (64, 8, 8, 3))
    out, statistics = jax.jit(batch_norm)(x, jnp.ones(3), jnp.zeros(3))
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(statistics.mean, wide.mean(axis=(0, 1, 2)), rtol=1e-5)
    np.testing.assert_allclose(statistics.var, wide.var(axis=(0, 1, 2)), rtol=2e-3)
    np.testing.assert_allclose(out.std(axis=(0, 1, 2)), 1, rtol=2e-3)


def test_equal_settings_do_not_retrace():
    params, rest = initial(SMALL)
    traces = []

    @partial(jax.jit, static_argnums=0)
    def run(network, params, rest, x):
        traces.append(network)
        return network.apply(params, rest, x)[0]

    for _ in range(2):
        run.lower(Network(ResNet((1, 1), width=4)), params, rest, images(SMALL))
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"depth": 20}, "`depth` must be one of 10, 18, .* got 20"),
        ({"depth": ()}, r"`depth` must have a block in each stage, got \(\)"),
        ({"depth": (2, 0)}, r"`depth` must have a block in each stage, got \(2, 0\)"),
        ({"width": 0}, "`width` must be at least 1, got 0"),
        ({"n_channels": 0}, "`n_channels` must be at least 1, got 0"),
        ({"groups": 0}, "`groups` must be at least 1, got 0"),
        ({"stem": "large"}, "`stem` must be one of cifar, imagenet, got 'large'"),
        ({"norm": "layer"}, "`norm` must be one of batch, group, got 'layer'"),
        ({"convolution": "fft"}, "`convolution` must be one of auto, xla, cpu, got 'fft'"),
        ({"norm": "group", "width": 16}, "`groups` must divide `width`, 16, got 32"),
    ],
)
def test_rejects_invalid_settings(settings, message, unchecked):
    with raises(ValueError, match=message):
        ResNet(**settings)


def test_rejects_wrong_channels_and_unknown_methods():
    params, rest = initial(SMALL)
    with raises(ValueError, match="`x` must have 3 channels, got 1"):
        Network(SMALL).apply(params, rest, jnp.zeros((1, 8, 8, 1)))
    with raises(ValueError, match="`method` must name a method of ResNetModule, got 'no'"):
        Network(SMALL).apply(params, rest, images(SMALL), method="no")
