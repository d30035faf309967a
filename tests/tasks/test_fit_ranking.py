"""Ranking training: convergence, reproducibility, resuming, early stopping and errors."""

import functools
import json
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.ranking import curve, fit, quick_fit, split
from _helpers.refusals import raises

from crl_jax import losses
from crl_jax.data import Interactions, simulate
from crl_jax.metrics import eval_layout, evaluate, summarize
from crl_jax.models import MatrixFactorization, inner_scores
from crl_jax.samplers import BNS, PNS
from crl_jax.tasks import Ranking, fit_ranking
from crl_jax.train import (
    EarlyStopping,
    FitResult,
    TrainingDiverged,
    ValidationMetrics,
    constant,
    cosine,
    grid,
    select_best,
    sgd_l2,
    step_decay,
)

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def small(n_users):
    return simulate(n_users=9 + n_users, n_items=80, n_exposed=20).interactions


@pytest.fixture
def quick():
    return quick_fit()


def assert_same(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def test_training_improves_ndcg(quick):
    hard = {"tau_plus": 0.05, "beta": 0.5, "min_score": -5.0}
    fitted = quick(
        loss=losses.hard_contrastive, hyperparams=hard, n_neg=4, n_pos=3, epochs=30,
        learning_rate=[1e-9, 1e-2],
    )  # fmt: skip
    assert fitted.history[-1]["loss"][1] < fitted.history[0]["loss"][1]
    assert fitted.best_score[1] > 1.5 * fitted.best_score[0]


def test_returns_parameters_of_best_epoch(quick):
    fitted = quick(epochs=60, learning_rate=5e-2, patience=60)
    scores = curve(fitted)[:, 0]
    assert fitted.best_epoch[0] == 1 + np.argmax(scores)
    assert 1 < fitted.best_epoch[0] < 60  # it overfits: the end is not the best
    plan = eval_layout(split().train, split().valid)
    values = evaluate(inner_scores, fitted.tables(), plan, ks=(20,))
    np.testing.assert_allclose(summarize(values)["ndcg@20"], scores.max(), rtol=1e-6)
    np.testing.assert_allclose(fitted.best_score[0], scores.max(), rtol=1e-6)


def test_early_stopping_hook_replaces_default_stopping():
    def falling(task, params, model_state):
        return {"mine": -jnp.sum(jnp.abs(jax.tree.leaves(params)[0]))}

    hooks = [ValidationMetrics(falling), EarlyStopping("mine", patience=3)]
    for valid in (None, split().valid):
        fitted = fit_ranking(split().train, valid, loss=losses.bpr, epochs=9, hooks=hooks)
        scores = [entry["mine"][0] for entry in fitted.history]
        best = 1 + np.argmax(scores)
        assert fitted.best_epoch[0] == best == len(scores) - 3
        np.testing.assert_allclose(fitted.best_score[0], max(scores), rtol=1e-6)
    with raises(IndexError, match="`index` must be less than the 1 runs, got 5"):
        fitted.tables(5)


def test_patience_stops_training(quick):
    full = quick(epochs=60, learning_rate=3e-2, patience=1000)
    scores = curve(full)[:, 0]
    patience = 5
    best, waited = 0, 0
    for epoch, score in enumerate(scores):
        best, waited = (epoch, 0) if score > scores[best] or epoch == 0 else (best, waited + 1)
        if waited == patience:
            break
    stopped = quick(epochs=60, learning_rate=3e-2, patience=patience)
    assert len(stopped.history) == epoch + 1 < 60
    assert stopped.best_epoch[0] == best + 1


def test_same_seed_is_bitwise_reproducible(quick):
    first, again, other = quick(), quick(), quick(seeds=1)
    assert_same(first.params, again.params)
    assert not np.array_equal(first.params["users"], other.params["users"])


def test_resumed_run_is_bitwise_identical(quick, tmp_path):
    path = tmp_path / "state.npz"
    options = {**RUNS, "epochs": 8, "patience": 3}
    whole = quick(**options)
    with raises(Killed):
        quick(**options, checkpoint=path, seconds=0, see=kill_at(4))
    entries = []
    resumed = quick(**options, checkpoint=path, see=entries.append)
    assert_same(whole.params, resumed.params)
    np.testing.assert_array_equal(curve(whole), curve(resumed))
    assert [entry["epoch"] for entry in entries] == [e["epoch"] for e in whole.history]
    finished = quick(**options, checkpoint=path)
    assert_same(whole.params, finished.params)


def test_rejects_checkpoint_of_another_training(quick, tmp_path):
    path = tmp_path / "state.npz"
    quick(epochs=1, checkpoint=path)
    for change in ({"seeds": 9}, {"learning_rate": 0.5}, {"loss": losses.bce}):
        with raises(ValueError, match="belongs to another training"):
            quick(**{"epochs": 1, "checkpoint": path, **change})
    with raises(ValueError, match="belongs to another training: expected batches"):
        fit(split().valid, split().train, loss=losses.bpr, epochs=1, checkpoint=path)


def test_warns_if_checkpoint_is_from_another_jax_version(quick, tmp_path):
    path = tmp_path / "state.npz"
    quick(epochs=1, checkpoint=path)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(arrays["header"].tobytes())
    header["meta"]["fingerprint"]["program"] = {"jax": "0.1", "sha256": "0"}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **arrays)
    with pytest.warns(UserWarning, match="written with JAX 0.1"):
        quick(epochs=1, checkpoint=path)


RUNS = grid({"learning_rate": [1e-2, 3e-2]}, seeds=[0, 5])


def test_parallel_runs_match_separate_runs(quick):
    together = quick(**RUNS)
    assert together.n_runs == 4
    for i in range(4):
        alone = quick(**{name: values[i] for name, values in RUNS.items()})
        np.testing.assert_allclose(curve(together)[:, i], curve(alone)[:, 0], rtol=1e-3)
        for name, table in alone.get_params().items():
            np.testing.assert_allclose(together.get_params(i)[name], table, rtol=1e-3, atol=1e-4)


def test_loss_hyperparams_and_lengths_may_differ_between_runs(quick):
    """Swept hyper-parameters need no other value."""
    run = functools.partial(
        fit, split().train, loss=losses.debiased_pairwise, n_pos=2, batch_size=64
    )
    fitted = run(sweep={"task.hyperparams.tau_plus": [0.0, 0.3]}, epochs=[3, 6])
    alone = run(hyperparams={"tau_plus": 0.3}, epochs=6)
    np.testing.assert_allclose(
        fitted.get_params(1)["users"], alone.get_params()["users"], rtol=1e-3, atol=1e-4
    )
    np.testing.assert_array_equal(
        fitted.run_params["task.hyperparams.tau_plus"], np.float32([0.0, 0.3])
    )
    assert not np.array_equal(fitted.get_params(0)["users"], fitted.get_params(1)["users"])
    assert [entry["epoch"] for entry in fitted.history] == [1, 2, 3, 4, 5, 6]
    assert fitted.best_epoch[0] <= 3


def test_stop_at_keeps_schedule_and_decay_is_per_run():
    train = functools.partial(
        fit, split().train, loss=losses.bpr, batch_size=64, epochs=4, schedule=step_decay,
        rule=sgd_l2, weight_decay=0.0, learning_rate=1.0,
    )  # fmt: skip
    stopped, together = train(stop_at=2), train(decay=[0.0, 1.0])
    assert stopped.best_epoch[0] == 2
    assert np.isnan(stopped.best_score[0])
    for name, table in stopped.get_params().items():  # a rate of 0 is the same as stopping
        np.testing.assert_allclose(together.get_params(0)[name], table, rtol=1e-5, atol=1e-6)
        assert np.abs(together.get_params(1)[name] - table).max() > 0.01
    with raises(ValueError, match=r"`decay` must lie in .* got -0\.1"):
        train(decay=-0.1)


def test_schedules_match_formulas():
    progress = np.linspace(0, 0.99, 34, dtype=np.float32)
    np.testing.assert_array_equal(constant(progress, 0.2), np.ones(34))
    np.testing.assert_array_equal(step_decay(progress, 0.5), np.where(progress < 0.5, 1, 0.5))
    want = 0.2 + 0.8 * np.cos(np.pi * progress / 2) ** 2
    np.testing.assert_allclose(cosine(progress, 0.2), want, rtol=1e-5)


def test_initial_values_are_scaled():
    encoder = MatrixFactorization(60, 80, 32)
    task = Ranking.from_interactions(
        split().train, encoder=encoder, loss=losses.bpr, init_scale=0.1
    )
    scaled, plain = (
        task.init(jax.random.key(0))[0],
        replace(task, init_scale=1.0).init(jax.random.key(0))[0],
    )
    for name, table in plain.items():
        assert np.std(table) > 0.05
        np.testing.assert_allclose(scaled[name], 0.1 * table, rtol=1e-6)
    with raises(ValueError, match="`init_scale` must lie in"):
        replace(task, init_scale=0.0)


def test_second_call_with_other_epochs_does_not_recompile(quick):
    traces = 0

    def loss(pos, neg, *, scale, reduce_fn):
        nonlocal traces
        traces += 1
        return scale * losses.bpr(pos, neg, reduce_fn=reduce_fn)

    quick(loss=loss, hyperparams={"scale": 1.0}, epochs=5)
    once = traces
    assert once > 0
    quick(loss=loss, hyperparams={"scale": 1.0}, epochs=10)
    # A second call evaluates the metrics again, and compiles nothing.
    assert traces == once + 1


def test_divergence_is_reported(quick):
    def explode(pos, neg, *, scale, reduce_fn):
        return losses.bpr(pos, neg, reduce_fn=reduce_fn) * jnp.where(scale > 0, jnp.nan, 1.0)

    with raises(TrainingDiverged, match="epoch 1"):
        quick(loss=explode, hyperparams={"scale": np.array([1.0, 1.0])})
    with pytest.warns(UserWarning, match="1 of 2 runs diverged"):
        fitted = quick(loss=explode, hyperparams={"scale": np.array([1.0, -1.0])})
    assert np.isnan(fitted.best_score[0])
    assert np.isfinite(fitted.best_score[1])
    best = select_best(fitted)
    assert best.point == 1
    assert np.isnan(best.scores[0])


def test_rejects_data_without_unseen_items():
    full = Interactions.from_arrays([0, 0, 0], [0, 1, 2])
    with raises(ValueError, match="`train` must leave some item"):
        fit(full, loss=losses.bpr, epochs=2)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"n_neg": 0}, "`n_neg` must be at least 1, got 0"),
        ({"batch_size": 0}, "`batch_size`"),
        ({"eval_every": 0}, "`eval_every`"),
        ({"learning_rate": 0.0}, "`learning_rate` must lie in .* got 0.0"),
        ({"epochs": 0}, "`epochs` must lie in .* got 0"),
        ({"hyperparams": {"temperature": -1.0}}, "`temperature` must lie in"),
        (
            {"loss": losses.debiased_pairwise, "hyperparams": {"tau_plus": [0.1, 1.0]}},
            "`tau_plus` must lie in",
        ),
        (
            {"loss": losses.debiased_pairwise, "hyperparams": {"tau_plus": 1 - 1e-9}},
            "`tau_plus` must lie in",
        ),
        ({"seeds": [0, 1], "learning_rate": [1.0, 2.0, 3.0]}, "must all have one length"),
        ({"weight_decay": -1}, "`weight_decay` must lie in .* got -1"),
        ({"learning_rate": 1e-60}, "`learning_rate` must lie in .* which is 0.0 in float32"),
        ({"learning_rate": "fast"}, "`learning_rate` must be a number .* got 'fast'"),
        ({"epochs": 2**31}, "`epochs` must lie in .* got 2147483648"),
        ({"seeds": -1}, "`seeds` must lie in .* got -1"),
        ({"seeds": 2**32}, "`seeds` must lie in .* got 4294967296"),
        ({"seeds": 0.5}, "`seeds` must be a whole number, got 0.5"),
        ({"epochs": 1.5}, "`epochs` must be a whole number, got 1.5"),
        ({"n_neg": 1.5}, "`n_neg` must be a whole number, got 1.5"),
        ({"sampler": PNS(jnp.ones(3))}, r"`weights` must have shape \(80,\), got \(3,\)"),
        ({"sampler": BNS(np.full(3, 0.3))}, r"`prior` must be .* got \(3,\)"),
        ({"sampler": BNS(lambda users, items: jnp.zeros(3))}, "`prior` must have shape"),
        ({"held_out": small(1)}, "`held_out` must have the 60 `user_ids`"),
    ],
)
def test_rejects_invalid_arguments(quick, bad, message):
    with raises(ValueError, match=message):
        quick(**bad)


def result_from_curves(curves, lengths):
    """Runs with given validation curves, ``[evaluations, runs]``."""
    history = [{"epoch": i + 1, "valid_ndcg@20": list(row)} for i, row in enumerate(curves)]
    n = len(lengths)
    numbers = {"epochs": np.array(lengths)}
    return FitResult(None, None, (), numbers, np.zeros(n), np.zeros(n), history)  # type: ignore[arg-type]


@pytest.mark.usefixtures("unchecked")
def test_select_best_averages_over_seeds_and_respects_epochs():
    fitted = result_from_curves([[0.1, 0.3, 0.2, 0.2], [0.5, 0.1, 0.4, 0.4], [0.3, 0.3, 0.9, 0.9]],
                                [3, 3, 2, 2])  # fmt: skip
    best = select_best(fitted, n_seeds=2, window=1)
    assert (best.point, best.epochs) == (1, 2)
    np.testing.assert_allclose(best.scores, [0.3, 0.4])
    np.testing.assert_array_equal(best.best_epochs, [2, 2])
    with raises(ValueError, match="`n_seeds` must divide 4"):
        select_best(fitted, n_seeds=3)
    with raises(ValueError, match="`window` must be odd"):
        select_best(fitted, window=2)


@pytest.mark.usefixtures("unchecked")
def test_select_best_prefers_plateau_to_single_peak():
    peak = [0.1, 0.1, 0.6, 0.1, 0.1, 0.1]
    plateau = [0.1, 0.2, 0.3, 0.5, 0.5, 0.5]
    curves = np.stack([peak, plateau], axis=1)
    assert select_best(result_from_curves(curves, [6, 6]), window=1).point == 0
    best = select_best(result_from_curves(curves, [6, 6]), window=3)
    assert (best.point, best.epochs) == (1, 5)
    np.testing.assert_allclose(best.scores, [0.8 / 3, 0.5])
    # Beyond its end a run has no neighbours: its last evaluation replaces the next one.
    short = select_best(result_from_curves(curves, [6, 4]), window=3)
    assert (short.point, short.epochs) == (1, 4)
    np.testing.assert_allclose(short.scores[1], (0.3 + 0.5 + 0.5) / 3)


@pytest.mark.parametrize("window", [3, 5])
@pytest.mark.parametrize("scores", [[0.1, 0.9], [0.9, 0.1], [0.1, 0.2, 0.9], [0.9, 0.2, 0.1]])
@pytest.mark.usefixtures("unchecked")
def test_select_best_has_no_bias_towards_curve_ends(scores, window):
    """The better of two evaluations is chosen, and reversing a curve reverses the choice."""
    best = select_best(result_from_curves(np.array(scores)[:, None], [len(scores)]), window=window)
    assert best.epochs == 1 + int(np.argmax(scores))


@pytest.mark.usefixtures("unchecked")
def test_select_best_tolerance_prefers_longer_training():
    early, late = [0.2, 0.50, 0.45, 0.48, 0.495], [0.1, 0.2, 0.3, 0.4, 0.492]
    curves = result_from_curves(np.stack([early, late, [np.nan] * 5], axis=1), [5, 5, 5])
    selected = select_best(curves, window=1)
    assert (selected.point, selected.epochs, selected.score) == (0, 2, 0.5)
    selected = select_best(curves, window=1, tolerance=0.02)
    assert (selected.point, selected.epochs, selected.score) == (0, 5, 0.495)
    selected = select_best(curves, window=1, tolerance=0.009)
    assert (selected.point, selected.epochs, selected.score) == (0, 2, 0.5)
    assert selected.best_epochs.tolist() == [2, 5, 0]
    falling = result_from_curves(np.array([[-0.1], [-0.101], [-0.3]]), [3])
    assert select_best(falling, window=1, tolerance=0.02).epochs == 2
    with raises(ValueError, match="`tolerance` must"):
        select_best(curves, tolerance=-0.1)


def test_custom_metric_does_not_override_validation_score(quick):
    def own(task, params, model_state):
        return {"ndcg@20": jnp.sum(params["users"])}

    measured = quick(hooks=[ValidationMetrics(own)], epochs=2)
    assert select_best(measured).score == select_best(quick(epochs=2)).score
