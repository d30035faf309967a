"""Tests of the numerical experiment: population, measurements and command."""

import contextlib
import csv
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

from crl_jax import losses
from experiments.numerical import _model as model
from experiments.numerical import _nce as nce
from experiments.numerical import _punce as punce
from experiments.numerical import main

pytestmark = pytest.mark.usefixtures("quick_compiles")
CENTRE = dict(alpha=0.9, gamma=0.1, tau_plus=0.1, temperature=0.5, half_width=0.5)
SIZES = dict(n_anchors=50, n_neg=40, n_pos=3)


def setting(points=None, **changed):
    """Returns one setting or a batch; estimators receive the true values unless ``changed``."""
    numbers = CENTRE | changed
    assumed = dict(assumed_alpha=numbers["alpha"], assumed_tau_plus=numbers["tau_plus"])
    numbers = assumed | numbers
    if points is None:
        return model.Setting(**numbers)
    return model.Setting(
        **{k: jnp.broadcast_to(jnp.asarray(v, jnp.float32), (points,)) for k, v in numbers.items()}
    )


# Sampling


def accept_reject(rng, alpha, false, n):
    """Accept-reject sampling on the unit interval (Algorithms 7 and 8 of the text)."""
    accepted = []
    while len(accepted) < n:
        x = rng.random()
        bound = 1 - alpha + (2 * alpha - 1) * x if false else alpha + (1 - 2 * alpha) * x
        if rng.random() <= bound / alpha:
            accepted.append(x)
    return np.array(accepted)


@pytest.mark.parametrize("alpha", [0.5, 0.75, 0.9, 1.0])
@pytest.mark.parametrize("false", [False, True])
def test_closed_form_samples_match_accept_reject(alpha, false):
    lead = 1 - alpha if false else alpha
    v = jax.random.uniform(jax.random.key(1), (5000,))
    drawn = np.asarray(model.quantile(lead, v))
    rejected = accept_reject(np.random.default_rng(2), alpha, false, 3000)
    assert stats.ks_2samp(drawn, rejected).pvalue > 0.01
    cdf = lambda x: 2 * lead * x + (1 - 2 * lead) * x**2  # noqa: E731
    assert stats.kstest(drawn, cdf).pvalue > 0.01
    if alpha > 0.5:  # verifies the power of the test
        other = accept_reject(np.random.default_rng(3), alpha, not false, 3000)
        assert stats.ks_2samp(drawn, other).pvalue < 1e-6


def test_quantile_is_finite_and_reaches_ends():
    v = jnp.array([0.0, 1e-30, 1.0])
    for lead in (0.0, 1e-6, 0.5, 1.0):
        x = model.quantile(lead, v)
        np.testing.assert_allclose(x[::2], [0, 1], atol=1e-6)
        assert np.isfinite(x).all()


def test_samples_match_population_distribution():
    drawn = model.draw(
        jax.random.key(0), setting(gamma=0.6, tau_plus=0.3), n_anchors=400, n_neg=300, n_pos=200
    )
    n = drawn.is_true.size
    assert (~drawn.is_true).mean() == pytest.approx(0.3, abs=5 * np.sqrt(0.21 / n))
    # The extremes of 300 scores are near the ends of the anchor's range.
    low, high = np.asarray(drawn.neg.min(-1)), np.asarray(drawn.neg.max(-1))
    for end in (-low, high):
        assert 0.15 < end.min() < 0.25
        assert 0.45 < end.max() <= 0.5
        assert stats.kstest(end, stats.uniform(0.2, 0.3).cdf).statistic < 0.15
    assert abs(np.corrcoef(low, high)[0, 1]) < 0.2
    # Within an anchor, false negatives and positives have the same distribution, true negatives a
    # different one.
    unit = lambda s: np.asarray((s - low[:, None]) / (high - low)[:, None])  # noqa: E731
    neg, is_true = unit(drawn.neg), np.asarray(drawn.is_true)
    np.testing.assert_allclose(neg[~is_true].mean(), (1 + 0.8 / 3) / 2, atol=0.01)
    np.testing.assert_allclose(unit(drawn.pos).mean(), (1 + 0.8 / 3) / 2, atol=0.01)
    np.testing.assert_allclose(neg[is_true].mean(), (1 - 0.8 / 3) / 2, atol=0.01)


# Measurements


def np_omega(u, tau_plus, alpha):
    """Weight at beta = 0.5, by the published formula."""
    a = (1 - 2 * alpha) * (1 - 2 * tau_plus)
    b = 2 * (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    phi = (-b + np.sqrt(b**2 + 4 * a * u)) / (2 * a)
    true = alpha * (1 - phi) + (1 - alpha) * phi
    false = (1 - alpha) * (1 - phi) + alpha * phi
    return true / ((1 - tau_plus) * true + tau_plus * false)


def np_estimates(sample, tau_plus, alpha, t):
    """Estimators (6.45) to (6.48), in float64."""
    neg, pos = (np.exp(np.asarray(s, np.float64) / t) for s in (sample.neg, sample.pos))
    is_true = np.asarray(sample.is_true)
    u = (neg[:, None, :] <= neg[:, :, None]).mean(-1)
    omega = np_omega(u, tau_plus, alpha)
    supervised = (neg * is_true).sum(-1) / is_true.sum(-1)
    return supervised, {
        "biased": neg.mean(-1),
        "dcl": (neg.mean(-1) - tau_plus * pos.mean(-1)) / (1 - tau_plus),
        "bcl": (omega * neg).mean(-1),
        "bcl_normalised": (omega * neg).sum(-1) / omega.sum(-1),
        "bcl_auc": (np_omega(u, tau_plus, 0.5 + (2 * alpha - 1) / 3) * neg).mean(-1),
    }


def test_measurements_match_published_estimators():
    key, t = jax.random.key(4), CENTRE["temperature"]
    got = model.measure(key, setting(2, assumed_tau_plus=[0.1, 0.15], assumed_alpha=0.85), **SIZES)
    sample = model.draw(key, setting(), **SIZES)
    for point, tau_plus in enumerate((0.1, 0.15)):
        supervised, estimates = np_estimates(sample, tau_plus, 0.85, t)
        np.testing.assert_allclose(got["supervised"][point], supervised.mean(), rtol=1e-5)
        odds = np.exp(np.asarray(sample.pos[:, 0], np.float64) / t)
        n = SIZES["n_neg"]
        for i, name in enumerate(model.ESTIMATORS):
            error = estimates[name] - supervised
            bcl = estimates["bcl"] - supervised
            loss = np.log1p(n * estimates[name] / odds) - np.log1p(n * supervised / odds)
            for quantity, value in {
                "bias": error,
                "mse": error**2,
                "mse_over_bcl": error**2 - bcl**2,
                "loss_bias": loss,
            }.items():
                close = dict(rtol=2e-3, atol=2e-6)
                np.testing.assert_allclose(got[quantity][point, i], value.mean(), **close)
                se = value.std() / np.sqrt(len(value))
                np.testing.assert_allclose(got[f"{quantity}_se"][point, i], se, **close)
            np.testing.assert_allclose(got["mean"][point, i], estimates[name].mean(), rtol=1e-5)


def test_excludes_anchors_without_true_negatives():
    key = jax.random.key(5)
    crowded = dict(tau_plus=0.95, assumed_tau_plus=0.3)
    got = model.measure(key, setting(2, **crowded), **SIZES)
    sample = model.draw(key, setting(**crowded), **SIZES)
    keep = np.asarray(sample.is_true.any(-1))
    assert 0 < keep.sum() < 50
    sample = jax.tree.map(lambda x: x[keep], sample)
    supervised, estimates = np_estimates(sample, 0.3, 0.9, 0.5)
    np.testing.assert_allclose(got["supervised"][0], supervised.mean(), rtol=1e-5)
    want = (estimates["biased"] - supervised).mean()
    np.testing.assert_allclose(got["bias"][0, 0], want, rtol=1e-4)
    assert all(np.isfinite(value).all() for value in got.values())


def test_reports_fraction_of_clamped_anchors():
    cold = dict(temperature=0.05, assumed_tau_plus=0.3)
    got = model.measure(jax.random.key(4), setting(2, **cold), **SIZES)
    neg, _, pos = model.draw(jax.random.key(4), setting(**cold), **SIZES)
    rest = np.exp(neg / 0.05).mean(-1) - 0.3 * np.exp(pos / 0.05).mean(-1)
    want = (rest / 0.7 < np.exp(-0.5 / 0.05)).mean()
    assert 0.1 < want < 0.9
    np.testing.assert_allclose(got["clamped"], want, rtol=1e-6)


def test_limits_match_integrals_of_densities():
    """Compares with integrals over the densities, with the same range for all anchors."""
    alpha, tau_plus, t, w = 0.9, 0.2, 0.5, 0.5
    same_range = setting(gamma=0.0, tau_plus=tau_plus)
    got = model.limits(jax.random.key(0), same_range, n_anchors=300, n_pos=10)
    true = lambda x: 2 * (alpha * (1 - x) + (1 - alpha) * x)  # noqa: E731
    false = lambda x: 2 * ((1 - alpha) * (1 - x) + alpha * x)  # noqa: E731
    mixed = lambda x: (1 - tau_plus) * true(x) + tau_plus * false(x)  # noqa: E731
    below = lambda x: integrate.quad(mixed, 0, x)[0]  # noqa: E731
    score = lambda x: np.exp((2 * x - 1) * w / t)  # noqa: E731
    mean = lambda f: integrate.quad(lambda x: f(x) * score(x), 0, 1)[0]  # noqa: E731
    auc = 0.5 + (2 * alpha - 1) / 3
    second = integrate.quad(lambda x: false(x) * score(x) ** 2, 0, 1)[0]
    spread = np.sqrt(second - mean(false) ** 2)
    want = {
        "biased": tau_plus * (mean(false) - mean(true)),
        "dcl": tau_plus / (1 - tau_plus) * spread / np.sqrt(10),
        "bcl": 0,
        "bcl_normalised": 0,
        "bcl_auc": mean(lambda x: mixed(x) * np_omega(below(x), tau_plus, auc)) - mean(true),
    }
    assert want["bcl_auc"] > 0.02
    for name, value in want.items():
        assert got[name] == pytest.approx(value, abs=5e-4), name


def test_bcl_converges_only_with_true_alpha():
    sizes = dict(n_anchors=300, n_pos=10)
    error = {
        n: np.sqrt(model.measure(jax.random.key(6), setting(1), n_neg=n, **sizes)["mse"][0])
        for n in (64, 1024)
    }
    limits = model.limits(jax.random.key(6), setting(), **sizes)
    names = list(model.ESTIMATORS)
    fall = error[64] / error[1024]
    # √16 = 4; the root mean square of 300 errors has a relative noise of 4 %.
    assert fall[names.index("bcl")] == pytest.approx(4, rel=5 * 0.04 * np.sqrt(2))
    for name in ("biased", "dcl", "bcl_auc"):
        left = error[1024][names.index(name)] ** 2 - error[1024][names.index("bcl")] ** 2
        assert np.sqrt(left) == pytest.approx(float(limits[name]), rel=0.2), name


def test_new_values_do_not_recompile(monkeypatch):
    key = jax.random.key(7)
    first = model.measure(key, setting(2), **SIZES)

    def traced(*_):
        raise AssertionError("traced again")

    monkeypatch.setattr(model, "log_means", traced)
    other = setting(2, alpha=[0.6, 0.8], gamma=0.9, temperature=0.2, assumed_tau_plus=0.3)
    second = model.measure(jax.random.key(8), other, **SIZES)
    assert not np.allclose(first["mean"], second["mean"])


# Noise-contrastive estimation


@pytest.mark.parametrize("k", [1, 7, 1000])
def test_expected_nce_gradient_matches_loss_gradient(k):
    """Enumerates uniform noise: the negatives of every item contain each item once."""
    items = nce.make_items(jax.random.key(0), 0.0)
    uniform = -jnp.log(nce.N_ITEMS)

    def objective(scores):
        neg = jnp.broadcast_to(scores, (nce.N_ITEMS, nce.N_ITEMS))
        each = losses.nce(
            scores, neg, pos_log_noise=uniform, neg_log_noise=uniform, ratio=k, reduce_fn=None
        )
        return -jnp.sum(items.data * each)

    np.testing.assert_allclose(
        nce.nce_gradient(items, k), jax.grad(objective)(items.scores), rtol=1e-3, atol=2e-6
    )


@pytest.mark.slow
@pytest.mark.parametrize("power", nce.NOISES.values(), ids=nce.NOISES)
def test_nce_approaches_maximum_likelihood_as_one_over_k(power):
    items = nce.make_items(jax.random.key(1), power)
    np.testing.assert_allclose(np.sum(items.data), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(items.scores).sum(), 1, rtol=1e-5)

    def likelihood(scores):
        return jnp.sum(items.data * jax.nn.log_softmax(scores))

    np.testing.assert_allclose(
        nce.likelihood_gradient(items), jax.grad(likelihood)(items.scores), atol=1e-6
    )
    found = nce.distances(jax.random.key(2), items)
    fall = found["expected"][:-1] / found["expected"][1:]
    assert (np.diff(fall) > 0).all()
    assert fall[-1] == pytest.approx(4, rel=0.02)
    # The squares of bias and standard deviation add up.
    length = np.hypot(found["expected"], found["deviation"])
    assert (np.abs(found["drawn"] - length) < 3 * found["deviation"]).all()
    fitted = nce.fits(0, items)
    np.testing.assert_allclose(fitted["error"], fitted["theory"], rtol=0.05)
    assert (np.diff(fitted["normaliser"]) < 0).all()
    assert fitted["normaliser"][0] < 0.01


# The command

QUICK = ["--anchors", "20", "--largest-n", "128", "--n-neg", "16"]
FIGURES = ["figure_2_3", "figure_4_3", "figure_6_1", "figure_6_4", "figure_6_8", "figure_6_9",
           "figure_6_10", "weights", "misspecified", "populations", "convergence", "smoothed",
           "lemma_5_2", "lemma_5_3", "theorem_4_1", "information", "nce", "punce"]  # fmt: skip


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def random_features(task, labels, digits, seed, epochs):
    """Stub for trained features: the more labels, the more informative the features."""
    rng, n_labelled = np.random.default_rng(seed), float(np.sum(labels == labels.max()))
    return tuple(
        jnp.asarray(rng.normal(size=(len(even), 4)) + n_labelled / 500 * even[:, None], jnp.float32)
        for even in (digits.even, digits.test_even)
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Run directory and standard output of a finished run."""
    out, digits = tmp_path_factory.mktemp("numerical") / "run", punce.load()
    few = digits._replace(
        images=digits.images[:300], even=digits.even[:300],
        test_images=digits.test_images[:100], test_even=digits.test_even[:100],
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(punce, "load", lambda: few)
        patch.setenv("COLUMNS", "120")
        patch.setattr(punce, "learn_features", random_features)
        with contextlib.redirect_stdout(io.StringIO()) as screen:
            assert main([*QUICK, "--seed", "3", "--punce-seeds", "2", "--out", str(out)]) == 0
    return out, screen.getvalue()


@pytest.mark.slow
def test_run_writes_figures_and_tables(finished):
    out, screen = finished
    for name in FIGURES:
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert read(out / f"{name}.csv")
    assert not list(out.glob("*.partial"))
    config = json.loads((out / "config.json").read_text())
    assert config["anchors"] == 20
    assert config["seed"] == 3
    for label in model.ESTIMATORS.values():
        assert label in screen
    assert "clearly (95 %) smaller" in " ".join(screen.split())


@pytest.mark.slow
def test_punce_paired_means_match_rows(finished):
    out, screen = finished
    rows = read(out / "punce.csv")
    assert len(rows) == 2 * len(punce.SHARES) * len(punce.METHODS)
    for row in read(out / "punce_paired.csv"):
        own = [
            float(r[row["measure"]])
            for r in rows
            if (r["share"], r["method"]) == (row["share"], row["method"])
        ]
        assert float(row["mean"]) == pytest.approx(np.mean(own), rel=1e-5)
        assert f"{np.mean(own):.3f} ± {np.std(own, ddof=1):.3f}" in screen


@pytest.mark.slow
def test_sweep_rows_match_measurements(finished):
    out, _ = finished
    rows = read(out / "figure_6_9.csv")
    assert {row["parameter"] for row in rows} == {"alpha", "gamma", "tau_plus", "temperature",
                                                  "n_neg"}  # fmt: skip
    values = sorted({float(row["value"]) for row in rows if row["parameter"] == "gamma"})
    got = model.measure(
        jax.random.key(3), setting(len(values), gamma=values), n_anchors=20, n_neg=16, n_pos=10
    )
    for name in ("biased", "dcl", "bcl", "bcl_normalised"):
        selected = [r for r in rows if (r["parameter"], r["estimator"]) == ("gamma", name)]
        column = got["mse"][:, list(model.ESTIMATORS).index(name)]
        np.testing.assert_allclose([float(row["mse"]) for row in selected], column, rtol=1e-5)
    sizes = [float(row["value"]) for row in read(out / "convergence.csv")]
    assert sorted(set(sizes)) == [8, 16, 32, 64, 128]


@pytest.mark.slow
def test_densities_histograms_and_weights_are_normalized(finished):
    out, _ = finished
    by_alpha = {}
    for row in read(out / "figure_6_4.csv"):
        by_alpha.setdefault(float(row["alpha"]), []).append(row)
    for name, sign in (("true_negative", -1), ("false_negative", 1)):
        for alpha, rows in by_alpha.items():
            s, y = (np.array([float(row[k]) for row in rows]) for k in ("score", name))
            assert integrate.trapezoid(y, s) == pytest.approx(1, abs=1e-3)
            # The maximum of two standard normal draws has mean 1/√π.
            want = sign * (2 * alpha - 1) / np.sqrt(np.pi)
            assert integrate.trapezoid(y * s, s) == pytest.approx(want, abs=1e-3)
    for alpha in by_alpha:
        rows = [r for r in read(out / "figure_6_8.csv") if float(r["alpha"]) == alpha]
        width = [float(r["to"]) - float(r["from"]) for r in rows]
        for name in ("true_negative", "false_negative"):
            assert np.dot(width, [float(r[name]) for r in rows]) == pytest.approx(1, abs=0.02)
    for name in ("density", "order_statistic"):
        rows = read(out / "figure_2_3.csv")
        x, y = (np.array([float(row[k]) for row in rows]) for k in ("x", name))
        assert integrate.trapezoid(y, x) == pytest.approx(1, abs=1e-3)
    for name in {row["distribution"] for row in read(out / "figure_4_3.csv")}:
        rows = [row for row in read(out / "figure_4_3.csv") if row["distribution"] == name]
        for name in ("true_negative", "false_negative"):
            x, y = (np.array([float(row[k]) for row in rows]) for k in ("score", name))
            assert integrate.trapezoid(y, x) == pytest.approx(1, abs=0.02)
    smoothed = read(out / "smoothed.csv")
    spread = {way: [float(row["deviation"]) for row in smoothed if row["weights"].startswith(way)]
              for way in ("HCL", "BCL")}  # fmt: skip
    assert spread["HCL"][-1] < 1e-3 * spread["HCL"][0]
    assert spread["BCL"][-1] == pytest.approx(spread["BCL"][0], rel=0.01)
    for row in smoothed:  # of weights with mean 1
        share = 1 / (1 + float(row["deviation"]) ** 2)
        assert float(row["effective_share"]) == pytest.approx(share, abs=0.05)
    by_curve = {}
    for row in read(out / "weights.csv"):
        by_curve.setdefault((row["swept"], row["value"]), []).append(float(row["omega"]))
    assert len(by_curve) == 8
    for omega in by_curve.values():
        assert np.mean(omega) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--anchors 1", "--anchors must be a whole number in [2, 2147483647], got 1"),
        ("--alpha 0.3", "--alpha must be a number in [0.5, 1], got 0.3"),
        ("--gamma 2", "--gamma must be a number in [0, 1]"),
        ("--tau-plus 0.9", "--tau-plus must be a number in [0, 0.5]"),
        ("--temperature nan", "--temperature must be a number of at least 0.01, got nan"),
        ("--punce-seeds -1", "--punce-seeds must be a whole number in [0, 2147483647]"),
        ("--half-width 40", "--half-width / --temperature must be at most 30"),
        ("--punce-epochs 3", "--punce-epochs requires --punce-seeds."),
        ("--out=", "--out must not be an empty text."),
    ],
)
def test_rejects_invalid_flags(flags, message, tmp_path, capsys):
    assert main([*flags.split(), "--out", str(tmp_path / "run")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert error.startswith("error:")
    assert message in error
    assert not (tmp_path / "run").exists()


def test_interrupted_run_can_restart(tmp_path, monkeypatch, capsys):
    def cut_off(*_, **__):
        raise ValueError("cut off")

    monkeypatch.setattr("experiments.numerical._run.shapes.score_histograms", cut_off)
    for _ in range(2):
        assert main([*QUICK, "--out", str(tmp_path)]) == 2
        assert "cut off" in capsys.readouterr().err
        assert (tmp_path / "figure_6_4.csv").exists()


@pytest.mark.slow
def test_does_not_overwrite_finished_run(finished, capsys):
    out, _ = finished
    before = (out / "figure_6_9.csv").read_bytes()
    assert main([*QUICK, "--out", str(out)]) == 2
    assert "holds a run already" in " ".join(capsys.readouterr().err.split())
    assert (out / "figure_6_9.csv").read_bytes() == before
    assert main(["--out", str(out / "weights.csv")]) == 2
    assert "is a file" in " ".join(capsys.readouterr().err.split())
