"""The contrast of two views beside a ranking, against NumPy where nothing is left to chance."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graphs import interactions, normalised, stacked
from ranking import split

from crl_jax import losses, tasks, train
from crl_jax.models import LightGCN, MatrixFactorization, Tables
from crl_jax.tasks import GraphViews, LayerViews, SpectralViews

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")
USERS = jnp.array([3, 1, 3, 0, 2, 1])
ITEMS = jnp.array([5, 5, 2, 4, 5, 0])
REAL = jnp.array([True, True, True, True, False, True])


def tables(seed):
    rng = np.random.default_rng(seed)
    return Tables(*(jnp.asarray(rng.normal(size=(n, 4)), jnp.float32) for n in (5, 6)))


def np_info_nce(first, second, ids, real, t):
    """The mean over distinct real ids of InfoNCE of their rows, one id at a time."""
    unit = [np.asarray(x, np.float64) / np.linalg.norm(x, axis=1, keepdims=True)
            for x in (first, second)]  # fmt: skip
    ids = np.unique(np.asarray(ids)[np.asarray(real)])
    scores = np.exp(unit[0][ids] @ unit[1][ids].T / t)
    return np.mean(-np.log(np.diag(scores) / scores.sum(1)))


def views(weight=0.3, **settings):
    plain = MatrixFactorization(5, 6, 4)
    return GraphViews(weight, first=plain, second=plain, **settings)


def test_the_term_is_that_of_distinct_users_and_items():
    pair = tables(0), tables(1)
    got = views(hyperparams={"temperature": 0.4}).loss(pair, USERS, ITEMS, REAL)
    want = sum(
        np_info_nce(*of, ids, REAL, 0.4) for of, ids in zip(zip(*pair), (USERS, ITEMS), strict=True)
    )
    np.testing.assert_allclose(got, 0.3 * want, rtol=1e-5)


def test_any_contrastive_loss_will_do():
    pair = tables(0), tables(1)
    given = {"temperature": 0.4, "tau_plus": 0.0, "alpha": 0.5, "beta": 0.5}
    even = views(hyperparams=given, loss_fn=losses.bayesian_contrastive)
    plain = views(hyperparams={"temperature": 0.4})
    np.testing.assert_allclose(
        *(v.loss(pair, USERS, ITEMS, REAL) for v in (even, plain)), rtol=1e-5
    )
    hard = dataclasses.replace(even, hyperparams={**given, "alpha": 0.9, "beta": 0.9})
    assert not np.isclose(hard.loss(pair, USERS, ITEMS, REAL), even.loss(pair, USERS, ITEMS, REAL))


def test_fillers_are_never_read():
    pair = tables(0), tables(1)
    others = jnp.where(REAL, USERS, 4), jnp.where(REAL, ITEMS, 1)
    np.testing.assert_array_equal(
        views().loss(pair, USERS, ITEMS, REAL), views().loss(pair, *others, REAL)
    )
    assert views().loss(pair, USERS, ITEMS, jnp.zeros(6, bool)) == 0


def sgl(log):
    view = LightGCN.of(log, 8, 2, edge_dropout=0.2)
    return dataclasses.replace(view, edge_dropout=0.0), GraphViews(first=view, second=view)


def simgcl(log):
    view = LightGCN.of(log, 8, 2, layer_weights=(0, 0.5, 0.5), noise=jnp.float32(0.1))
    return dataclasses.replace(view, noise=None), GraphViews(first=view, second=view)


def xsimgcl(log):
    view = LightGCN.of(log, 8, 2, layer_weights=(0, 0.5, 0.5), noise=jnp.float32(0.1))
    return view, LayerViews(layer=1)


def lightgcl(log):
    return LightGCN.of(log, 8, 2), SpectralViews.of(log, rank=3)


@pytest.mark.parametrize("method", [sgl, simgcl, xsimgcl, lightgcl])
def test_methods_of_the_field_train(method):
    encoder, contrast = method(split().train)
    settings = {
        "loss": losses.bpr, "encoder": encoder, "epochs": 8,
        "optimizer": train.Optimizer(0.02), "plan": train.StepPlan(256),
    }  # fmt: skip
    fit = partial(tasks.fit_ranking, split().train, split().valid, **settings)
    fitted = fit(contrast=contrast)
    terms = [entry["contrast"][0] for entry in fitted.history]
    assert terms[-1] < terms[0]
    assert fitted.best_score[0] > 0.1
    without = fit(contrast=dataclasses.replace(contrast, weight=0.0))
    assert without.history[-1]["contrast"] == [0.0]
    assert not np.allclose(without.run()["users"], fitted.run()["users"], atol=1e-4)
    if method is not xsimgcl:  # whose ranking sees the noise, too
        plain = fit()
        for name, values in plain.run().items():
            np.testing.assert_allclose(without.run()[name], values, rtol=1e-4, atol=1e-5)


def test_a_layer_is_one_of_the_propagation_that_the_ranking_sees():
    encoder, contrast = xsimgcl(split().train)
    params = encoder.init(jax.random.key(0))
    whole, (first, own) = contrast.encode(encoder, params, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, whole, first)
    deep = dataclasses.replace(contrast, layer=2)
    _, (_, other) = deep.encode(encoder, params, jax.random.key(1))
    mean = jax.tree.map(lambda a, b: (a + b) / 2, own, other)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mean, whole)


def test_a_spectral_view_is_the_graph_of_the_first_singular_vectors():
    taken = np.random.default_rng(0).random((12, 9)) < 0.4
    log = interactions(taken)
    encoder = LightGCN.of(log, 4, 2)
    params = encoder.init(jax.random.key(0))
    whole, (other, same) = SpectralViews.of(log, 4).encode(encoder, params, jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, whole, same)

    graph = normalised(taken)
    left, strengths, right = np.linalg.svd(graph[:12, 12:])
    near = np.zeros_like(graph)
    near[:12, 12:] = (left[:, :4] * strengths[:4]) @ right[:4]
    near += near.T
    own = stacked((params["users"], params["items"]))
    want = (own + near @ own + near @ (graph @ own)) / 3
    np.testing.assert_allclose(stacked(other), want, rtol=1e-4, atol=1e-5)
    assert np.abs(want - stacked(whole)).max() > 1e-3  # what the other vectors are missing


def test_layers_need_an_encoder_that_has_them():
    with pytest.raises(ValueError, match="`contrast` of layers needs a LightGCN, got Matrix"):
        tasks.fit_ranking(split().train, loss=losses.bpr, contrast=LayerViews(), epochs=1)


def test_bad_numbers_are_named():
    with pytest.raises(ValueError, match="`weight` must lie in"):
        LayerViews(-1.0)
    with pytest.raises(ValueError, match="`layer` must be at least 1, got 0"):
        LayerViews(layer=0)
    with pytest.raises(ValueError, match="`rank` must be less than 60, got 60"):
        SpectralViews.of(split().train, rank=60)
