"""Laws of scores: the closed form, and the smoothed one against SciPy's estimate."""

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
def law_at(distribution, x):
    return distribution.pdf(x), distribution.cdf(x)


@jax.jit
def law_and_slopes(distribution, x):
    return jax.jvp(lambda x: law_at(distribution, x), (x,), (jnp.ones_like(x),))


def silverman(sample):
    """Bandwidth of equation 3.31, from NumPy's moments."""
    low, high = np.quantile(sample, [0.25, 0.75])
    return 0.9 * min(sample.std(), (high - low) / 1.34) * len(sample) ** -0.2


@pytest.mark.parametrize(("name", "bandwidth"), [*zip(SAMPLES, [0.5, 1.0, 2.0, 1.0])])
def test_smoothed_law_is_the_kernel_estimate(name, bandwidth):
    sample = SAMPLES[name](np.random.default_rng(0), 3000)
    h = bandwidth * silverman(sample)
    exact = scipy.stats.gaussian_kde(sample, bw_method=h / sample.std(ddof=1))
    x = np.linspace(sample.min() - 2 * h, sample.max() + 2 * h, 301)
    pdf, cdf = law_at(fitted(np.float32(sample), bandwidth), np.float32(x))
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
def test_smoothed_law_is_a_law_whatever_the_sample(values, bandwidth):
    sample = np.asarray(values, np.float32)
    low, high = float(sample.min()), float(sample.max())
    reach = max(high - low, 1e-30)
    x = np.asarray(np.linspace(low - reach, high + reach, 101), np.float32)
    distribution = fitted(sample, bandwidth)
    pdf, cdf = (np.asarray(values) for values in law_at(distribution, x))
    assert np.isfinite(pdf).all()
    assert (pdf >= 0).all()
    assert np.isfinite(cdf).all()
    assert (np.diff(cdf) >= 0).all()
    assert cdf[0] >= 0
    assert cdf[-1] <= 1
    mass = np.sum(np.asarray(distribution.density, np.float64)) * float(distribution.width)
    assert np.isclose(mass, 1, atol=1e-4)


def test_smoothed_law_stays_near_the_ecdf():
    sample = np.random.default_rng(1).standard_t(3, 20_000)
    distribution = fitted(jnp.asarray(sample, jnp.float32), 1.0)
    own = np.arange(1, 20_001) / 20_000
    assert np.abs(law_at(distribution, np.float32(np.sort(sample)))[1] - own).max() < 0.02


def test_a_known_law_does_not_look_at_the_sample():
    distribution = stats.VarianceGamma(27, 0.6)
    assert distribution.fit(jnp.ones(3)) is distribution
    x = jnp.linspace(-3.0, 3.0, 7)
    np.testing.assert_array_equal(
        distribution.pdf(x), stats.variance_gamma_pdf(x, dim=27, scale=0.6)
    )
    np.testing.assert_array_equal(
        distribution.cdf(x), stats.variance_gamma_cdf(x, dim=27, scale=0.6)
    )


def test_numbers_of_a_law_may_change_without_compiling_anew():
    traced = []

    @jax.jit
    def at(distribution, sample):
        traced.append(1)
        return distribution.fit(sample).cdf(sample)

    sample = jnp.linspace(-1.0, 1.0, 9)
    for scale in (0.1, 0.2):
        at.trace(stats.VarianceGamma(4, scale), sample)
    for bandwidth in (0.5, 1.0):
        at.trace(stats.SmoothedEmpirical(bandwidth), sample)
    assert len(traced) == 2


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 1.0])
def test_one_of_two_scores_has_the_law_that_both_were_drawn_from(share):
    rng = np.random.default_rng(0)
    pair = np.sort(rng.normal(size=(200_000, 2)), axis=1)
    seen = np.where(rng.random(len(pair)) < share, pair[:, 1], pair[:, 0])
    distribution = stats.OrderStatisticMixture(fitted(np.float32(seen), 0.5), share)
    x = np.linspace(-2, 2, 41, dtype=np.float32)
    pdf, cdf = law_at(distribution, x)
    np.testing.assert_allclose(cdf, scipy.stats.norm.cdf(x), atol=0.01)
    np.testing.assert_allclose(pdf, scipy.stats.norm.pdf(x), atol=0.03)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 1.0])
def test_one_of_two_is_finite_everywhere_with_finite_slopes(share):
    distribution = stats.OrderStatisticMixture(stats.VarianceGamma(27, 0.6), share)
    x = jnp.array([-3e38, -200.0, -1.0, 0.0, 1.0, 200.0, 3e38])
    values, slopes = law_and_slopes(distribution, x)
    for found in (*values, *slopes):
        assert np.isfinite(found).all()
    assert (np.diff(values[1]) >= 0).all()


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_nan_is_seen_in_every_law(share):
    known = stats.VarianceGamma(27, 0.6)
    for distribution in (
        known,
        fitted(jnp.arange(9.0), 1.0),
        stats.OrderStatisticMixture(known, share),
    ):
        for found in law_at(distribution, jnp.array([0.5, jnp.nan])):
            np.testing.assert_array_equal(np.isnan(found), [False, True])


@pytest.mark.parametrize("sample_type", [jnp.bfloat16, jnp.float16])
def test_half_precision_counts_as_float32(sample_type):
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
def test_bad_arguments_are_named(make, name):
    with refused(name):
        make()
