"""Linear probes against scikit-learn, SciPy and normal equations in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from scipy import optimize, special
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from crl_jax.metrics import _logistic, linear_probe, ridge_probe
from crl_jax.metrics import _probe as module
from crl_jax.metrics._features import standardize

pytestmark = pytest.mark.usefixtures("quick_compiles")

KEY = jax.random.key(3)


def classes(n=400, dim=8, n_classes=3, seed=0, noise=1.0):
    """Correlated features with means far from 0, and overlapping classes."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    x = 1.5 * rng.normal(size=(n_classes, dim))[y] + noise * rng.normal(size=(n, dim))
    x = x @ rng.normal(size=(dim, dim)) + 20 * rng.normal(size=dim)
    return x.astype(np.float32), y.astype(np.int32)


X, Y = classes()
ARRAYS = tuple(map(jnp.asarray, (X[:300], Y[:300], X[300:], Y[300:])))
DIGITS = load_digits()


def np_logistic(x, y, l2, n_classes):
    """Returns the optimum for standardised features, in float64, as weights of the raw features."""
    x = np.asarray(x, np.float64)
    mean, scale = x.mean(0), x.std(0)
    z, targets = (x - mean) / scale, np.eye(n_classes)[y]

    def value_and_gradient(flat):
        kernel, bias = np.split(flat.reshape(-1, n_classes), [z.shape[1]])
        logits = z @ kernel + bias
        value = np.mean(special.logsumexp(logits, axis=1) - (targets * logits).sum(1))
        r = (special.softmax(logits, axis=1) - targets) / len(z)
        slope = np.concatenate([z.T @ r + l2 * kernel, r.sum(0)[None]])
        return value + l2 / 2 * (kernel**2).sum(), slope.ravel()

    start = np.zeros((z.shape[1] + 1) * n_classes)
    options = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-10}
    found = optimize.minimize(
        value_and_gradient, start, jac=True, method="L-BFGS-B", options=options
    )
    kernel, bias = np.split(found.x.reshape(-1, n_classes), [z.shape[1]])
    kernel = kernel / scale[:, None]
    return kernel, bias[0] - mean @ kernel


@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_linear_probe_reaches_optimum(l2):
    probe = linear_probe(*ARRAYS, n_classes=3, key=KEY, l2=l2, tolerance=1e-6)
    kernel, bias = np_logistic(X[:300], Y[:300], l2, 3)
    np.testing.assert_allclose(probe.kernel, kernel, atol=3e-4 * np.abs(kernel).max())
    centred = np.asarray(probe.bias) - np.mean(probe.bias)  # equal shifts change nothing
    np.testing.assert_allclose(centred, bias - bias.mean(), atol=3e-3)  # of about 6
    scores = X[300:].astype(np.float64) @ kernel + bias
    np.testing.assert_array_equal(probe.predictions, scores.argmax(1))
    assert probe.accuracy == pytest.approx(np.mean(scores.argmax(1) == Y[300:]))


def test_linear_probe_matches_scikit_learn():
    x, y = DIGITS.data, DIGITS.target
    z = StandardScaler().fit(x[:1000]).transform(x)
    model = LogisticRegression(C=1 / (1000 * 1e-3), tol=1e-8, max_iter=1000).fit(z[:1000], y[:1000])
    arrays = (x[:1000], y[:1000], x[1000:], y[1000:])
    x, y, *test = (jnp.asarray(a, jnp.float32 if i % 2 == 0 else jnp.int32)
                   for i, a in enumerate(arrays))  # fmt: skip
    probe = linear_probe(x, y, *test, n_classes=10, key=KEY, l2=1e-3, tolerance=1e-6)
    assert np.mean(np.asarray(probe.predictions) == model.predict(z[1000:])) > 0.998
    assert probe.accuracy == pytest.approx(model.score(z[1000:], DIGITS.target[1000:]), abs=2e-3)
    scale = DIGITS.data[:1000].std(0)
    kernel = np.asarray(probe.kernel) * np.where(scale == 0, 1, scale)[:, None]
    np.testing.assert_allclose(kernel, model.coef_.T, atol=2e-3)


def test_l2_search_selects_best_held_out_accuracy():
    """Noisy data need strong L2; the choice does not depend on the order of the candidates."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 60)).astype(np.float32)
    y = (x[:, 0] + rng.normal(size=400) > 0).astype(np.int32)
    arrays = tuple(map(jnp.asarray, (x[:120], y[:120], x[120:], y[120:])))
    l2 = [1e-6, 0.1, 1e-3, 0.3]
    for probe in (
        linear_probe(*arrays, n_classes=2, key=KEY, l2=l2, valid_fraction=0.4),
        ridge_probe(*arrays, n_classes=2, l2=l2),
    ):
        best = np.flatnonzero(np.asarray(probe.valid_accuracy) == np.max(probe.valid_accuracy))
        assert probe.l2 == pytest.approx(max(np.asarray(l2)[best]))
        assert probe.l2 >= 0.1
        assert probe.valid_accuracy[0] < np.max(probe.valid_accuracy)
    for fit in (lambda l2: linear_probe(*arrays, n_classes=2, key=KEY, l2=l2),
                lambda l2: ridge_probe(*arrays, n_classes=2, l2=l2)):  # fmt: skip
        forward, backward = fit(l2), fit(l2[::-1])
        np.testing.assert_array_equal(forward.valid_accuracy, backward.valid_accuracy[::-1])
        assert forward.l2 == backward.l2


def test_test_set_does_not_affect_fit():
    for fit in (lambda *a: linear_probe(*a, n_classes=3, key=KEY),
                lambda *a: ridge_probe(*a, n_classes=3)):  # fmt: skip
        one, other = fit(*ARRAYS), fit(*ARRAYS[:2], -ARRAYS[2], (ARRAYS[3] + 1) % 3)
        for name in ("l2", "valid_accuracy", "kernel", "bias"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert one.accuracy != other.accuracy


def test_held_out_accuracy_matches_fit_to_training_part():
    """Compares with scikit-learn fits that do not see the held-out part.

    The highest scores of each of the 90 held-out examples differ by at least 0.015.
    """
    probe = linear_probe(
        *ARRAYS, n_classes=3, key=KEY, l2=[0.01, 0.1], valid_fraction=0.3, tolerance=1e-6
    )
    order = np.asarray(jax.random.permutation(KEY, 300))
    valid = order < 90
    mean, scale = X[:300].mean(0), X[:300].std(0)
    z = (X[:300] - mean) / scale
    for l2, got in zip((0.01, 0.1), probe.valid_accuracy, strict=True):
        model = LogisticRegression(C=1 / (210 * l2), tol=1e-8, max_iter=1000)
        model.fit(z[~valid], Y[:300][~valid])
        assert got == pytest.approx(model.score(z[valid], Y[:300][valid]))


@pytest.fixture(params=["cpu", "default"])
def platform(request, monkeypatch):
    """Runs the ridge probe for CPUs, and its implementation for other platforms."""
    module._ridge_probe.clear_cache()
    monkeypatch.setattr(
        jax.lax, "platform_dependent", lambda *args, **forms: forms[request.param](*args)
    )
    yield request.param
    module._ridge_probe.clear_cache()


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize("l2", [1e-3, 0.1])
def test_ridge_probe_solves_normal_equations(l2):
    probe = ridge_probe(*ARRAYS, n_classes=3, l2=l2)
    x = X[:300].astype(np.float64)
    z = (x - x.mean(0)) / x.std(0)
    targets = np.eye(3)[Y[:300]]
    want = np.linalg.solve(z.T @ z / 300 + l2 * np.eye(8), z.T @ (targets - targets.mean(0)) / 300)
    want = want / x.std(0)[:, None]
    np.testing.assert_allclose(probe.kernel, want, rtol=1e-3, atol=2e-5 * np.abs(want).max())
    bias = targets.mean(0) - x.mean(0) @ want
    np.testing.assert_allclose(probe.bias, bias, rtol=1e-3, atol=1e-4)
    scores = X[300:].astype(np.float64) @ want + bias
    np.testing.assert_array_equal(probe.predictions, scores.argmax(1))


@pytest.mark.usefixtures("platform")
def test_leverage_formula_matches_leave_one_out_fits():
    """Leave-one-out fits, standardised with the statistics of all examples, in float64."""
    n, l2 = 40, [0.003, 0.3]
    arrays = tuple(map(jnp.asarray, (X[:n], Y[:n], X[300:], Y[300:])))
    probe = ridge_probe(*arrays, n_classes=3, l2=l2)
    z = (X[:n].astype(np.float64) - X[:n].mean(0)) / X[:n].std(0)
    for strength, got in zip(l2, probe.valid_accuracy, strict=True):
        right = []
        for i in range(n):
            rest = np.delete(np.arange(n), i)
            a = np.column_stack([z[rest], np.ones(n - 1)])
            penalty = n * strength * np.diag([1.0] * 8 + [0.0])
            fit = np.linalg.solve(a.T @ a + penalty, a.T @ np.eye(3)[Y[rest]])
            right.append((np.append(z[i], 1) @ fit).argmax() == Y[i])
        assert got == pytest.approx(np.mean(right))


@pytest.mark.usefixtures("platform")
def test_probes_handle_ill_conditioned_features():
    """A constant feature, one of huge mean, nearly equal ones, and more features than rows."""
    rng = np.random.default_rng(1)
    x = np.column_stack(
        [X, np.full(400, 0.1), 1e4 + X[:, 0], X[:, 0] + 1e-3 * rng.normal(size=400)]
    )
    x = x.astype(np.float32)
    arrays = tuple(map(jnp.asarray, (x[:300], Y[:300], x[300:], Y[300:])))
    z = x[:300].astype(np.float64) - x[:300].mean(0, dtype=np.float64)
    z = z / np.where(z.std(0) < 1e-6, 1, z.std(0))
    z[:, 8] = 0
    targets = np.eye(3)[Y[:300]] - np.eye(3)[Y[:300]].mean(0)
    want = np.linalg.solve(z.T @ z / 300 + 1e-4 * np.eye(11), z.T @ targets / 300)
    probe = ridge_probe(*arrays, n_classes=3, l2=1e-4)
    fitted = (z / np.where(z.std(0) == 0, 1, z.std(0))) @ want
    got = (x[:300].astype(np.float64)) @ np.asarray(probe.kernel, np.float64) + np.asarray(
        probe.bias
    )
    np.testing.assert_allclose(
        got, fitted + np.eye(3)[Y[:300]].mean(0), atol=5e-4
    )  # the large mean reduces the precision of the weights for raw features
    assert np.abs(np.asarray(probe.kernel)[8]).max() < 1e-6  # weights of the constant feature
    wide = np.column_stack([x[:60], rng.normal(size=(60, 100))]).astype(np.float32)
    few = tuple(map(jnp.asarray, (wide[:40], Y[:40], wide[40:], Y[40:60])))
    for fitted in (ridge_probe(*few, n_classes=3, l2=[1e-3, 1.0]),
                   linear_probe(*few, n_classes=3, key=KEY, l2=[1e-3, 1.0])):  # fmt: skip
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(fitted))


def test_standardize_matches_float64():
    """Handles many rows with means far from 0, and features that differ only in the last digit."""
    rng, n = np.random.default_rng(0), 20_000
    x = np.column_stack([1000 + rng.random(n), np.full(n, 0.1)]).astype(np.float32)
    x[::3, 1] = np.nextafter(x[::3, 1], np.float32(1))
    standard, z = standardize(jnp.asarray(x), jnp.ones(n, bool))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(standard.mean, wide.mean(0), rtol=1e-7)
    assert np.all(np.asarray(standard.scale)[1:] == 1)
    assert np.all(z[:, 1:] == 0)
    want = (wide[:, 0] - wide[:, 0].mean()) / wide[:, 0].std()
    np.testing.assert_allclose(z[:, 0], want, atol=1e-3)


@pytest.mark.parametrize(("rank", "shift"), [(20, 1e-3), (20, 10.0), (3, 1e-2), (0, 0.5)])
def test_inverse_root_matches_inverse_of_covariance(rank, shift):
    x = np.random.default_rng(0).normal(size=(50, rank)) @ np.ones((rank, 20))
    x += np.random.default_rng(1).normal(size=(50, rank)) @ np.eye(rank, 20)
    covariance = (x.T @ x / 50).astype(np.float32)
    root = np.asarray(
        _logistic.inverse_root(jnp.asarray(covariance), jnp.float32(shift)), np.float64
    )
    want = np.linalg.inv(covariance.astype(np.float64) + shift * np.eye(20))
    np.testing.assert_allclose(root @ root.T, want, atol=2e-3 * np.abs(want).max())


def test_inverse_root_of_singular_covariance_is_finite():
    """A shift below the rounding error is raised until the factorisation exists."""
    x = np.random.default_rng(0).normal(size=(500, 1)) @ np.ones((1, 64))
    x = (100 * x + np.random.default_rng(1).normal(size=(500, 64)) * 1e-3).astype(np.float32)
    covariance = x.T @ x / 500
    assert np.isnan(jnp.linalg.cholesky(covariance + 1e-7 * np.eye(64, dtype=np.float32))).any()
    root = _logistic.inverse_root(jnp.asarray(covariance), jnp.float32(1e-7))
    assert np.isfinite(root).all()
    assert np.abs(root).max() > 1  # not the inverse of a large multiple of the identity
    covariance[3, 3] = np.nan
    assert np.isnan(_logistic.inverse_root(jnp.asarray(covariance), jnp.float32(1e-7))).all()


def test_probes_on_accelerators_use_no_eigendecomposition():
    def lowered(function, *args):
        return jax.jit(function).trace(*args).lower(lowering_platforms=("tpu",)).as_text()

    assert "eigh" in lowered(jnp.linalg.eigh, jnp.eye(8)).lower()
    for fit in (lambda *a: linear_probe(*a, n_classes=3, key=KEY),
                lambda *a: ridge_probe(*a, n_classes=3)):  # fmt: skip
        assert "eigh" not in lowered(fit, *ARRAYS).lower()


def test_ignores_rows_without_valid_label():
    labels = ARRAYS[1].at[::3].set(-1).at[1].set(3)
    kept = np.asarray((labels >= 0) & (labels < 3))
    corrupted = jnp.where(jnp.asarray(kept)[:, None], ARRAYS[0], jnp.nan)
    test_labels = ARRAYS[3].at[:50].set(-1)
    given = corrupted, labels, ARRAYS[2], test_labels
    few = X[:300][kept], np.asarray(labels)[kept]
    # Traced: a concrete label out of range is rejected.
    fit = jax.jit(lambda *a: linear_probe(*a, n_classes=3, key=KEY, l2=0.1, tolerance=1e-6))
    got, (kernel, bias) = fit(*given), np_logistic(*few, 0.1, 3)
    np.testing.assert_allclose(got.kernel, kernel, atol=2e-3 * np.abs(kernel).max())
    right = (X[350:].astype(np.float64) @ kernel + bias).argmax(1) == Y[350:]
    assert got.accuracy == pytest.approx(right.mean())

    def ridge(*arrays):
        return ridge_probe(*arrays, n_classes=3, l2=[0.01, 0.1])

    got = jax.jit(ridge)(*given)
    want = ridge(*map(jnp.asarray, few), ARRAYS[2][50:], test_labels[50:])
    np.testing.assert_allclose(got.kernel, want.kernel, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(got.valid_accuracy, want.valid_accuracy, atol=1e-6)
    assert got.accuracy == pytest.approx(float(want.accuracy))


def test_nan_features_give_no_prediction():
    for fit in (lambda *a: linear_probe(*a, n_classes=3, key=KEY, l2=0.1),
                lambda *a: ridge_probe(*a, n_classes=3, l2=0.1)):  # fmt: skip
        with_nan = fit(ARRAYS[0].at[7, 2].set(jnp.nan), *ARRAYS[1:])
        assert with_nan.accuracy == 0
        assert np.all(with_nan.predictions == -1)
        one = fit(*ARRAYS[:2], ARRAYS[2].at[7, 2].set(jnp.nan), ARRAYS[3])
        assert np.sum(one.predictions == -1) == 1


def test_supports_vmap_and_half_precision():
    def both(x, l2):
        probes = (
            linear_probe(x, *ARRAYS[1:], n_classes=3, key=KEY, l2=l2),
            ridge_probe(x, *ARRAYS[1:], n_classes=3, l2=l2),
        )
        return [(p.accuracy, p.predictions, p.kernel) for p in probes]

    l2 = jnp.array([0.01, 0.1])
    want = jax.jit(both)(ARRAYS[0], l2)
    stacked = jnp.stack([ARRAYS[0][:, ::-1], ARRAYS[0]])
    got = jax.tree.map(lambda leaf: leaf[1], jax.jit(jax.vmap(both, (0, None)))(stacked, l2))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    half = [x.astype(jnp.bfloat16) if x.dtype == jnp.float32 else x for x in ARRAYS]
    fitted = jax.eval_shape(lambda *a: linear_probe(*a, n_classes=3, key=KEY, l2=0.1), *half)
    assert fitted.kernel.dtype == jnp.float32


def test_hyper_parameters_do_not_recompile():
    before = module._linear_probe._cache_size()
    for i in (1, 2, 3):
        linear_probe(
            *ARRAYS, n_classes=3, key=jax.random.key(i), l2=[0.1 * i, 0.2, 0.3],
            valid_fraction=0.1 * i, max_steps=i, tolerance=1e-4 * i,
        )  # fmt: skip
    assert module._linear_probe._cache_size() == before + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": ARRAYS[3]}, "`labels` must have shape"),
        ({"test_features": ARRAYS[2][:, 1:]}, "`test_features` must have shape"),
        ({"test_labels": ARRAYS[1]}, "`test_labels` must have shape"),
        ({"n_classes": 1}, "`n_classes` must be at least 2"),
        ({"l2": [0.1, 0.0]}, r"`l2` must lie in \(0, inf\)"),
        ({"l2": []}, "`l2` must be a number or a one-dimensional array"),
        ({"valid_fraction": 1.0}, "`valid_fraction` must lie in"),
        ({"max_steps": 0}, "`max_steps` must be at least 1"),
        ({"tolerance": 0.0}, "`tolerance` must lie in"),
    ],
)
def test_rejects_invalid_arguments(change, message):
    names = ("features", "labels", "test_features", "test_labels")
    given = dict(zip(names, ARRAYS, strict=True)) | {"n_classes": 3, "key": KEY} | change
    with raises(ValueError, match=message):
        linear_probe(**given)
    if not {"valid_fraction", "max_steps", "tolerance"} & set(change):
        given.pop("key")
        with raises(ValueError, match=message):
            ridge_probe(**given)
