"""EM by confidence and group comparisons, against NumPy in deterministic settings."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.killing import Killed, kill_at
from _helpers.ranking import (
    Watched,
    bpr_gradients,
    epoch_of,
    fit,
    quick_fit,
    split,
    taken_by_all_but_one,
)
from _helpers.refusals import raises

from crl_jax import losses, stats, weights
from crl_jax.data import Interactions
from crl_jax.models import MatrixFactorization, Tables
from crl_jax.samplers import permute
from crl_jax.tasks import ConfidenceEM, InteractionPrior, Ranking

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

N_USERS, N_ITEMS, DIM = 6, 5, 3
DISTRIBUTION = stats.VarianceGamma(DIM, 0.5)


ENCODER = MatrixFactorization(N_USERS, N_ITEMS, DIM)


@pytest.fixture
def data():
    return taken_by_all_but_one(N_USERS, N_ITEMS)


def first_params():
    return jax.jit(ENCODER.init)(jax.random.fold_in(jax.random.key(0), 0))


def estimate_confidence(confidence, log, params):
    """Returns the confidence of each interaction, in one program."""

    @jax.jit
    def estimate(params, users, items):
        tables = ENCODER.encode(params)
        return confidence.estimate(jax.random.key(0), ENCODER, tables, users, items)

    return estimate(params, jnp.asarray(log.users), jnp.asarray(log.items))


def epoch(data, *, confidence=None, weight=None, **settings):
    """Trains one epoch; by default one batch of all interactions and SGD without L2."""
    if weight is not None and confidence is None:
        confidence = ConfidenceEM(jnp.full(N_ITEMS, 0.5), every=1000)
        settings["number"] = 1  # epoch 1 has no E-step
    return epoch_of(
        data, confidence=confidence, weight=weight, learning_rate=0.3, **settings
    )  # fmt: skip


@pytest.mark.parametrize("by_rows", [False, True])
def test_confidence_multiplies_the_losses(data, by_rows):
    missing, log = data
    weight = np.random.default_rng(0).uniform(0, 3, len(log)).astype(np.float32)
    before, state, report = epoch(log, weight=jnp.asarray(weight), by_rows=by_rows)
    params = before.params
    loss, grads = bpr_gradients(params, log.users, log.items, missing, weight)
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    for name, grad in grads.items():
        want = np.asarray(params[name], np.float64) - 0.3 * grad
        np.testing.assert_allclose(state.params[name], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.model_state.confidence, weight)


def test_row_updates_match_published_sgd_loop(data):
    """Equation 3.32, one triplet after another; the weights also apply to L2 on its rows."""
    missing, log = data
    weight = np.random.default_rng(0).uniform(0, 3, len(log)).astype(np.float32)
    decay = 0.2
    before, state, _ = epoch(
        log, weight=jnp.asarray(weight), batch_size=1, draw_batches=7, by_rows=True,
        weight_decay=decay,
    )  # fmt: skip
    params = before.params
    w, h = (np.array(params[name], np.float64) for name in ("users", "items"))
    order = np.asarray(permute(jax.random.split(jax.random.key(4))[0], jnp.arange(24), 24))
    for u, i, c in zip(log.users[order], log.items[order], weight[order], strict=True):
        j = missing[u]
        slope = 1 / (1 + np.exp(w[u] @ (h[i] - h[j])))
        step_w = slope * (h[i] - h[j]) - decay * w[u]
        step_i, step_j = slope * w[u] - decay * h[i], -slope * w[u] - decay * h[j]
        for row, step in ((w[u], step_w), (h[i], step_i), (h[j], step_j)):
            row += 0.3 * c * step
    np.testing.assert_allclose(state.params["users"], w, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.params["items"], h, rtol=1e-4, atol=1e-6)


PRIORS = {
    "items": np.linspace(0.1, 0.9, N_ITEMS, dtype=np.float32),
    "pairs": np.random.default_rng(1).uniform(0, 1, (N_USERS, N_ITEMS)).astype(np.float32),
    "interactions": np.random.default_rng(2).uniform(0, 1, 24).astype(np.float32),
    "function": lambda users, items: (users[:, None] + items + 1) / 20,
}


def prior_at(name, log):
    prior = PRIORS[name]
    match name:
        case "items":
            return prior[log.items]
        case "pairs":
            return prior[log.users, log.items]
        case "interactions":
            return prior
    return (log.users + log.items + 1) / 20


@pytest.mark.parametrize(
    ("rule", "name"),
    [*(("prior", name) for name in PRIORS), ("density", "items"), ("posterior", "pairs")],
)
def test_expectation_step_matches_formulas(data, monkeypatch, name, rule):
    monkeypatch.setattr("crl_jax.tasks._confidence._BLOCK", 7)  # fewer than the 24 interactions
    _, log = data
    params = ENCODER.init(jax.random.key(3))
    prior = PRIORS[name] if callable(PRIORS[name]) else jnp.asarray(PRIORS[name])
    prior = InteractionPrior(prior) if name == "interactions" else prior
    confidence = ConfidenceEM(prior, DISTRIBUTION, rule=rule, n_sample=10, normalize=False)
    got = estimate_confidence(confidence, log, params)
    w, h = (np.asarray(params[key], np.float64) for key in ("users", "items"))
    score = np.sum(w[log.users] * h[log.items], axis=1)
    want = jnp.asarray(prior_at(name, log))
    if rule != "prior":
        formula = weights.confidence_density if rule == "density" else weights.confidence_posterior
        want = jax.jit(partial(formula, distribution=DISTRIBUTION))(jnp.asarray(score), prior=want)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    relative = estimate_confidence(replace(confidence, normalize=True), log, params)
    np.testing.assert_allclose(relative, want / np.mean(want), rtol=1e-4)


def test_distribution_is_estimated_from_interaction_scores(data):
    """Users 0 to 2 score low, the others high: half of the sample lies below each gap."""
    _, log = data
    params = {
        "users": jnp.where(jnp.arange(N_USERS)[:, None] < 3, -1.0, 1.0) * jnp.ones((1, DIM)),
        "items": jnp.ones((N_ITEMS, DIM)),
    }
    prior = jnp.full(N_ITEMS, 0.5)
    for n_sample in (24, 23):  # all of them, and a sample, whose halves deviate slightly
        confidence = ConfidenceEM(
            prior, stats.SmoothedEmpirical(0.1), rule="posterior", n_sample=n_sample
        )
        got = estimate_confidence(confidence, log, params)
        # In the middle of each half: F is 1/4 and 3/4, and so is the posterior.
        tolerance = 0.01 if n_sample == 24 else 0.3
        np.testing.assert_allclose(got, np.where(log.users < 3, 0.5, 1.5), atol=tolerance)


@pytest.mark.parametrize("prior", [0.3, 0.9])
def test_mean_posterior_matches_prior(data, prior):
    """The observed distribution is that of the larger or smaller score, not of a single one."""
    _, log = data
    params = jax.tree.map(lambda x: 3 * x, first_params())
    confidence = ConfidenceEM(
        jnp.full(N_ITEMS, prior), stats.SmoothedEmpirical(0.05), rule="posterior", normalize=False
    )
    got = estimate_confidence(confidence, log, params)
    assert abs(np.mean(got) - prior) < 0.02


def test_confidence_is_one_if_all_densities_underflow(data):
    _, log = data
    params = jax.tree.map(lambda x: 1e4 + x, first_params())
    confidence = ConfidenceEM(jnp.full(N_ITEMS, 0.5), DISTRIBUTION, rule="density")
    got = estimate_confidence(confidence, log, params)
    np.testing.assert_array_equal(got, np.ones(24))


def test_lack_of_fit_detects_wrong_variance(data):
    """Products of normal vectors fit with the right variance, and do not fit with another."""
    users, items = jnp.arange(400), jnp.arange(400)
    large = MatrixFactorization(400, 400, 8)
    keys = jax.random.split(jax.random.key(0))
    params = {
        name: jnp.sqrt(0.3) * jax.random.normal(key, (400, 8))
        for name, key in zip(("users", "items"), keys, strict=True)
    }
    prior = jnp.full(400, 0.5)

    def misfit(distribution, rule="density"):
        confidence = ConfidenceEM(prior, distribution, rule=rule, n_sample=4000)
        tables = Tables(params["users"], params["items"])
        lack = jax.jit(partial(confidence.lack_of_fit, jax.random.key(1), large))
        return float(lack(tables, users, items))

    assert misfit(stats.VarianceGamma(8, 0.3)) < 0.05
    assert misfit(stats.VarianceGamma(8, 0.01)) > 0.3
    assert misfit(stats.VarianceGamma(8, 10.0)) > 0.15
    assert misfit(stats.SmoothedEmpirical()) == misfit(stats.VarianceGamma(8, 10.0), "prior") == 0


def test_sampling_by_user_is_uniform_over_users():
    """Users with 1, 2 and 3 interactions, and one without; the loss counts sampled users."""
    users = np.repeat([0, 2, 3], [1, 2, 3])
    items = np.array([0, 0, 1, 0, 1, 2])
    log = Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    rows = jnp.array([[0, 1], [1, 3], [3, 6]])

    # Each interaction has a separate weight, so that the mean loss of 1 is the mean weight.
    def one(pos, neg, *, reduce_fn):
        return 1 + 0 * pos

    @jax.jit
    def share(key, weight):
        return epoch(log, key=key, weight=weight, loss=one, batch_size=2, by_user=rows)[2]["loss"]

    keys = jax.random.split(jax.random.key(5), 400)
    chances = [np.mean(jax.vmap(share, (0, None))(keys, row)) for row in jnp.eye(6)]
    want = np.array([1 / 3, 1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9])
    np.testing.assert_allclose(chances, want, atol=4 * np.sqrt(0.25 / 2400))


def test_expectation_step_runs_every_n_epochs(data):
    _, log = data
    confidence = ConfidenceEM(weights.credibility_prior(log.item_counts), DISTRIBUTION, every=3)
    task = Ranking.from_interactions(
        log, encoder=ENCODER, loss=losses.bpr, confidence=confidence
    )  # fmt: skip
    params, model_state = task.init(jax.random.key(0))
    model_state = model_state._replace(confidence=jnp.full(24, 7.0))
    start_epoch = jax.jit(task.start_epoch)
    kept = [
        np.all(start_epoch(jax.random.key(1), params, model_state, jnp.int32(i)).confidence == 7)
        for i in range(4)
    ]
    assert kept == [False, True, True, False]


def test_zero_prior_leaves_user_rows_unchanged(data):
    """Users with a prior of 0 keep their rows."""
    _, log = data
    prior = jnp.where(jnp.asarray(log.users) < 2, 0.0, 0.8)
    params = first_params()
    confidence = ConfidenceEM(InteractionPrior(prior), DISTRIBUTION)
    _, state, _ = epoch(log, confidence=confidence, params=params)
    moved = np.abs(np.asarray(state.params["users"] - params["users"])).max(axis=1)
    assert (moved[:2] == 0).all()
    assert (moved[2:] > 0).all()


def groups(pos, neg, *, rho, **rest):
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


def test_group_members_add_no_l2_terms():
    """If gradients are zero, rows shrink only by their L2 terms, one of each triplet."""
    log = Interactions.from_arrays(
        [0, 1, 2], [0, 0, 0], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    out = []
    for n_group in (0, 3):

        def zero_loss(pos, neg, **rest):
            return 0.0 * jnp.sum(neg, axis=-1)

        _, state, _ = epoch(
            log, batch_size=1, by_rows=True, weight_decay=0.2, loss=zero_loss, n_group=n_group
        )
        out.append(state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *out)


def test_group_row_updates_match_dense_updates(data):
    _, log = data
    settings = {"loss": groups, "n_group": 3, "hyperparams": {"rho": 0.4}, "batch_size": 5}
    tables, rows = (epoch(log, by_rows=each, **settings) for each in (False, True))
    for name in ("users", "items"):
        np.testing.assert_allclose(
            tables[1].params[name], rows[1].params[name], rtol=1e-4, atol=1e-6
        )


def test_group_members_share_positive_item_of_anchor(data):
    _, log = data
    seen = []

    _, state, _ = epoch(
        log, encoder=Watched(N_USERS, N_ITEMS, DIM, see=lambda *given: seen.append(given[2:])),
        loss=groups, n_group=4, hyperparams={"rho": 0.4}, batch_size=8,
    )  # fmt: skip
    jax.block_until_ready(state)
    jax.effects_barrier()
    observed = set(zip(log.users.tolist(), log.items.tolist(), strict=True))
    members = [(u, i) for u, i in seen if i.shape[1] == 1]
    assert len(members) == 3
    sampled = [pair for users, items in members for pair in zip(users, items[:, 0], strict=True)]
    assert len(sampled) == 24 * 4
    assert all((int(u), int(i)) in observed for u, i in sampled)
    assert len({int(u) for u, _ in sampled}) == N_USERS


@pytest.fixture
def quick():
    return quick_fit()


@pytest.fixture
def confidence():
    prior = weights.credibility_prior(split().train.item_counts)
    return ConfidenceEM(prior, stats.SmoothedEmpirical(), every=2, rule="posterior", n_sample=500)


@pytest.mark.filterwarnings("ignore:The distribution of `confidence`")
def test_fit_returns_confidence_of_last_expectation_step(quick, confidence):
    """The weights of the fifth epoch, which began with the parameters after the fourth."""
    log = split().train
    confidence = replace(confidence, distribution=DISTRIBUTION, rule="density", normalize=False)
    with pytest.warns(UserWarning, match="does not fit the scores before the first epoch"):
        late = fit(log, confidence=confidence, **quick.keywords)
    early = fit(log, confidence=confidence, **{**quick.keywords, "epochs": 4})
    want = confidence.estimate(
        jax.random.key(0), early.encoder, early.tables(), jnp.asarray(log.users),
        jnp.asarray(log.items),
    )  # fmt: skip
    assert late.confidence.shape == (1, len(log))
    np.testing.assert_allclose(late.confidence[0], want, rtol=1e-5)


@pytest.mark.slow
def test_parallel_runs_match_separate_runs_also_if_resumed(quick, confidence, tmp_path):
    """At the interruption, an earlier E-step is in use and the second run has stopped."""
    run = partial(fit, split().train, confidence=confidence, **quick.keywords)
    path, both = tmp_path / "state.npz", {"seeds": [0, 1], "epochs": [6, 2]}
    together = run(**both)
    assert np.abs(together.confidence - 1).max() > 0.01
    for i in range(2):
        alone = run(**{name: each[i] for name, each in both.items()})
        np.testing.assert_allclose(together.confidence[i], alone.confidence[0], rtol=1e-3)
        for name, table in alone.get_params().items():
            np.testing.assert_allclose(together.get_params(i)[name], table, rtol=1e-3, atol=1e-5)
    with raises(Killed):
        run(**both, checkpoint=path, seconds=0, see=kill_at(4))
    resumed = run(**both, checkpoint=path)
    parts = ((fitted.params, fitted.confidence) for fitted in (together, resumed))
    jax.tree.map(np.testing.assert_array_equal, *parts)
    with raises(ValueError, match="another training"):
        run(**{**both, "confidence": replace(confidence, every=3)}, checkpoint=path)


def test_prior_type_distinguishes_items_from_interactions():
    """If there are as many interactions as items, both arrays have the same shape."""
    log = Interactions.from_arrays([0, 1, 2], [2, 0, 1])
    tables = Tables(jnp.ones((3, 1)), jnp.ones((3, 1)))
    prior, encoder = jnp.array([0.1, 0.2, 0.3]), MatrixFactorization(3, 3, 1)

    def estimate(prior):
        confidence = ConfidenceEM(prior, rule="prior", normalize=False)
        confidence.check(3, 3, 3)
        users, items = jnp.asarray(log.users), jnp.asarray(log.items)
        return confidence.estimate(jax.random.key(0), encoder, tables, users, items)

    np.testing.assert_array_equal(estimate(InteractionPrior(prior)), prior)
    np.testing.assert_array_equal(estimate(prior), prior[jnp.array([2, 0, 1])])


def test_confidence_is_nan_for_users_who_saw_whole_catalogue(quick):
    """A prior per interaction is split along with the interactions."""
    users = np.repeat([0, 1, 2], [4, 2, 1])
    items = np.array([0, 1, 2, 3, 0, 2, 1])
    log = Interactions.from_arrays(users, items, user_ids=np.arange(3), item_ids=np.arange(4))
    prior = jnp.linspace(0.1, 0.7, 7)
    confidence = ConfidenceEM(InteractionPrior(prior), rule="prior", normalize=False)
    with pytest.warns(UserWarning, match="4 interactions of users who have seen the whole"):
        fitted = fit(log, loss=losses.bpr, epochs=1, batch_size=2, confidence=confidence)
    want = np.where(users == 0, np.nan, prior)
    np.testing.assert_allclose(fitted.confidence[0], want, rtol=1e-6)


def test_training_with_user_anchors_reduces_loss(quick):
    fitted = fit(split().train, anchors="users", **quick.keywords)
    assert fitted.history[-1]["loss"][0] < fitted.history[0]["loss"][0]
    assert fitted.confidence is None


def drop_later(progress, hyperparams):
    """A schedule that drops nothing in the first half of the training."""
    return {**hyperparams, "drop_rate": jnp.where(progress < 0.5, 0.0, hyperparams["drop_rate"])}


def test_hyperparameters_follow_their_schedule(quick):
    """Until the schedule starts, the loss equals that without drops."""
    fitted = fit(
        split().train, **{**quick.keywords, "loss": losses.truncated_bpr},
        hyperparams={"drop_rate": np.array([0.0, 0.5])}, hyperparam_schedule=drop_later,
    )  # fmt: skip
    plain, dropped = np.array([entry["loss"] for entry in fitted.history]).T
    np.testing.assert_allclose(dropped[:3], plain[:3], rtol=1e-6)
    assert np.all(dropped[3:] < 0.9 * plain[3:])


def beyond_one(progress, hyperparams):
    return {**hyperparams, "drop_rate": hyperparams["drop_rate"] + progress}


def test_rejects_schedule_out_of_range(quick):
    settings = {"loss": losses.truncated_bpr, "hyperparams": {"drop_rate": 0.5}}
    with raises(ValueError, match="`drop_rate` must lie in"):
        quick(**settings, hyperparam_schedule=beyond_one)


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (lambda quick: quick(n_group=-1), "n_group"),
        (lambda quick: quick(n_group=2, n_pos=1), "n_group"),
        (lambda quick: ConfidenceEM(jnp.ones(3), DISTRIBUTION, rule="odds"), "rule"),
        (lambda quick: ConfidenceEM(jnp.array([0.5, 1.1]), DISTRIBUTION), "prior"),
        (lambda quick: quick(confidence=ConfidenceEM(jnp.ones(3), DISTRIBUTION)), "prior"),
        (lambda quick: quick(confidence=ConfidenceEM(0.5, DISTRIBUTION)), "prior"),
        (
            lambda quick: ConfidenceEM(InteractionPrior(jnp.array([0.5, 1.1])), DISTRIBUTION),
            "values",
        ),
        (lambda quick: quick(confidence=ConfidenceEM(InteractionPrior(jnp.ones(3)))), "prior"),
        (
            lambda quick: quick(
                confidence=ConfidenceEM(jnp.ones(len(split().train)), DISTRIBUTION)
            ),
            "prior",
        ),
        (
            lambda quick: quick(
                confidence=ConfidenceEM(jnp.ones(80), DISTRIBUTION, every=jnp.ones(2))
            ),
            "every",
        ),
    ],
)
def test_rejects_invalid_arguments(quick, bad, name):
    with raises(ValueError, match=f"`{name}`"):
        bad(quick)
