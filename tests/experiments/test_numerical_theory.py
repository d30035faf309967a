"""Numerical checks of lemmas and theorems, against float64 references."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from scipy import integrate

from experiments.numerical import _information as information
from experiments.numerical import _model as model
from experiments.numerical import _pairwise as pairwise
from experiments.numerical import _risk as risk

pytestmark = pytest.mark.usefixtures("quick_compiles")


@pytest.mark.parametrize("population", model.POPULATIONS)
def test_scores_match_population_density(population):
    """Both classes are ordered draws from phi, whose CDF maps them to the uniform case."""
    setting = model.Setting(0.9, 0.0, 0.3, 0.5, 0.5, 0.9, 0.3)
    sample = model.draw(
        jax.random.key(0), setting, n_anchors=4, n_neg=3000, n_pos=1, population=population
    )
    x = np.asarray(sample.neg[0], np.float64) + 0.5
    dist, low, high = model.POPULATIONS[population] or (scipy.stats.uniform(), 0.0, 1.0)
    ends = dist.cdf([low, high])
    below = (dist.cdf(low + x * (high - low)) - ends[0]) / (ends[1] - ends[0])
    for label, lead in ((True, 0.9), (False, 0.1)):
        own = below[np.asarray(sample.is_true[0]) == label]
        cdf = lambda u, lead=lead: 2 * lead * u + (1 - 2 * lead) * u**2  # noqa: E731
        assert scipy.stats.kstest(own, cdf).pvalue > 0.01
        other = lambda u, lead=lead: 2 * (1 - lead) * u + (2 * lead - 1) * u**2  # noqa: E731
        assert scipy.stats.kstest(own, other).pvalue < 1e-6


@pytest.mark.parametrize("population", [name for name in model.POPULATIONS if name != "uniform"])
def test_bcl_is_unbiased_for_any_density(population):
    setting = model.Setting(*(jnp.full(1, x) for x in (0.9, 0.1, 0.2, 0.5, 0.5, 0.9, 0.2)))
    sizes = dict(n_anchors=200, n_neg=1000, n_pos=10, population=population)
    found = model.measure(jax.random.key(1), setting, **sizes)
    names = list(model.ESTIMATORS)
    bias, error = (np.asarray(found[key][0]) for key in ("bias", "bias_se"))
    bcl, biased = names.index("bcl"), names.index("biased")
    assert abs(bias[bcl]) < 4 * error[bcl] + 1e-3  # of order 1 / N
    assert bias[biased] > 20 * error[biased]
    limits = model.limits(
        jax.random.key(1), jax.tree.map(lambda x: x[0], setting), n_anchors=200, n_pos=10,
        population=population,
    )  # fmt: skip
    assert limits["bcl"] < 1e-3 < limits["biased"]


def np_supervised(pos):
    """Supervised loss (5.27) by quadrature over the density of true negatives on [-1, 1]."""
    density = lambda s: (pairwise.ALPHA * (1 - s) + (1 - pairwise.ALPHA) * (1 + s)) / 2  # noqa: E731
    rank = lambda s: density(s) / (1 + np.exp(s - pos))  # noqa: E731
    return -np.log(integrate.quad(rank, -1, 1)[0])


def test_dpl_converges_to_supervised_loss():
    """Lemma 5.2: the error is O(1/√N) for N = M, while the biased loss does not converge."""
    pos = jnp.array([-0.9, 0.0, 0.7])
    want = [np_supervised(x) for x in np.asarray(pos, np.float64)]
    np.testing.assert_allclose(pairwise.supervised(pos), want, rtol=1e-5)
    few, many = (
        pairwise.measure(jax.random.key(0), jnp.array([0.3]), n=n, n_anchors=500) for n in (16, 256)
    )
    assert few["error"][0] / many["error"][0] == pytest.approx(4, rel=0.2)
    assert many["loss_error"][0] < 2e-3
    assert many["biased_error"][0] > 0.05
    assert many["undefined"][0] == 0


def test_dpl_estimate_is_not_always_positive():
    """Lemma 5.3 as printed: the logarithm is undefined for a third of the anchors at τ⁺ = 0.99."""
    priors = jnp.array([0.1, 0.99])
    found = pairwise.measure(jax.random.key(0), priors, n=100, n_anchors=500)
    assert found["undefined"][0] == 0
    assert 0.2 < found["undefined"][1] < 0.5
    bounds = [pairwise.printed_bound(x, 100, 100) for x in (0.1, 0.99)]
    np.testing.assert_allclose(bounds, np.e**2 * np.sqrt(2 * np.pi) / 10 * np.array([1.1, 1.99]))
    assert (np.asarray(found["error"]) < bounds).all()


def test_bayesian_rule_minimizes_sampling_risk():
    """Theorem 4.1 with exact posteriors, so that the risk from labels has the same expectation."""
    unseen = risk.draw_unseen(jax.random.key(0), 3000, 40)
    share, posterior = np.asarray(unseen.is_false), np.asarray(unseen.posterior)
    for low, high in ((0.0, 0.5), (0.5, 0.9), (0.9, 0.97), (0.97, 1.0)):  # calibrated
        inside = (posterior >= low) & (posterior <= high)
        n = inside.sum()
        want = 1 - posterior[inside].mean()
        assert share[inside].mean() == pytest.approx(want, abs=4 * np.sqrt(want / n) + 1e-4)
    least = []
    for size in (1, 5, 40):
        found = risk.measure(unseen, size=size)
        info, certain = (
            np.asarray(x[:, :size], np.float64) for x in (unseen.info, unseen.posterior)
        )
        conditional = (1 - certain) * info - risk.RISK_LAMBDA * certain * info  # (4.25)
        np.testing.assert_allclose(found["bns"]["risk"], conditional.min(-1).mean(), rtol=1e-4)
        np.testing.assert_allclose(found["rns"]["risk"], conditional[:, 0].mean(), rtol=1e-4)
        for name, quality in found.items():
            assert quality["risk"] >= found["bns"]["risk"], name
            error = (1 + risk.RISK_LAMBDA) / np.sqrt(3000)
            assert quality["labelled_risk"] == pytest.approx(quality["risk"], abs=4 * error)
        least.append(float(found["bns"]["risk"]))
    assert least[0] > least[1] > least[2]


def test_density_ratio_inverts_score_and_jumps_at_pole():
    """(6.7), from (6.6): x = m p+ / (p- tau- + p+ tau+), inverted numerically."""
    ratio = np.array([0.1, 1.0, 7.0])
    for share, m in ((0.0, 1.0), (0.1, 1.0), (0.5, 2.0)):
        score = m * ratio / (1 - share + share * ratio)
        np.testing.assert_allclose(information.density_ratio(score, share, m), ratio, rtol=1e-12)
    assert information.density_ratio(np.array([9.9]), 0.1) > 0
    assert information.density_ratio(np.array([10.1]), 0.1) < 0


def test_bound_matches_mutual_information_of_gaussians():
    """True negatives reach it from below, unlabelled samples do not; DCL corrects the bias."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 5, 3)).astype(np.float32)
    rho = 0.6
    cov = np.block([[np.eye(3), rho * np.eye(3)], [rho * np.eye(3), np.eye(3)]])
    joint = scipy.stats.multivariate_normal(cov=cov).logpdf(np.concatenate([x, y], -1))
    apart = scipy.stats.norm.logpdf(np.concatenate([x, y], -1)).sum(-1)
    got = information.log_ratio(jnp.asarray(x), jnp.asarray(y), jnp.float32(rho))
    np.testing.assert_allclose(got, joint - apart, rtol=1e-4, atol=1e-5)
    few, many = (
        information.measure(jax.random.key(2), jnp.float32(0.5), n=n, n_anchors=2000)
        for n in (4, 128)
    )
    error = 0.05  # of the mean of 2,000 losses
    assert few["supervised"] < many["supervised"] + error
    assert many["supervised"] == pytest.approx(0.5, abs=error)
    assert many["biased"] < 0.5 - 2 * error
    assert many["debiased"] == pytest.approx(0.5, abs=2 * error)
