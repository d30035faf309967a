"""The variance-gamma distribution against mpmath, in every region, dimension and precision."""

import functools
import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
import scipy.special
import scipy.stats
from _helpers.programs import counted
from _helpers.refusals import raises, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import stats
from crl_jax.stats import _variance_gamma

pytestmark = pytest.mark.usefixtures("quick_compiles")

NAMES = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf")
FUNCTIONS = {name: getattr(stats, f"variance_gamma_{name}") for name in NAMES}
# Even and odd, near the limits above which the power series near 0 has no second sum, and large.
MANY_DIMS = (1, 2, 3, 14, 15, 20, 21, 128, 1000, 2000)

each_type = pytest.mark.parametrize("dtype", [np.float32, np.float64])


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def eagerly():
    """Evaluates operation by operation, without compiling again for each function or dimension."""
    with jax.disable_jit():
        yield


@functools.cache
def exact(dim, z):
    """Density and survival function at ``z > 0`` and unit scale.

    Upwards from one or two dimensions: K by its recurrence, and the survival function by
    S_{d+2} = S_d - f'_{d+2}, of which all terms are positive.
    """
    with mpmath.workdps(30):
        d = 2 - dim % 2
        order = mpmath.mpf(d - 1) / 2
        lower, upper = mpmath.besselk(order, z), mpmath.besselk(order + 1, z)
        factor = (z / 2) ** order / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(d) / 2))
        if d == 2:
            survival = mpmath.exp(-z) / 2
        else:
            # The integral of K_0, itself that of exp(-z cosh t) over all t: a sum of even steps.
            step = 1 / (8 * mpmath.sqrt(1 + z))
            cosh = [mpmath.cosh(k * step) for k in range(1, int(mpmath.acosh(1 + 70 / z) / step))]
            survival = mpmath.exp(-z) / 2 + sum(mpmath.exp(-z * c) / c for c in cosh)
            survival *= step / mpmath.pi
        while d < dim:
            factor *= z / d
            survival += factor * lower
            order += 1
            d += 2
            lower, upper = upper, lower + 2 * order / z * upper
        return factor * lower, survival


def expected(dim, x, scale):
    """Returns all six functions at one ``x > 0``, as mpmath numbers."""
    density, survival = exact(dim, mpmath.mpf(float(x)) / mpmath.mpf(float(scale)))
    with mpmath.workdps(30):
        density /= mpmath.mpf(float(scale))
        log = mpmath.log
        return dict(pdf=density, logpdf=log(density), cdf=1 - survival, logcdf=log(1 - survival),
                    sf=survival, logsf=log(survival))  # fmt: skip


def distribution(dim, x, scale=1.0):
    """Returns all six functions, from the implementations behind the public ones."""
    x, scale, shape = padded(x, scale)
    return {
        n: v[: math.prod(shape)].reshape(shape) for n, v in all_functions(dim, x, scale).items()
    }


def slopes(dim, x, scale=1.0):
    """Returns the derivatives of all six with respect to ``x`` and with respect to ``scale``."""
    x, scale, shape = padded(x, scale)
    ones = jnp.ones_like(x)
    for tangents in ((ones, 0 * ones), (0 * ones, ones)):
        _, slope = jax.jvp(functools.partial(all_functions, dim), (x, scale), tangents)
        yield {n: v[: math.prod(shape)].reshape(shape) for n, v in slope.items()}


def padded(x, scale):
    """Pads to a fixed size, so that no operation is compiled a second time."""
    x, scale = np.broadcast_arrays(np.asarray(x), np.asarray(scale, np.asarray(x).dtype))
    return jnp.asarray(np.resize(x, 24)), jnp.asarray(np.resize(scale, 24)), x.shape


def all_functions(dim, x, scale):
    return _variance_gamma._outputs(dim, x, scale)._asdict()


def check(dim, x, scale, compute=distribution):
    """Compares with exact values at ``x > 0``, relative to densities and probabilities."""
    bound, tiny = 1e-6 if x.dtype == np.float32 else 1e-12, float(np.finfo(x.dtype).tiny)
    got = compute(dim, x, scale)
    for i, (xi, si) in enumerate(zip(x, scale, strict=True)):
        for name, want in expected(dim, xi, si).items():
            value = mpmath.mpf(float(got[name][i]))
            message = f"{name} at d={dim}, x={xi!r}, scale={si!r}: {value}, not {want}"
            if name in ("logpdf", "logsf"):
                assert abs(value - want) <= bound * max(1, abs(want)), message
            elif want >= tiny:
                assert abs(value - want) <= bound * want, message
            elif name != "logcdf":
                assert 0 <= value <= tiny * (1 + bound), message


def grid(dim):
    """Points near 0, near the ends of the first and last interval, in the tails, and far beyond.

    The values are single precision, even as doubles: one exact value serves both types.
    """
    z = [1e-30, 1e-6, 1e-3, 0.5, 0.97, 1.0, 1.03, 2.0, 8.01, 30, 87, 104, 170, 700, 2047, 2049, 9e3]
    deviations = [1, 3, 5.5, 10, 13, 20, 37.7]
    z = np.array([*z, *(math.sqrt(dim) * s for s in deviations)])
    scale = np.resize(np.float32([0.6, 1e-6, 1e6, 3.0, 0.05]), z.shape)
    return (z * scale).astype(np.float32), scale


@each_type
@pytest.mark.parametrize("dim", MANY_DIMS)
@pytest.mark.usefixtures("eagerly")
def test_functions_match_mpmath(dim, dtype):
    x, scale = grid(dim)
    with jax.enable_x64(dtype == np.float64):
        check(dim, x.astype(dtype), scale.astype(dtype))


@pytest.mark.parametrize(("dim", "dtype"), [(1, np.float32), (27, np.float64), (1024, np.float32)])
@pytest.mark.usefixtures("all_optimisations")
def test_public_functions_match_mpmath_under_jit(dim, dtype):
    """Under JIT, where the exact remainder of a division interacts with the compiler's fusions."""

    def public(dim, x, scale):
        x, scale = jnp.asarray(x), jnp.asarray(scale)
        return {name: f(x, dim=dim, scale=scale) for name, f in FUNCTIONS.items()}

    x, scale = grid(dim)
    with jax.enable_x64(dtype == np.float64):
        check(dim, x.astype(dtype), scale.astype(dtype), public)


@settings(max_examples=15, deadline=None)
@given(
    dim=st.integers(1, 1024),
    z=st.floats(-30, 4).map(lambda e: 10**e) | st.floats(0.5, 200),
    scale=st.floats(-6, 6).map(lambda e: 10**e),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_functions_match_mpmath_at_random_arguments(dim, z, scale, dtype):
    with jax.enable_x64(dtype == np.float64), jax.disable_jit():
        check(dim, np.array([z * scale], dtype), np.array([scale], dtype))


@pytest.mark.parametrize("dim", [1, 2, 27])
@pytest.mark.usefixtures("eagerly")
def test_symmetry(dim):
    x = np.float32([0.0, 1e-20, 0.3, 1.0, 5.0, 60.0, 1e6])
    right, left = distribution(dim, x), distribution(dim, -x)
    for name, mirrored in zip(
        NAMES, ("pdf", "logpdf", "sf", "logsf", "cdf", "logcdf"), strict=True
    ):
        np.testing.assert_array_equal(right[name], left[mirrored])
    np.testing.assert_allclose(right["cdf"] + right["sf"], 1, rtol=2e-7)


@pytest.mark.parametrize("dim", [1, 2, 3, 27, 1024])
@pytest.mark.usefixtures("eagerly")
def test_at_zero_and_at_infinity(dim):
    zero, far, end, nowhere = (
        {
            name: value[i]
            for name, value in distribution(dim, np.float32([0, 1e30, np.inf, np.nan]), 2).items()
        }
        for i in range(4)
    )
    # The mean over g of the normal densities' peaks (16 pi g)^-1/2.
    log_peak = math.inf
    if dim > 1:
        log_peak = math.lgamma((dim - 1) / 2) - math.lgamma(dim / 2) - math.log(16 * math.pi) / 2
    np.testing.assert_allclose(zero["logpdf"], log_peak, rtol=1e-6)
    np.testing.assert_allclose(zero["pdf"], np.exp(log_peak), rtol=1e-6)
    for name in ("cdf", "sf"):
        assert zero[name] == 0.5
        np.testing.assert_allclose(zero[f"log{name}"], -math.log(2), rtol=1e-7)
    for name in ("logpdf", "logsf"):
        np.testing.assert_allclose(far[name], -5e29, rtol=1e-6)
        assert end[name] == -np.inf
    for place in (far, end):
        assert (place["pdf"], place["sf"], place["cdf"], place["logcdf"]) == (0, 0, 1, 0)
    assert all(np.isnan(value) for value in nowhere.values())


@pytest.mark.parametrize("dim", [1, 2, 27])
@pytest.mark.usefixtures("eagerly", "x64")
def test_derivatives(dim):
    """Against central differences, on intervals of each kind on either side of 0."""
    x = np.array([-2900.0, -40.3, -1.7, -0.3, -1e-5, 1e-4, 0.2, 0.35, 3.7, 19.1, 3000.0])
    scale = np.linspace(0.5, 0.8, x.size)
    by_x, by_scale = slopes(dim, x, scale)
    for slope, step in ((by_x, (1e-5 * abs(x), 0)), (by_scale, (0, 1e-5 * scale))):
        up, down = (
            distribution(dim, x + sign * step[0], scale + sign * step[1]) for sign in (1, -1)
        )
        for name in NAMES:
            want = (up[name] - down[name]) / (2 * sum(step))
            # The differences lose only the last digit of the values.
            noise = 3e-15 * (1 + abs(up[name])) / sum(step)
            assert (abs(slope[name] - want) <= 1e-7 * abs(want) + noise).all(), name


def test_reverse_mode_agrees_with_forward_mode():
    """The derivative with respect to a scale that all elements share is the sum over them."""
    x, scale = jnp.linspace(-9, 9, 7), jnp.float32(0.6)

    def f(x, scale):
        return FUNCTIONS["logsf"](x, dim=3, scale=scale)

    by_x, by_scale = jax.jit(jax.grad(lambda *a: f(*a).sum(), (0, 1)))(x, scale)
    _, want = jax.jvp(f, (x, scale), (jnp.ones_like(x), jnp.zeros_like(scale)))
    np.testing.assert_allclose(by_x, want, rtol=1e-5)
    _, want = jax.jvp(f, (x, scale), (jnp.zeros_like(x), jnp.ones_like(scale)))
    np.testing.assert_allclose(by_scale, want.sum(), rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 27])
@pytest.mark.usefixtures("eagerly", "x64")
def test_second_derivatives(dim):
    """Bessel's equation, for the logarithm: L'' = 1 + (2 nu - 1) L' / z - L'^2."""

    def slope(z):
        return jax.jvp(lambda z: all_functions(dim, z, jnp.ones_like(z))["logpdf"], (z,), (z**0,))[
            1
        ]

    z = jnp.asarray(np.resize([0.1, 0.9, 1.5, 20.0, 300.0, 5000.0], 24))
    value, got = jax.jvp(slope, (z,), (z**0,))
    np.testing.assert_allclose(got, 1 + (dim - 2) * value / z - value**2, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dim", [1, 3, 27, 1024])
@pytest.mark.usefixtures("eagerly")
def test_log_density_slopes_are_accurate_in_float32(dim):
    """The derivative of log f is -K_{nu-1}/K_nu, in float32, to the end of the tails."""
    x = np.float32([1e-15, 1e-3, 0.5, 0.999, 1.0, 1.001, 4.0, 40.0, 170.0, 2000.0, 1e5])
    by_x, _ = slopes(dim, x)
    for xi, value in zip(x, by_x["logpdf"], strict=True):
        with mpmath.workdps(30):
            z = mpmath.mpf(float(xi))
            # f'_d = -x f_{d-2} / (d - 2), and for d = 1 K_1 over K_0.
            if dim > 1:
                want = -z / (dim - 2) * exact(dim - 2, z)[0] / exact(dim, z)[0]
            else:
                want = -mpmath.besselk(1, z) / mpmath.besselk(0, z)
        np.testing.assert_allclose(value, float(want), rtol=1e-5)


@pytest.mark.parametrize("dim", [1, 2, 3, 27])
@pytest.mark.usefixtures("eagerly")
def test_derivatives_at_zero(dim):
    zero, scale = np.float32(0), 0.5
    by_x, by_scale = slopes(dim, zero, scale)
    for name in ("pdf", "logpdf"):  # the cusp of 2 and the pole of 1 are symmetric
        assert by_x[name] == 0
    np.testing.assert_allclose(by_scale["logpdf"], -1 / scale, rtol=1e-6)
    for name in ("cdf", "logcdf", "sf", "logsf"):  # 0 is the median, whatever the scale
        assert by_scale[name] == 0
    # For the pole the value at the smallest number, K_0(1.2e-38) / (pi scale).
    peak = distribution(dim, zero, scale)["pdf"] if dim > 1 else 87.45 / math.pi / scale
    np.testing.assert_allclose(by_x["cdf"], peak, rtol=1e-4)
    np.testing.assert_allclose(by_x["logsf"], -2 * peak, rtol=1e-4)
    np.testing.assert_allclose(by_scale["pdf"], -peak / scale, rtol=1e-4)


@pytest.mark.parametrize("dim", [1, 2, 1024])
@pytest.mark.usefixtures("eagerly")
def test_derivatives_are_finite_everywhere(dim):
    size = np.float32([0, 1e-30, 1e-20, 1e-10, 1e-3, 1, 3, 30, 100, 1e4, 1e6, 1e10])
    for scale in (1e-6, 1e6):
        for slope in slopes(dim, np.concatenate([-size, size]), scale):
            for name, value in slope.items():
                assert np.isfinite(value).all(), (name, scale)
    for slope in slopes(dim, np.float32([1e38, -1e38]), 1e-6):  # their quotient overflows
        for name in ("pdf", "cdf", "sf"):
            assert (slope[name] == 0).all()


def test_jit_vmap_and_broadcasting_agree_and_scale_does_not_retrace():
    x = np.linspace(-4, 4, 12, dtype=np.float32).reshape(3, 4)
    scales = np.float32([0.3, 0.6, 1.0, 2.0])
    f = functools.partial(FUNCTIONS["cdf"], dim=3)
    one = jax.jit(lambda x, scale: f(x, scale=scale))
    want = np.stack([[one(x[i, j], scales[j]) for j in range(4)] for i in range(3)])
    np.testing.assert_allclose(f(x, scale=scales), want, rtol=1e-6)
    np.testing.assert_allclose(f(x[:, :1], scale=scales), f(np.tile(x[:, :1], 4), scale=scales))
    by_row = jax.vmap(lambda x: f(x, scale=scales))
    np.testing.assert_allclose(by_row(x), want, rtol=1e-6)

    g, traces = counted(lambda x, scale: f(x, scale=scale))
    for scale in (0.3, 0.6):
        np.testing.assert_allclose(g(x, scale), f(x, scale=scale), rtol=1e-6)
    assert len(traces) == 1


def test_types():
    f = functools.partial(FUNCTIONS["logcdf"], dim=3)
    for half in (jnp.bfloat16, jnp.float16):
        x = jnp.linspace(-3, 3, 5, dtype=half)
        got = f(x, scale=jnp.ones((), half))
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, f(x.astype(jnp.float32)))
    np.testing.assert_array_equal(f(jnp.arange(3)), f(jnp.arange(3.0)))
    with jax.enable_x64(True):
        assert f(jnp.ones(2), scale=0.6).dtype == jnp.float64
        assert f(jnp.ones(2, jnp.float32), scale=0.6).dtype == jnp.float32
        assert f(0.5, scale=jnp.ones((), jnp.float32)).dtype == jnp.float32


@pytest.mark.parametrize("dim", [1, 27])
def test_samples_follow_distribution(dim):
    n, scale = 20_000, 0.6

    @jax.jit
    def draw(scale):
        return stats.sample_variance_gamma(jax.random.key(dim), dim=dim, shape=(n,), scale=scale)

    x, slope = jax.jvp(draw, (scale,), (1.0,))
    # Far below the statistic of a wrong distribution, and not exceeded by 99.9% of the seeds.
    test = scipy.stats.kstest(np.asarray(FUNCTIONS["cdf"](x, dim=dim, scale=scale)), "uniform")
    assert test.pvalue > 1e-3
    # The fourth moment of the distribution is 3 (1 + 2/d) times the square of the second.
    spread = dim * scale**2 * math.sqrt((2 + 6 / dim) / n)
    assert abs(np.var(x) - dim * scale**2) < 4 * spread
    np.testing.assert_allclose(slope, x / scale, rtol=1e-5)


def test_shapes_and_types_of_samples():
    scale = jnp.array([1e-6, 1.0, 1e6])
    draw = functools.partial(stats.sample_variance_gamma, jax.random.key(0), dim=2)
    x = draw(scale=scale, shape=(500, 3))
    assert len(np.unique(x)) > 1490
    np.testing.assert_allclose(x.std(axis=0) / scale, math.sqrt(2), rtol=0.3)

    def like(**options):
        found = jax.eval_shape(lambda: draw(**options))
        return found.shape, found.dtype

    assert like() == ((), jnp.float32)
    assert like(scale=scale.astype(jnp.bfloat16)) == ((3,), jnp.float32)
    with jax.enable_x64(True):
        assert like(scale=np.float64(1)) == ((), jnp.float64)


@pytest.mark.parametrize("dim", [0, -3, 2.0, True, None, jnp.ones(2)])
def test_rejects_invalid_dimension(dim):
    with refused("dim", " must be a positive Python integer, got"):
        stats.sample_variance_gamma(jax.random.key(0), dim=dim)
    for f in FUNCTIONS.values():
        with refused("dim", " must be a positive Python integer, got"):
            f(jnp.ones(3), dim=dim)


def test_rejects_traced_dimension():
    with refused("dim", " must be a positive Python integer, got"):
        jax.jit(lambda dim: FUNCTIONS["pdf"](1.0, dim=dim))(3)


@pytest.mark.parametrize("scale", [0, -1.0, np.inf, np.nan, [1.0, 0.0, 2.0]])
def test_rejects_invalid_scale(scale):
    scale = jnp.asarray(scale, jnp.float32)
    for f in FUNCTIONS.values():
        with raises(ValueError, match=r"`scale` must lie in \(0.0, inf\), got"):
            f(jnp.ones(3), dim=2, scale=scale)
    with raises(ValueError, match=r"`scale` must lie in \(0.0, inf\), got"):
        stats.sample_variance_gamma(jax.random.key(0), dim=2, scale=scale)


def test_rejects_incompatible_shapes():
    with raises(ValueError, match=r"`scale` must broadcast with shape \(3,\), got \(2,\)"):
        FUNCTIONS["pdf"](jnp.ones(3), dim=2, scale=jnp.ones(2))
    for shape in ((2,), (3, 1), ()):
        with raises(ValueError, match="`scale`"):
            stats.sample_variance_gamma(jax.random.key(0), dim=2, scale=jnp.ones(3), shape=shape)
