"""EM by credence and comparisons of groups, against plain NumPy where nothing is left to chance."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from crl_jax import losses, stats, weights
from crl_jax.data import Interactions, simulate, with_validation
from crl_jax.models import MatrixFactorization, functional
from crl_jax.samplers import RNS, Positives, permute
from crl_jax.train import Anchors, Credence, EpochState, Step, fit, run_epoch, sgd_l2

pytestmark = pytest.mark.usefixtures("standard_promotion")

N_USERS, N_ITEMS, DIM = 6, 5, 3
LAW = stats.VarianceGamma(DIM, 0.5)


@pytest.fixture
def data():
    """Every user has left exactly one item: the only negative there is to draw."""
    missing = np.array([0, 1, 2, 3, 4, 2])
    users, items = np.nonzero(np.arange(N_ITEMS) != missing[:, None])
    return missing, Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )


@pytest.fixture
def model():
    return functional(lambda rngs: MatrixFactorization(N_USERS, N_ITEMS, DIM, rngs=rngs))


def epoch(data, model, *, credence=None, confidence=None, number=0, params=None, **changes):
    """One epoch; by default one batch of all interactions and SGD without L2."""
    settings = {
        "model": model, "loss": losses.bpr, "optimizer": sgd_l2, "batch_size": 24, "n_neg": 1,
        "n_pos": 0, **changes,
    }  # fmt: skip
    decay = settings.pop("decay", 0.0)
    knobs = {"learning_rate": jnp.float32(0.3), "weight_decay": jnp.float32(decay)}
    knobs["loss"] = settings.pop("knobs", {})
    turned = Interactions.from_arrays(
        data.items, data.users, user_ids=np.arange(N_ITEMS), item_ids=np.arange(N_USERS)
    )
    anchors = Anchors(
        users=jnp.asarray(data.users),
        items=jnp.asarray(data.items),
        positives=Positives.of(data),
        takers=Positives.of(turned),
    )
    params = model.init(jax.random.key(0)) if params is None else params
    state = EpochState(params, sgd_l2(0.3, 0.0).init(params), confidence=confidence)
    key = jax.random.key(4)
    return run_epoch(Step(**settings), state, key, anchors, RNS(), knobs, number, credence)


def weighted_gradients(params, data, missing, weight):
    """Of the mean of weighted BPR losses, in float64."""
    w, h = (np.asarray(params[name], np.float64) for name in ("users", "items"))
    grads = {"users": np.zeros_like(w), "items": np.zeros_like(h)}
    loss = 0
    for u, i, c in zip(data.users, data.items, weight, strict=True):
        ahead = w[u] @ (h[i] - h[missing[u]])
        loss += c * np.log1p(np.exp(-ahead)) / len(weight)
        slope = -c / (1 + np.exp(ahead)) / len(weight)
        grads["users"][u] += slope * (h[i] - h[missing[u]])
        grads["items"][i] += slope * w[u]
        grads["items"][missing[u]] -= slope * w[u]
    return loss, grads


@pytest.mark.parametrize("row_wise", [False, True])
def test_confidence_multiplies_the_losses(data, model, row_wise):
    missing, log = data
    weight = np.random.default_rng(0).uniform(0, 3, len(log)).astype(np.float32)
    params = model.init(jax.random.key(0))
    state, report = epoch(log, model, confidence=jnp.asarray(weight), row_wise=row_wise)
    loss, grads = weighted_gradients(params, log, missing, weight)
    np.testing.assert_allclose(report["loss"], loss, rtol=1e-5)
    for name, grad in grads.items():
        want = np.asarray(params[name], np.float64) - 0.3 * grad
        np.testing.assert_allclose(state.params[name], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(state.confidence, weight)


def test_published_loop_weights_the_l2_too(data, model):
    """Equation 3.32, one triplet after another."""
    missing, log = data
    weight = np.random.default_rng(0).uniform(0, 3, len(log)).astype(np.float32)
    params, decay = model.init(jax.random.key(0)), 0.2
    state, _ = epoch(
        log, model, confidence=jnp.asarray(weight), batch_size=1, row_wise=True, decay=decay
    )
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


@pytest.mark.parametrize("block", [24, 7])
@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("rule", ["density", "posterior", "prior"])
def test_the_expectation_step_looks_every_interaction_up(
    data, model, monkeypatch, name, block, rule
):
    monkeypatch.setattr("crl_jax.train._credence._BLOCK", block)
    _, log = data
    params = model.init(jax.random.key(3))
    prior = PRIORS[name] if callable(PRIORS[name]) else jnp.asarray(PRIORS[name])
    credence = Credence(prior, LAW, rule=rule, n_sample=10, normalize=False)
    users, items = jnp.asarray(log.users), jnp.asarray(log.items)
    got = credence.estimate(jax.random.key(0), model, params, users, items, N_ITEMS)
    w, h = (np.asarray(params[key], np.float64) for key in ("users", "items"))
    score = np.sum(w[log.users] * h[log.items], axis=1)
    want = jnp.asarray(prior_at(name, log))
    if rule != "prior":
        formula = weights.confidence if rule == "density" else weights.confidence_posterior
        want = formula(jnp.asarray(score), prior=want, law=LAW)
    np.testing.assert_allclose(got, want, rtol=1e-4)
    relative = replace(credence, normalize=True).estimate(
        jax.random.key(0), model, params, users, items, N_ITEMS
    )
    np.testing.assert_allclose(relative, want / np.mean(want), rtol=1e-4)


def test_the_law_is_read_off_the_interactions(data, model):
    """Users 0 to 2 score low, the others high: half of the sample lies below each gap."""
    _, log = data
    users, items = jnp.asarray(log.users), jnp.asarray(log.items)
    params = {
        "users": jnp.where(jnp.arange(N_USERS)[:, None] < 3, -1.0, 1.0) * jnp.ones((1, DIM)),
        "items": jnp.ones((N_ITEMS, DIM)),
    }
    prior = jnp.full(N_ITEMS, 0.5)
    for n_sample in (24, 23):  # all of them, and a draw, which misses the halves a little
        credence = Credence(prior, stats.Smoothed(0.1), rule="posterior", n_sample=n_sample)
        got = credence.estimate(jax.random.key(0), model, params, users, items, N_ITEMS)
        # In the middle of each half: F is 1/4 and 3/4, and so is the posterior.
        tolerance = 0.01 if n_sample == 24 else 0.3
        np.testing.assert_allclose(got, np.where(log.users < 3, 0.5, 1.5), atol=tolerance)


@pytest.mark.parametrize("prior", [0.3, 0.5, 0.9])
def test_posteriors_add_up_to_the_prior(data, model, prior):
    """The law seen is that of the larger or the smaller score, and not that of one of two."""
    _, log = data
    params = jax.tree.map(lambda x: 3 * x, model.init(jax.random.key(0)))
    credence = Credence(
        jnp.full(N_ITEMS, prior), stats.Smoothed(0.05), rule="posterior", normalize=False
    )
    users, items = jnp.asarray(log.users), jnp.asarray(log.items)
    got = credence.estimate(jax.random.key(0), model, params, users, items, N_ITEMS)
    assert abs(np.mean(got) - prior) < 0.02


def test_nothing_credible_is_as_good_as_everything(data, model):
    _, log = data
    params = jax.tree.map(lambda x: 1e4 + x, model.init(jax.random.key(0)))
    users, items = jnp.asarray(log.users), jnp.asarray(log.items)
    credence = Credence(jnp.full(N_ITEMS, 0.5), LAW, rule="density")
    got = credence.estimate(jax.random.key(0), model, params, users, items, N_ITEMS)
    np.testing.assert_array_equal(got, np.ones(24))


def test_a_law_in_closed_form_is_held_against_the_scores(data, model):
    """Products of normal vectors of their own variance fit, of another they do not."""
    users, items = jnp.arange(400), jnp.arange(400)
    large = functional(lambda rngs: MatrixFactorization(400, 400, 8, rngs=rngs))
    keys = jax.random.split(jax.random.key(0))
    params = {
        name: jnp.sqrt(0.3) * jax.random.normal(key, (400, 8))
        for name, key in zip(("users", "items"), keys, strict=True)
    }
    prior = jnp.full(400, 0.5)

    def leaves(law, rule="density"):
        credence = Credence(prior, law, rule=rule, n_sample=4000)
        return float(credence.misfit(jax.random.key(1), large, params, users, items))

    assert leaves(stats.VarianceGamma(8, 0.3)) < 0.05
    assert leaves(stats.VarianceGamma(8, 0.01)) > 0.3
    assert leaves(stats.VarianceGamma(8, 10.0)) > 0.15
    assert leaves(stats.Smoothed()) == leaves(stats.VarianceGamma(8, 10.0), "prior") == 0


def test_by_user_every_user_is_drawn_alike(model):
    """Users with 1, 2 and 3 interactions, and one without; a loss that counts who comes."""
    users = np.repeat([0, 2, 3], [1, 2, 3])
    items = np.array([0, 0, 1, 0, 1, 2])
    log = Interactions.from_arrays(
        users, items, user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    rows = jnp.array([[0, 1], [1, 3], [3, 6]])
    anchors = Anchors(jnp.asarray(users), jnp.asarray(items), Positives.of(log), rows=rows)
    # Each interaction has a weight of its own, so that the mean loss of 1 is the mean weight.
    step = Step(model, lambda pos, neg, *, reduce_fn: 1 + 0 * pos, sgd_l2, 2, 1, 0)
    params = model.init(jax.random.key(0))
    knobs = {"learning_rate": jnp.float32(0), "weight_decay": jnp.float32(0), "loss": {}}

    @jax.jit
    def share(key, weight):
        state = EpochState(params, sgd_l2(0.0, 0.0).init(params), confidence=weight)
        return run_epoch(step, state, key, anchors, RNS(), knobs)[1]["loss"]

    keys = jax.random.split(jax.random.key(5), 400)
    chances = [np.mean(jax.vmap(share, (0, None))(keys, row)) for row in jnp.eye(6)]
    want = np.array([1 / 3, 1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9])
    np.testing.assert_allclose(chances, want, atol=4 * np.sqrt(0.25 / 2400))


@pytest.mark.parametrize(("number", "due"), [(0, True), (1, False), (2, False), (3, True)])
def test_expectation_comes_every_so_many_epochs(data, model, number, due):
    _, log = data
    credence = Credence(weights.credibility_prior(log), LAW, every=3)
    before = jnp.full(24, 7.0)
    state, _ = epoch(log, model, credence=credence, confidence=before, number=number)
    assert bool(np.all(state.confidence == 7)) != due


def test_what_nobody_believes_teaches_nothing(data, model):
    """Users with a prior of 0 keep their rows."""
    _, log = data
    prior = jnp.where(jnp.asarray(log.users) < 2, 0.0, 0.8)
    params = model.init(jax.random.key(0))
    credence = Credence(prior, LAW)
    state, _ = epoch(log, model, credence=credence, confidence=jnp.ones(24), params=params)
    moved = np.abs(np.asarray(state.params["users"] - params["users"])).max(axis=1)
    assert (moved[:2] == 0).all()
    assert (moved[2:] > 0).all()


def groups(pos, neg, *, rho, **rest):
    return losses.gbpr(pos[:, 0], neg, group=pos[:, 1:], rho=rho, **rest)


@pytest.mark.parametrize("row_wise", [False, True])
def test_groups_are_of_users_who_took_the_item(model, row_wise):
    """Items 0 and 1 have one user each: the group is the user, and the loss BPR's."""
    log = Interactions.from_arrays(
        [0, 1], [0, 1], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    out = []
    for settings in ({"loss": groups, "n_group": 3, "knobs": {"rho": 0.4}}, {}):
        state, report = epoch(log, model, batch_size=2, row_wise=row_wise, **settings)
        out.append((state.params, report["loss"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), *out)


def test_a_group_adds_no_l2(model):
    """Without a gradient rows shrink by their L2 terms alone, one of each triplet."""
    log = Interactions.from_arrays(
        [0, 1, 2], [0, 0, 0], user_ids=np.arange(N_USERS), item_ids=np.arange(N_ITEMS)
    )
    out = []
    for n_group in (0, 3):

        def nothing(pos, neg, **rest):
            return 0.0 * jnp.sum(neg, axis=-1)

        state, _ = epoch(
            log, model, batch_size=1, row_wise=True, decay=0.2, loss=nothing, n_group=n_group
        )
        out.append(state.params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), *out)


@pytest.mark.parametrize("batch_size", [24, 5])
def test_groups_change_rows_as_they_change_tables(data, model, batch_size):
    _, log = data
    settings = {"loss": groups, "n_group": 3, "knobs": {"rho": 0.4}, "batch_size": batch_size}
    tables, rows = (epoch(log, model, row_wise=by_row, **settings) for by_row in (False, True))
    for name in ("users", "items"):
        np.testing.assert_allclose(
            tables[0].params[name], rows[0].params[name], rtol=1e-4, atol=1e-6
        )


def test_every_member_of_a_group_took_the_item_of_its_anchor(data, model):
    _, log = data
    seen = []

    def score(params, users, items):
        jax.debug.callback(lambda u, i: seen.append((u, i)), users, items, ordered=True)
        return model.score(params, users, items)

    state, _ = epoch(
        log, model._replace(score=score), loss=groups, n_group=4, knobs={"rho": 0.4}, batch_size=8
    )
    jax.block_until_ready(state)
    jax.effects_barrier()
    taken = set(zip(log.users.tolist(), log.items.tolist(), strict=True))
    members = [(u, i) for u, i in seen if i.shape[1] == 1]
    assert len(members) == 3
    drawn = [pair for users, items in members for pair in zip(users, items[:, 0], strict=True)]
    assert len(drawn) == 24 * 4
    assert all((int(u), int(i)) in taken for u, i in drawn)
    assert len({int(u) for u, _ in drawn}) == N_USERS


@functools.cache
def split():
    small = simulate(n_users=60, n_items=80, n_exposed=50, seed=1).interactions
    return with_validation(small, valid=0.2)


@pytest.fixture
def quick():
    """``fit`` on small data for a few epochs."""
    return functools.partial(
        fit, split().train, split().valid,
        loss=losses.bpr, epochs=6, batch_size=64, learning_rate=1e-2,
    )  # fmt: skip


@pytest.fixture
def credence():
    prior = weights.credibility_prior(split().train)
    return Credence(prior, stats.Smoothed(), every=2, rule="posterior", n_sample=500)


def test_credence_changes_what_is_learned(quick, credence):
    plain, weighted = quick(), quick(credence=credence)
    assert weighted.history[-1]["valid_ndcg@20"][0] > weighted.history[0]["valid_ndcg@20"][0]
    assert np.abs(plain.params["users"] - weighted.params["users"]).max() > 1e-3


@pytest.mark.filterwarnings("ignore:The law of `credence`")
def test_the_confidence_in_use_is_given_back(quick, credence):
    """That of the fifth epoch, which began with the parameters after the fourth."""
    log = split().train
    assert fit(log, **quick.keywords).confidence is None
    credence = replace(credence, law=LAW, rule="density", normalize=False)
    late = fit(log, credence=credence, **quick.keywords)
    early = fit(log, credence=credence, **{**quick.keywords, "epochs": 4})
    want = credence.estimate(
        jax.random.key(0), early.model, early.run(), jnp.asarray(log.users),
        jnp.asarray(log.items), log.n_items,
    )  # fmt: skip
    assert late.confidence.shape == (1, len(log))
    np.testing.assert_allclose(late.confidence[0], want, rtol=1e-5)


def test_runs_together_are_the_runs_alone(quick, credence):
    together = quick(credence=credence, seeds=[0, 1])
    for run in range(2):
        alone = quick(credence=credence, seeds=run)
        for name in ("users", "items"):
            np.testing.assert_allclose(
                together.params[name][run], alone.params[name][0], rtol=1e-3, atol=1e-5
            )


@pytest.mark.parametrize("kill_at", [1, 2, 3])
def test_a_resumed_run_ends_with_the_same_bits(quick, credence, tmp_path, kill_at):
    """Also where the confidence in use is from before the interruption."""

    class KilledError(Exception):
        pass

    def kill(entry):
        if entry["epoch"] == kill_at + 1:
            raise KilledError

    path = tmp_path / "state.npz"
    whole = quick(credence=credence)
    with pytest.raises(KilledError):
        quick(credence=credence, checkpoint=path, checkpoint_seconds=0, on_epoch=kill)
    resumed = quick(credence=credence, checkpoint=path)
    jax.tree.map(np.testing.assert_array_equal, whole.params, resumed.params)
    with pytest.raises(ValueError, match="another training"):
        quick(credence=replace(credence, every=3), checkpoint=path)


def test_users_who_took_everything_have_no_confidence(quick):
    """A prior of interactions is cut as the interactions are."""
    users = np.repeat([0, 1, 2], [4, 2, 1])
    items = np.array([0, 1, 2, 3, 0, 2, 1])
    log = Interactions.from_arrays(users, items, user_ids=np.arange(3), item_ids=np.arange(4))
    prior = jnp.linspace(0.1, 0.7, 7)
    credence = Credence(prior, rule="prior", normalize=False)
    with pytest.warns(UserWarning, match="whole catalogue"):
        fitted = fit(log, loss=losses.bpr, epochs=1, batch_size=2, credence=credence)
    want = np.where(users == 0, np.nan, prior)
    np.testing.assert_allclose(fitted.confidence[0], want, rtol=1e-6)


def test_a_run_that_has_ended_keeps_its_confidence(quick, credence):
    log, settings = split().train, quick.keywords
    together = fit(log, credence=credence, **{**settings, "epochs": [2, 6]})
    alone = fit(log, credence=credence, **{**settings, "epochs": 2})
    np.testing.assert_allclose(together.confidence[0], alone.confidence[0], rtol=1e-3)


def test_a_law_that_does_not_fit_is_a_warning(quick, credence):
    far = replace(credence, law=stats.VarianceGamma(32, 5.0), rule="density")
    with pytest.warns(UserWarning, match="does not fit the scores before the first epoch"):
        quick(credence=far, epochs=1)


def test_training_by_user_learns_too(quick):
    by_user, plain = quick(anchors="users"), quick()
    assert by_user.history[-1]["valid_ndcg@20"][0] > by_user.history[0]["valid_ndcg@20"][0]
    assert np.abs(by_user.params["users"] - plain.params["users"]).max() > 1e-3
    with pytest.raises(ValueError, match="`anchors` must be interactions or users, got 'items'"):
        quick(anchors="items")


def drop_later(progress, knobs):
    """Drops nothing in the first half of the training."""
    return {**knobs, "drop_rate": jnp.where(progress < 0.5, 0.0, knobs["drop_rate"])}


def test_hyperparameters_follow_their_schedule(quick):
    """Until the schedule sets in, the loss is BPR's to the last bit."""
    drops = {"loss": losses.truncated_bpr, "knobs": {"drop_rate": 0.5}}
    plain = quick()
    scheduled = quick(**drops, knob_schedule=drop_later)
    constant = quick(**drops)
    first = [fitted.history[2]["loss"] for fitted in (plain, scheduled, constant)]
    np.testing.assert_allclose(first[0], first[1], rtol=1e-6)
    assert first[2][0] < first[0][0]
    assert scheduled.history[3]["loss"][0] < 0.9 * plain.history[3]["loss"][0]


def beyond_one(progress, knobs):
    return {**knobs, "drop_rate": knobs["drop_rate"] + progress}


def test_a_schedule_out_of_range_is_refused(quick):
    settings = {"loss": losses.truncated_bpr, "knobs": {"drop_rate": 0.5}}
    with pytest.raises(ValueError, match="`drop_rate` must lie in"):
        quick(**settings, knob_schedule=beyond_one)


def test_groups_in_a_whole_training(quick):
    fitted = quick(loss=groups, knobs={"rho": 0.4}, n_group=3)
    assert fitted.history[-1]["valid_ndcg@20"][0] > fitted.history[0]["valid_ndcg@20"][0]


@pytest.mark.parametrize(
    ("bad", "name"),
    [
        (lambda quick: quick(n_group=-1), "n_group"),
        (lambda quick: quick(n_group=2, n_pos=1), "n_group"),
        (lambda quick: Credence(jnp.ones(3), LAW, every=0), "every"),
        (lambda quick: Credence(jnp.ones(3), LAW, n_sample=1), "n_sample"),
        (lambda quick: Credence(jnp.ones(3), LAW, rule="odds"), "rule"),
        (lambda quick: Credence(jnp.ones(3), LAW, every=1.5), "every"),
        (lambda quick: Credence(jnp.array([0.5, 1.1]), LAW), "prior"),
        (lambda quick: quick(credence=Credence(jnp.ones(3), LAW)), "prior"),
        (lambda quick: quick(credence=Credence(0.5, LAW)), "prior"),
        (lambda quick: quick(credence=Credence(jnp.ones(80), LAW, every=jnp.ones(2))), "every"),
    ],
)
def test_bad_arguments_are_named(quick, bad, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        bad(quick)
