"""Score distributions: the closed form, and the smoothed one against SciPy's kernel estimate."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from _helpers.refusals import refused
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax import stats

pytestmark = pytest.mark.usefixtures("quick_compiles")

SAMPLES = {
    "normal": lambda rng, n: rng.normal(1.0, 2.0, n),
    "two humps": lambda rng, n: np.r_[rng.normal(-4, 0.5, n // 3), rng.normal(size=n - n // 3)],
    "skewed": lambda rng, n: rng.gamma(2.0, 3.0, n),
    "ties": lambda rng, n: rng.integers(0, 9, n).astype(float),
}  # fmt: skip


@jax.jit
def fitted(sample, bandwidth):
    return stats.SmoothedEmpirical(bandwidth).fit(sample)


@jax.jit
def pdf_and_cdf(distribution, x):
    return distribution.pdf(x), distribution.cdf(x)


@jax.jit
def pdf_and_cdf_with_slopes(distribution, x):
    return jax.jvp(lambda x: pdf_and_cdf(distribution, x), (x,), (jnp.ones_like(x),))


def silverman(sample):
    """Bandwidth of equation 3.31, from NumPy's moments."""
    low, high = np.quantile(sample, [0.25, 0.75])
    return 0.9 * min(sample.std(), (high - low) / 1.34) * len(sample) ** -0.2


@pytest.mark.parametrize(("name", "bandwidth"), [*zip(SAMPLES, [0.5, 1.0, 2.0, 1.0])])
def test_smoothed_empirical_matches_kernel_density_estimate(name, bandwidth):
    sample = SAMPLES[name](np.random.default_rng(0), 3000)
    h = bandwidth * silverman(sample)
    exact = scipy.stats.gaussian_kde(sample, bw_method=h / sample.std(ddof=1))
    x = np.linspace(sample.min() - 2 * h, sample.max() + 2 * h, 301)
    pdf, cdf = pdf_and_cdf(fitted(np.float32(sample), bandwidth), np.float32(x))
    density = exact(x)
    np.testing.assert_allclose(pdf, density, atol=0.01 * density.max())
    want = [exact.integrate_box_1d(-np.inf, point) for point in x]
    np.testing.assert_allclose(cdf, want, atol=2e-3)


some_values = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([1, 2, 40]).flatmap(lambda n: st.lists(some_values, min_size=n, max_size=n)),
    st.floats(0.1, 10.0),
)
def test_smoothed_empirical_is_distribution_for_any_sample(values, bandwidth):
    sample = np.asarray(values, np.float32)
    low, high = float(sample.min()), float(sample.max())
    margin = max(high - low, 1e-30)
    x = np.asarray(np.linspace(low - margin, high + margin, 101), np.float32)
    distribution = fitted(sample, bandwidth)
    pdf, cdf = (np.asarray(values) for values in pdf_and_cdf(distribution, x))
    assert np.isfinite(pdf).all()
    assert (pdf >= 0).all()
    assert np.isfinite(cdf).all()
    assert (np.diff(cdf) >= 0).all()
    assert cdf[0] >= 0
    assert cdf[-1] <= 1
    mass = np.sum(np.asarray(distribution.density, np.float64)) * float(distribution.width)
    assert np.isclose(mass, 1, atol=1e-4)


def test_smoothed_empirical_is_close_to_ecdf():
    sample = np.random.default_rng(1).standard_t(3, 20_000)
    distribution = fitted(jnp.asarray(sample, jnp.float32), 1.0)
    own = np.arange(1, 20_001) / 20_000
    assert np.abs(pdf_and_cdf(distribution, np.float32(np.sort(sample)))[1] - own).max() < 0.02


def test_fit_of_known_distribution_ignores_sample():
    distribution = stats.VarianceGamma(27, 0.6)
    assert distribution.fit(jnp.ones(3)) is distribution
    x = jnp.linspace(-3.0, 3.0, 7)
    np.testing.assert_array_equal(
        distribution.pdf(x), stats.variance_gamma_pdf(x, dim=27, scale=0.6)
    )
    np.testing.assert_array_equal(
        distribution.cdf(x), stats.variance_gamma_cdf(x, dim=27, scale=0.6)
    )


def test_distribution_parameters_do_not_recompile():
    traces = []

    @jax.jit
    def at(distribution, sample):
        traces.append(1)
        return distribution.fit(sample).cdf(sample)

    sample = jnp.linspace(-1.0, 1.0, 9)
    for scale in (0.1, 0.2):
        at.trace(stats.VarianceGamma(4, scale), sample)
    for bandwidth in (0.5, 1.0):
        at.trace(stats.SmoothedEmpirical(bandwidth), sample)
    assert len(traces) == 2


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_order_statistic_mixture_recovers_parent_distribution(share):
    rng = np.random.default_rng(0)
    pair = np.sort(rng.normal(size=(200_000, 2)), axis=1)
    seen = np.where(rng.random(len(pair)) < share, pair[:, 1], pair[:, 0])
    distribution = stats.OrderStatisticMixture(fitted(np.float32(seen), 0.5), share)
    x = np.linspace(-2, 2, 41, dtype=np.float32)
    pdf, cdf = pdf_and_cdf(distribution, x)
    np.testing.assert_allclose(cdf, scipy.stats.norm.cdf(x), atol=0.01)
    np.testing.assert_allclose(pdf, scipy.stats.norm.pdf(x), atol=0.03)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_order_statistic_mixture_and_slopes_are_finite(share):
    distribution = stats.OrderStatisticMixture(stats.VarianceGamma(27, 0.6), share)
    x = jnp.array([-3e38, -200.0, -1.0, 0.0, 1.0, 200.0, 3e38])
    values, slopes = pdf_and_cdf_with_slopes(distribution, x)
    for found in (*values, *slopes):
        assert np.isfinite(found).all()
    assert (np.diff(values[1]) >= 0).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_distributions_propagate_nan(share):
    known = stats.VarianceGamma(27, 0.6)
    for distribution in (
        known,
        fitted(jnp.arange(9.0), 1.0),
        stats.OrderStatisticMixture(known, share),
    ):
        for found in pdf_and_cdf(distribution, jnp.array([0.5, jnp.nan])):
            np.testing.assert_array_equal(np.isnan(found), [False, True])


@pytest.mark.parametrize("sample_type", [jnp.bfloat16, jnp.float16])
def test_half_precision_sample_gives_float32_density(sample_type):
    sample = jnp.linspace(-1, 1, 64).astype(sample_type)
    distribution = jax.eval_shape(stats.SmoothedEmpirical().fit, sample)
    assert distribution.density.dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: stats.VarianceGamma(3, 0.0), "scale"),
        (lambda: stats.VarianceGamma(0, 1.0).pdf(jnp.zeros(2)), "dim"),
        (lambda: stats.SmoothedEmpirical(-1.0), "bandwidth"),
        (lambda: stats.SmoothedEmpirical().pdf(jnp.zeros(2)), "distribution"),
        (lambda: stats.SmoothedEmpirical().fit(jnp.zeros((2, 2))), "sample"),
        (lambda: stats.SmoothedEmpirical().fit(jnp.zeros(0)), "sample"),
        (lambda: stats.OrderStatisticMixture(stats.VarianceGamma(3), 1.2), "share"),
    ],
)
def test_errors_name_the_argument(make, name):
    with refused(name):
        make()
