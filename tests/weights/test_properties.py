"""Properties of weights of negatives: formulas in float64, masks, transformations, arguments."""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.special
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")

BATCH, N = (4, 5), 13


def np_phi(s, m, tau_plus, alpha):
    """Share of lower-scored true negatives, by the root of the quadratic in its stable form."""
    u = ((s[..., None, :] <= s[..., :, None]) * m[..., None, :]).sum(-1) / m.sum(-1, keepdims=True)
    a = (1 - 2 * alpha) * (1 - 2 * tau_plus)
    b = 2 * (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    phi = 2 * u / (b + np.sqrt(b**2 + 4 * a * u))
    return phi, b / 2 + a * phi


def np_bayesian(s, m, tau_plus, alpha, beta):
    phi, below = np_phi(s, m, tau_plus, alpha)
    z = (1 - beta) * alpha + beta * (1 - alpha)
    return m * ((1 - beta) * alpha + (beta - alpha) * phi) / z / below


def np_posterior(s, m, tau_plus, alpha):
    phi, below = np_phi(s, m, tau_plus, alpha)
    return m * (1 - tau_plus) * (alpha + (1 - 2 * alpha) * phi) / below


def np_hard(s, m, beta, temperature):
    power = m * np.exp(beta * s / temperature)
    return power / (power.sum(-1, keepdims=True) / m.sum(-1, keepdims=True))


def np_gaussian(s, m, mu, sigma):
    shape = m * np.exp(-(((s - mu) / sigma) ** 2) / 2)
    return shape / (shape.sum(-1, keepdims=True) / m.sum(-1, keepdims=True))


def np_adversarial(s, m, radius, temperature):
    """Tilts weights until their divergence from uniform weights equals the radius."""
    found, shape = np.zeros(m.shape), (*m.shape[:-1], 1)
    radius, temperature = (np.broadcast_to(x, shape) for x in (radius, temperature))
    for row in np.ndindex(m.shape[:-1]):
        kept = np.flatnonzero(m[row])
        found[row][kept] = np_tilted(s[row][kept] / temperature[row], radius[row][0])
    return found


def np_tilted(logits, radius):
    x = np.exp(logits - logits.max())

    def weights_of(tilt):
        return scipy.special.softmax(tilt * x) * len(x)

    def excess(tilt):
        return scipy.special.rel_entr(weights_of(tilt), 1).mean() - radius

    if excess(1e9) <= 0:  # all weight on the largest
        return weights_of(1e9)
    return weights_of(scipy.optimize.brentq(excess, 0, 1e9, xtol=1e-15, rtol=1e-15))


class Case(NamedTuple):
    """Weight function, reference formula and hyper-parameter values, one per anchor."""

    fn: Callable
    ref: Callable
    points: dict
    temperatures: tuple = (None,)


BAYESIAN = np.array([
    (0.1, 0.9, 0.9),
    (0.1, 0.7, 0.5),
    (0.0, 0.8, 0.6),
    (0.5, 0.8, 0.7),  # the quadratic of the published root degenerates,
    (0.3, 0.5, 0.9),  # and here
    (0.7, 0.95, 0.8),  # more false negatives than true ones
    (0.999, 0.6, 0.5),
    (0.2, 1.0, 0.5),
    (0.2, 0.9, 1.0),
    (0.0, 0.999, 0.5),
]).T  # fmt: skip
WEIGHTS = {
    "bayesian": Case(
        weights.bayesian_weights, np_bayesian, dict(zip(("tau_plus", "alpha", "beta"), BAYESIAN))
    ),
    "posterior": Case(
        weights.true_negative_posterior, np_posterior, dict(zip(("tau_plus", "alpha"), BAYESIAN))
    ),
    "hard": Case(
        weights.hard_weights, np_hard, {"beta": np.array([0.0, 0.5, 1.0, 2.5])}, (1.0, 0.5, 0.1)
    ),
    "gaussian": Case(
        weights.gaussian_weights,
        np_gaussian,
        {"mu": np.array([-0.5, 0.0, 0.7, 2.0]), "sigma": np.array([0.3, 0.5, 1.0, 30.0])},
    ),
    "adversarial": Case(
        weights.adversarial_weights,
        np_adversarial,
        {"radius": np.array([0.0, 0.05, 0.4, 5.0])},
        (1.0, 0.5),
    ),
}
each_case = pytest.mark.parametrize(Case._fields, WEIGHTS.values(), ids=WEIGHTS)


@pytest.fixture
def scores():
    """Returns scores with ties, a mask with a valid entry per anchor, and cotangents."""
    rng = np.random.default_rng(0)
    where = rng.random((*BATCH, N)) < 0.6
    where[..., 0] = True
    s, cotangents = rng.normal(size=(2, *BATCH, N))
    return np.float32(s.round(1)), where, np.float32(cotangents)


def point(points, temperature, dtype=np.float32):
    """Hyper-parameters that differ between anchors."""
    found = {k: np.resize(v, BATCH).astype(dtype) for k, v in points.items()}
    return found if temperature is None else found | {"temperature": dtype(temperature)}


TRACES = []


@cache
def evaluation(fn):
    """Returns the slopes of a weighted sum, and the weights; compiled once for each dtype."""

    @jax.jit
    def f(s, where, cotangents, hyper):
        TRACES.append(fn)

        def total(s, hyper):
            w = fn(s, **hyper, where=where)
            return jnp.sum(cotangents * w), w

        return jax.grad(total, argnums=(0, 1), has_aux=True)(s, hyper)

    return f


def differences(ref, args, cotangents, name):
    """Returns a random direction for one argument and the central difference along it."""
    way = np.random.default_rng(1).normal(size=np.shape(args[name]))

    def total(step):
        moved = {**args, name: args[name] + step * way}
        moved = {k: v[..., None] if np.ndim(v) == 2 else v for k, v in moved.items()}
        return np.sum(cotangents * ref(**moved))

    return way, (total(1e-6) - total(-1e-6)) / 2e-6


@each_case
def test_values_and_gradients(scores, fn, ref, points, temperatures):
    s, where, cotangents = scores
    for temperature in temperatures:
        hyper = point(points, temperature)
        _, got = evaluation(fn)(s, where, cotangents, hyper)
        columns = {k: np.float64(v)[..., None] for k, v in hyper.items()}
        want = ref(np.float64(s), where, **columns)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-7)

        wide = point(points, temperature, np.float64)
        with jax.enable_x64(True):
            slopes, got = evaluation(fn)(np.float64(s), where, np.float64(cotangents), wide)
        want = ref(np.float64(s), where, **{k: np.expand_dims(v, -1) for k, v in wide.items()})
        np.testing.assert_allclose(got, want, rtol=1e-5 if "alpha" in points else 1e-12, atol=1e-12)
        if fn in (weights.hard_weights, weights.gaussian_weights):
            args = {"s": np.float64(s), "m": where} | wide
            for name, slope in {"s": slopes[0], **slopes[1]}.items():
                way, difference = differences(ref, args, cotangents, name)
                np.testing.assert_allclose(np.sum(np.asarray(slope) * way), difference, rtol=1e-5)
        else:  # functions of ranks, or constant with respect to gradients
            np.testing.assert_array_equal(slopes[0], 0)
    assert TRACES.count(fn) == 2, "recompiled for other values of hyper-parameters"


@each_case
def test_ignores_masked_entries(scores, fn, ref, points, temperatures):
    s, where, cotangents = scores
    where[0] = False
    hyper = point(points, temperatures[-1])
    slopes, want = evaluation(fn)(s, where, cotangents, hyper)
    assert np.all(np.asarray(want)[~where] == 0)
    assert all(np.isfinite(slope).all() for slope in jax.tree.leaves(slopes))
    for junk in (np.nan, np.inf, -np.inf):
        got = evaluation(fn)(np.where(where, s, np.float32(junk)), where, cotangents, hyper)
        jax.tree.map(np.testing.assert_array_equal, got, (slopes, want))


@each_case
def test_sweeps_and_half_precision(scores, fn, ref, points, temperatures):
    """Scalar hyper-parameters, mapped; scores in bfloat16; no mask."""
    half = jnp.asarray(scores[0], jnp.bfloat16)
    sweep = {k: v[:2].astype(np.float32) for k, v in points.items()}
    if temperatures[0]:
        sweep["temperature"] = np.float32(temperatures[:2])
    got = jax.jit(jax.vmap(lambda hyper: fn(half, **hyper)))(sweep)
    assert got.dtype == jnp.float32
    for i, w in enumerate(got):
        hyper = {k: np.float64(v[i]) for k, v in sweep.items()}
        want = ref(np.asarray(half, np.float64), np.ones(half.shape), **hyper)
        np.testing.assert_allclose(w, want, rtol=2e-5, atol=1e-7)


BAD = {
    "tau_plus": [1.0, 1 - 1e-8, -0.1],
    "alpha": [0.4, 1.1],
    "beta": [-0.1, np.inf, 1e39],
    "radius": [-0.1, np.inf, 1e39],
    "temperature": [0.0, 1e-40],
    "mu": [np.inf, -np.inf, np.nan],
    "sigma": [0.0, -0.1, np.nan, 1e-40],
}


@each_case
def test_errors_name_the_argument(scores, fn, ref, points, temperatures):
    s, where, _ = scores
    hyper = {k: v[0] for k, v in points.items()}
    names = hyper.keys() | ({"temperature"} if temperatures[0] else set())
    for name in names:
        for value in [*BAD[name], *([0.4] if name == "beta" and "alpha" in points else [])]:
            with raises(ValueError, match=f"`{name}` must lie in"):
                fn(s, **hyper | {name: value})
        for shape in [(3,), (4, 5, 1)]:
            with raises(ValueError, match=f"`{name}` must"):
                fn(s, **hyper | {name: np.full(shape, 0.6)})
    with raises(Exception, match="where"):
        fn(s, **hyper, where=where[0])
