"""Properties that every loss of the table ``LOSSES`` must satisfy.

The references are the formulas as published, in float64 and without overflow protection;
they share no code with the implementation under test.

To add a loss, add its formula and a :class:`Case` to ``LOSSES``. Its hyper-parameters are tested at
the ends of the ranges that its signature declares, and beyond. The groups below ``LOSSES`` list
the exceptions.
"""

import inspect
import re
from collections import Counter
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import as_users_do, quick_jit
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from crl_jax import hyperparams, losses
from crl_jax._hyperparams import Temperature, check_arguments
from crl_jax._reduce import masked_mean
from crl_jax.losses._common import finish, margins, prepare, row_mean


def mean(values, m):
    return (m * values).sum(-1) / m.sum(-1)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def minus_log_sigmoid(x):
    return np.log1p(np.exp(-x))


def np_bpr(pos, extra, neg, m, t):
    return mean(minus_log_sigmoid((pos[..., None] - neg) / t), m)


def np_bce(pos, extra, neg, m, t):
    return minus_log_sigmoid(pos / t) + mean(minus_log_sigmoid(-neg / t), m)


def from_denominator(pos, g, t):
    return np.log1p(g / np.exp(pos / t))  # -log(e^pos / (e^pos + g))


def np_info_nce(pos, extra, neg, m, t):
    return from_denominator(pos, (m * np.exp(neg / t)).sum(-1), t)


def np_hard(pos, extra, neg, m, t, tau_plus, beta, min_score=-1.0):
    w = np.exp(beta * neg / t) / mean(np.exp(beta * neg / t), m)[..., None]
    draws = pos[..., None] if extra is None else extra
    false = tau_plus * np.exp(draws / t).mean(-1)
    true = (mean(w * np.exp(neg / t), m) - false) / (1 - tau_plus)
    return from_denominator(pos, m.sum(-1) * np.maximum(true, np.exp(min_score / t)), t)


def np_debiased(*args, **hyper):
    return np_hard(*args, **hyper, beta=0.0)


def np_bayesian(pos, extra, neg, m, t, tau_plus, alpha, beta):
    u = ((neg[..., None, :] <= neg[..., :, None]) * m[..., None, :]).sum(-1)
    u = u / m.sum(-1, keepdims=True)
    a = (1 - 2 * alpha) * (1 - 2 * tau_plus)
    b = 2 * (alpha * (1 - tau_plus) + (1 - alpha) * tau_plus)
    phi = (-b + np.sqrt(b**2 + 4 * a * u)) / (2 * a)
    z = (1 - beta) * alpha + beta * (1 - alpha)
    w = ((1 - beta) * alpha + (beta - alpha) * phi) / z / (b / 2 + a * phi)
    return from_denominator(pos, (m * w * np.exp(neg / t)).sum(-1), t)


def np_pairwise(pos, extra, neg, m, t, tau_plus, floor=1e-2):
    mixed = mean(sigmoid((pos[..., None] - neg) / t), m)
    false = 0.5 if extra is None else sigmoid((pos[..., None] - extra) / t).mean(-1)
    return -np.log(np.maximum((mixed - tau_plus * false) / (1 - tau_plus), floor))


def np_decoupled(pos, extra, neg, m, t):
    return -np.log(np.exp(pos / t) / (m * np.exp(neg / t)).sum(-1))


def np_sigmoid(pos, extra, neg, m, t, bias):
    apart = minus_log_sigmoid(-neg / t - np.asarray(bias)[..., None])
    return minus_log_sigmoid(pos / t + bias) + (m * apart).sum(-1)


def np_proto(pos, extra, neg, m, t, pos_concentration, neg_concentration):
    return np_info_nce(pos / pos_concentration, None, neg / neg_concentration, m, t)


def np_nce(pos, extra, neg, m, t, pos_log_noise, neg_log_noise, ratio=None):
    k = m.sum(-1) if ratio is None else ratio
    u, q, noise = np.exp(pos / t), np.exp(pos_log_noise), np.exp(neg_log_noise)
    kq = np.asarray(k)[..., None] * noise
    return np.log1p(k * q / u) + k * mean(np.log1p(np.exp(neg / t) / kq), m)


def np_oracle(pos, extra, neg, m, t, true_negative):
    g = m.sum(-1) * mean(np.exp(neg / t), m & true_negative)
    return from_denominator(pos, g, t)


def np_supervised(pos, extra, neg, m, t, where_pos, denominator="all"):
    positives = np.concatenate([pos[..., None], extra], axis=-1) / t
    g = (m * np.exp(neg / t)).sum(-1)[..., None]
    if denominator == "all":  # only other terms: avoids cancellation
        others = where_pos[..., None, :] & ~np.eye(positives.shape[-1], dtype=bool)
        g = g + (others * np.exp(positives)[..., None, :]).sum(-1)
    return mean(np.log1p(g / np.exp(positives)), where_pos)


def np_punce(pos, extra, neg, m, t, where_pos, labelled, tau_plus):
    as_positive = np_supervised(pos, extra, neg, m, t, where_pos)
    labelled_ones = (where_pos[..., 1:] * np.exp(extra / t)).sum(-1)
    as_negative = from_denominator(pos, (m * np.exp(neg / t)).sum(-1) + labelled_ones, t)
    part = tau_plus * as_positive + (1 - tau_plus) * as_negative
    return np.where(labelled, as_positive, part)


def np_gbpr(pos, extra, neg, m, t, group, where_group, rho):
    agreed = rho * mean(group, where_group) + (1 - rho) * pos
    return np_bpr(agreed, None, neg, m, t)


def np_mpr(pos, extra, neg, m, t, likely, balance):
    spread = 0.0 if extra is None else extra[..., 0] - extra[..., 1]
    of_likely = (likely - spread)[..., None] - neg
    balance = np.asarray(balance)[..., None]
    ahead = balance * (pos - likely)[..., None] + (1 - balance) * of_likely
    return mean(minus_log_sigmoid(ahead / t), m)


def np_triplet(pos, extra, neg, m, t, margin):
    return mean(np.maximum((neg - pos[..., None]) / t + np.asarray(margin)[..., None], 0), m)


def np_linear(pos, extra, neg, m, t, repulsion):
    return -pos / t + repulsion * mean(neg, m) / t


def np_bilateral(pos, extra, neg, m, t, repulsion, pos_temperature=None):
    positives = pos[..., None] if extra is None else np.concatenate([pos[..., None], extra], -1)
    pull = np.exp(positives / (pos_temperature or t)).mean(-1)
    return repulsion * np.log(mean(np.exp(neg / t), m)) - np.log(pull)


def np_cosine(pos, extra, neg, m, t, margin, repulsion):
    margin, repulsion = np.asarray(margin)[..., None], np.asarray(repulsion)
    return 1 - pos / t + repulsion * mean(np.maximum(neg / t - margin, 0), m)


def np_small(values, drop_rate):
    """Returns the values shifted so that the largest is 0."""
    dropped = np.argsort(-values, axis=None)[: int(drop_rate * values.size)]
    return np.where(np.isin(np.arange(values.size).reshape(values.shape), dropped), 0, values)


def np_truncated_bce(pos, extra, neg, m, t, drop_rate):
    missed = np_small(minus_log_sigmoid(pos / t), drop_rate)
    return missed + mean(minus_log_sigmoid(-neg / t), m)


def np_truncated_bpr(pos, extra, neg, m, t, drop_rate):
    return np_small(np_bpr(pos, extra, neg, m, t), drop_rate)


def np_reweighted_bce(pos, extra, neg, m, t, exponent):
    missed = sigmoid(pos / t) ** exponent * minus_log_sigmoid(pos / t)
    return missed + mean(sigmoid(-neg / t) ** exponent * minus_log_sigmoid(-neg / t), m)


def np_reweighted_bpr(pos, extra, neg, m, t, exponent):
    d = (pos[..., None] - neg) / t
    return mean(sigmoid(d) ** exponent * minus_log_sigmoid(d), m)


def np_exponential(pos, extra, neg, m, t):
    return mean(np.exp((neg - pos[..., None]) / t), m)


def np_squared_hinge(pos, extra, neg, m, t, margin):
    short = np.asarray(margin)[..., None] - (pos[..., None] - neg) / t
    return mean(np.maximum(short, 0) ** 2, m)


def loss_of_the_page():
    """Returns the example loss of the page on adding a loss."""
    page = Path(losses.__file__).with_name("README.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert code is not None
    made = {"__name__": "crl_jax.losses.example", "__package__": "crl_jax.losses"}
    exec(code[1], made)
    return made["squared_hinge"]


@losses.per_anchor_loss
@check_arguments
def exponential(
    pos, neg, *, temperature: Temperature = 1.0, where=None, weights=None, reduce_fn=masked_mean
):
    """Exponential loss: a test-only example of a loss that overflows."""
    a = prepare(pos, neg, temperature=temperature, where=where, weights=weights)
    return finish(row_mean(jnp.exp(-margins(a, a.neg)), a.where), a, reduce_fn)


PRIOR = dict(tau_plus=0.1)
BAYES = dict(tau_plus=0.1, alpha=0.8, beta=0.7)
UNBOUNDED = dict(tau_plus=0.1, min_score=-np.inf)
SMALL = dict(drop_rate=0.33)
TRUST = dict(exponent=0.7)
NOISE = ("pos_log_noise", "neg_log_noise")


class Case(NamedTuple):
    """Test case: loss, formula, hyper-parameters, extra positives and additional arrays."""

    fn: object
    ref: object
    hyper: dict = {}  # noqa: RUF012
    n_extra: int = 0
    arrays: tuple = ()


LOSSES = {
    "bpr": Case(losses.bpr, np_bpr),
    "bce": Case(losses.bce, np_bce),
    "gbpr": Case(losses.gbpr, np_gbpr, dict(rho=0.4), 0, ("group", "where_group")),
    "mpr": Case(losses.mpr, np_mpr, dict(balance=0.7), 0, ("likely",)),
    "mpr_extra": Case(losses.mpr, np_mpr, dict(balance=0.7), 2, ("likely",)),
    "triplet": Case(losses.triplet_margin, np_triplet, dict(margin=0.5)),
    "linear": Case(losses.linear_pairwise, np_linear, dict(repulsion=0.5)),
    "pairwise": Case(losses.debiased_pairwise, np_pairwise, PRIOR),
    "pairwise_extra": Case(losses.debiased_pairwise, np_pairwise, PRIOR, 3),
    "info_nce": Case(losses.info_nce, np_info_nce),
    "debiased": Case(losses.debiased_contrastive, np_debiased, PRIOR),
    "debiased_extra": Case(losses.debiased_contrastive, np_debiased, UNBOUNDED, 3),
    "hard": Case(losses.hard_contrastive, np_hard, PRIOR | {"beta": 0.8}),
    "bayesian": Case(losses.bayesian_contrastive, np_bayesian, BAYES),
    "decoupled": Case(losses.decoupled_contrastive, np_decoupled),
    "sigmoid": Case(losses.sigmoid_contrastive, np_sigmoid, dict(bias=-0.7)),
    "bilateral": Case(losses.bilateral_softmax, np_bilateral, dict(repulsion=0.8)),
    "bilateral_extra": Case(
        losses.bilateral_softmax, np_bilateral, dict(repulsion=1.2, pos_temperature=0.7), 3
    ),
    "cosine": Case(losses.cosine_contrastive, np_cosine, dict(margin=0.3, repulsion=2.0)),
    "proto_nce": Case(
        losses.proto_nce, np_proto, {}, 0, ("pos_concentration", "neg_concentration")
    ),
    "nce": Case(losses.nce, np_nce, {}, 0, NOISE),
    "nce_ratio": Case(losses.nce, np_nce, dict(ratio=3.0), 0, NOISE),
    "oracle": Case(losses.oracle_contrastive, np_oracle, {}, 0, ("true_negative",)),
    "supervised": Case(losses.supervised_contrastive, np_supervised, {}, 3, ("where_pos",)),
    "supervised_own": Case(
        partial(losses.supervised_contrastive, denominator="own"),
        partial(np_supervised, denominator="own"),
        {},
        3,
        ("where_pos",),
    ),
    "punce": Case(losses.punce, np_punce, PRIOR, 3, ("where_pos", "labelled")),
    "truncated_bce": Case(losses.truncated_bce, np_truncated_bce, SMALL),
    "truncated_bpr": Case(losses.truncated_bpr, np_truncated_bpr, SMALL),
    "reweighted_bce": Case(losses.reweighted_bce, np_reweighted_bce, TRUST),
    "reweighted_bpr": Case(losses.reweighted_bpr, np_reweighted_bpr, TRUST),
    "squared_hinge": Case(loss_of_the_page(), np_squared_hinge, dict(margin=0.5)),
    "exponential": Case(exponential, np_exponential),
}
# The dropped anchors depend on the whole batch: no anchor can be removed, duplicated or
# evaluated alone.
WHOLE_BATCH = ("truncated_bce", "truncated_bpr")
# Same functions with other arguments: omitted where a property depends on the code, not on values.
VARIANTS = (
    "mpr_extra",
    "pairwise_extra",
    "bilateral_extra",
    "debiased",
    "nce_ratio",
    "supervised_own",
)
CONSTANT_WEIGHTS = ("reweighted_bce", "reweighted_bpr")  # weights: stopped gradients
SIGNED = (
    "pairwise",
    "pairwise_extra",
    "decoupled",
    "linear",
    "bilateral",
    "bilateral_extra",
    "cosine",
)  # may be negative
ALONG_NEGATIVES = ("neg", "where", "true_negative", "neg_concentration", "neg_log_noise")
# Overflow float32 where scores are large relative to the temperature; may be infinite there.
OVERFLOWING = ("exponential",)
FINITE = [name for name in LOSSES if name not in OVERFLOWING]


def each_loss_but(*names):
    cases = {name: case for name, case in LOSSES.items() if name not in names}
    return pytest.mark.parametrize(Case._fields, cases.values(), ids=cases)


each_loss = each_loss_but()
each_separable_loss = each_loss_but(*WHOLE_BATCH)


def mask_with_first(key, shape):
    return jax.random.bernoulli(key, 0.7, shape).at[..., 0].set(True)


BESIDE = {  # additional arrays of some losses
    "likely": lambda key, batch, n, m: jax.random.normal(key, batch),
    "group": lambda key, batch, n, m: jax.random.normal(key, (*batch, 3)),
    "where_group": lambda key, batch, n, m: mask_with_first(key, (*batch, 3)),
    "where_pos": lambda key, batch, n, m: mask_with_first(key, (*batch, 1 + m)),
    "true_negative": lambda key, batch, n, m: mask_with_first(key, (*batch, n)),
    "labelled": lambda key, batch, n, m: jax.random.bernoulli(key, 0.5, batch),
    "pos_concentration": lambda key, batch, n, m: jax.random.uniform(key, batch) + 0.5,
    "neg_concentration": lambda key, batch, n, m: jax.random.uniform(key, (*batch, n)) + 0.5,
    "pos_log_noise": lambda key, batch, n, m: -jax.random.uniform(key, batch) - 1,
    "neg_log_noise": lambda key, batch, n, m: -jax.random.uniform(key, (*batch, n)) - 1,
}


@cache
def made_data(n_extra, arrays, batch, n):
    kp, kn, kw, km = jax.random.split(jax.random.key(0), 4)
    pos = jax.random.normal(kp, (*batch, 1 + n_extra)) + 1
    data = dict(
        pos=pos if n_extra else pos[..., 0],
        neg=jax.random.normal(kn, (*batch, n)),
        weights=jax.random.uniform(kw, batch) + 0.1,
        where=jax.random.bernoulli(km, 0.7, (*batch, n)).at[..., 0].set(True),
    )
    for i, name in enumerate(arrays):
        assert name in BESIDE, f"BESIDE does not make {name}"
        data[name] = BESIDE[name](jax.random.key(1 + i), batch, n, n_extra)
    return data


def make_data(n_extra, arrays=(), batch=(4, 5), n=7):
    """Arguments of a loss: four anchors by five, each with a pair that every mask keeps."""
    return dict(made_data(n_extra, arrays, batch, n))


@pytest.fixture
def data(n_extra, arrays):
    return make_data(n_extra, arrays)


def at(hyper, t=1.0, dtype=np.float32):
    """Returns all hyper-parameters as arrays, so that another point reuses the program."""
    return {k: jnp.asarray(v, dtype) for k, v in hyper.items()} | {
        "temperature": jnp.asarray(t, dtype)
    }


TRACES = Counter()


@cache
def each_of(fn, jit=jax.jit):
    """Returns the loss of each anchor, compiled once for each shape and dtype."""

    @jit
    def f(data, point):
        TRACES[fn] += 1
        return fn(**data, **point, reduce_fn=None)

    return f


@cache
def mean_and_slopes(fn, jit=jax.jit):
    """Returns the mean and its gradient with respect to all differentiable arguments."""
    f = jit(jax.value_and_grad(lambda floats, masks: fn(**floats, **masks)))

    def of(data, point):
        floats, masks = split_masks(data)
        return f(floats | point, masks)

    return of


def wide(tree):
    """Converts to float64 arrays; call inside ``jax.enable_x64``."""
    return jax.tree.map(
        lambda x: x if x.dtype == bool else jnp.asarray(np.asarray(x), jnp.float64), tree
    )


def reference(ref, data, t, hyper):
    d = {k: np.asarray(v, bool if v.dtype == bool else np.float64) for k, v in data.items()}
    own, neg, where, weights = (d.pop(k) for k in ("pos", "neg", "where", "weights"))
    extra = None
    if own.ndim == neg.ndim:
        own, extra = own[..., 0], own[..., 1:]
    return weights * ref(own, extra, neg, where, t, **d, **hyper)


def split_masks(data):
    """Splits the arguments into differentiable ones and masks or labels."""
    masks = {k: v for k, v in data.items() if v.dtype == bool}
    return {k: v for k, v in data.items() if k not in masks}, masks


def assert_trees_equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        assert np.isfinite(leaf).all(), tree


@each_loss
@pytest.mark.parametrize(
    ("scale", "t", "lead"),
    [(1.0, 1.0, 0.0), (1.0, 0.2, 0.0), (0.1, 1.0, 30.0), (0.1, 1.0, -30.0)],
)
def test_value(fn, ref, hyper, n_extra, arrays, data, scale, t, lead):
    """Small losses keep their digits at a margin of 30."""
    check_value(fn, ref, hyper, data, scale, t, lead)


@each_loss_but(*OVERFLOWING)
def test_value_where_no_exponential_is_a_float32(fn, ref, hyper, n_extra, arrays, data):
    check_value(fn, ref, hyper, data, scale=1.0, t=0.02, lead=0.0)


def check_value(fn, ref, hyper, data, scale, t, lead):
    data["neg"] = scale * data["neg"]
    data["pos"] = scale * data["pos"] + lead
    got = each_of(fn)(data, at(hyper, t))
    want = reference(ref, data, t, hyper)
    # A debiased estimate near its floor suffers from cancellation, and the log of a
    # debiased probability, which may be near 1, keeps no relative precision.
    atol = 3e-7 if fn is losses.debiased_pairwise else 1e-30
    np.testing.assert_allclose(got, want, rtol=3e-4, atol=atol)
    assert got.dtype == jnp.float32
    assert got.shape == (4, 5)
    with jax.enable_x64(True):
        got = each_of(fn, quick_jit)(wide(data), at(hyper, t, np.float64))
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=atol * 1e-7)


@each_loss
def test_masking_equals_deleting(fn, ref, hyper, n_extra, arrays, data):
    data["where"] = jnp.broadcast_to(jnp.arange(7) < 3, (4, 5, 7))
    for shift in (0, -200):  # masked values far below 0 must behave like any other
        moved = data | {k: data[k] + shift for k in ("pos", "neg")}
        short = moved | {k: moved[k][..., :3] for k in ALONG_NEGATIVES if k in moved}
        short["where"] = None
        got, want = (each_of(fn)(d, at(hyper)) for d in (moved, short))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(got.mean(), want.mean(), rtol=1e-5)


@each_loss
def test_masked_entries_are_never_read(fn, ref, hyper, n_extra, arrays, data):
    """Masked negatives have no effect, nor does any input of an anchor without valid negatives."""
    where = data["where"] = data["where"].at[0].set(False)
    keep = dict.fromkeys(ALONG_NEGATIVES, where) | {
        k: data.get(mask, True) for k, mask in [("pos", "where_pos"), ("group", "where_group")]
    }
    if "true_negative" in data:
        keep["neg"] = where & data["true_negative"]
    point = at(hyper, 0.5)  # the gradients sum over all scores
    want = mean_and_slopes(fn)(data, point)
    floats, masks = split_masks(data)
    for junk in (jnp.nan, jnp.inf, -jnp.inf):
        soiled = {k: v.at[0].set(junk) for k, v in floats.items()}
        soiled = {k: jnp.where(keep.get(k, True), v, junk) for k, v in soiled.items()}
        assert_trees_equal(mean_and_slopes(fn)(soiled | masks, point), want)
    assert_finite(want)


@each_loss
def test_anchor_without_positives_leaves_the_mean(fn, ref, hyper, n_extra, arrays, data):
    if "where_pos" not in arrays:
        return
    gone = data | {"where_pos": data["where_pos"].at[0].set(False)}
    for where in (data["where"], None):
        each, left = (each_of(fn)(d | {"where": where}, at(hyper)) for d in (data, gone))
        np.testing.assert_array_equal(left, each.at[0].set(0))
    each = each_of(fn)(data, at(hyper))
    mean, _ = mean_and_slopes(fn)(gone, at(hyper))
    np.testing.assert_allclose(mean, each[1:].mean(), rtol=1e-6)


@each_separable_loss
def test_anchor_without_negatives_leaves_the_mean(fn, ref, hyper, n_extra, arrays, data):
    each = each_of(fn)(data, at(hyper))
    gone = data | {"where": data["where"].at[0].set(False)}
    nothing = data | {"where": jnp.zeros_like(data["where"])}
    means = [mean_and_slopes(fn)(d, at(hyper))[0] for d in (data, gone, nothing)]
    np.testing.assert_allclose(means, [each.mean(), each[1:].mean(), 0], rtol=1e-6)
    left = each_of(fn)(gone, at(hyper))
    np.testing.assert_array_equal(left, each.at[0].set(0))


@each_loss
def test_a_nan_that_is_kept_is_seen(fn, ref, hyper, n_extra, arrays, data):
    for k in ("pos", "neg", "weights"):
        first = (0,) * data[k].ndim
        each = each_of(fn)(data | {k: data[k].at[first].set(jnp.nan)}, at(hyper))
        assert np.isnan(each[0, 0]), k
        assert np.isfinite(each.ravel()[1:]).all()


@each_separable_loss
def test_weight_k_equals_k_copies(fn, ref, hyper, n_extra, arrays, data):
    copies = np.array([1, 2, 0, 1])
    weights = np.broadcast_to(copies.astype(np.float32)[:, None], (4, 5))
    weighted = each_of(fn)(data | {"weights": weights}, at(hyper))
    data = {k: np.repeat(v, copies, axis=0) for k, v in data.items()}
    repeated = each_of(fn)(data | {"weights": np.ones((4, 5), np.float32)}, at(hyper))
    np.testing.assert_allclose(weighted.sum(), repeated.sum(), rtol=1e-6)
    np.testing.assert_allclose(weighted[1], 2 * repeated[1], rtol=1e-6)


@each_loss_but(*CONSTANT_WEIGHTS)
def test_gradients(fn, ref, hyper, n_extra, arrays, data):
    """Compares with central differences, with respect to one argument after another."""
    constant = {"min_score", "drop_rate"}  # an infinity, and a step function
    if fn is losses.bayesian_contrastive:  # its weights are constants
        constant |= hyper.keys()
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        data, point = wide(data), at(hyper, dtype=np.float64)
        _, slopes = mean_and_slopes(fn, quick_jit)(data, point)
        for name in slopes.keys() - constant:
            place = data if name in data else point
            way = rng.normal(size=place[name].shape)

            def moved(step, name=name, place=place, way=way):
                d, p = ({**tree} for tree in (data, point))
                (d if place is data else p)[name] = place[name] + step * way
                return mean_and_slopes(fn, quick_jit)(d, p)[0]

            up, down = moved(1e-5), moved(-1e-5)
            want = (up - down) / 2e-5
            got = np.sum(slopes[name] * way)
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=name)


@each_separable_loss
def test_other_values_of_hyperparameters_do_not_retrace(fn, ref, hyper, n_extra, arrays, data):
    each_of(fn)(data, at(hyper, 0.5))
    before = TRACES[fn]
    each_of(fn)(data, at({k: v + 0.01 for k, v in hyper.items()}, 0.6))
    assert TRACES[fn] == before


@each_loss
def test_sweeps_over_hyperparameters(fn, ref, hyper, n_extra, arrays, data):
    """Also vmaps over single anchors, except for losses across the batch."""

    def total(point, data):
        one = partial(fn, reduce_fn=None)
        if fn not in (losses.truncated_bce, losses.truncated_bpr):
            one = jax.vmap(jax.vmap(lambda **d: fn(**d, **point, reduce_fn=None)))
            each = one(**data)
        else:
            each = fn(**data, **point, reduce_fn=None)
        return each.mean(), each

    sweep = jax.tree.map(lambda v: v + jnp.array([0.0, 0.02, 0.05]), at(hyper))
    sweep["temperature"] = jnp.array([0.5, 1.0, 2.0])
    gradient = jax.value_and_grad(total, has_aux=True)
    (_, each), slopes = quick_jit(jax.vmap(gradient, (0, None)))(sweep, data)
    for i in range(3):
        point = {k: v[i] for k, v in sweep.items()}
        np.testing.assert_allclose(each[i], each_of(fn)(data, point), rtol=2e-5, atol=1e-7)
        _, want = mean_and_slopes(fn)(data, point)
        for name, slope in slopes.items():
            np.testing.assert_allclose(slope[i], want[name], rtol=1e-3, atol=1e-6, err_msg=name)
    assert_finite(slopes)


@each_loss_but(*WHOLE_BATCH, *VARIANTS)
def test_a_batch_split_over_devices_has_the_same_gradients(fn, ref, hyper, n_extra, arrays, data):
    """Hyper-parameters are replicated: their gradient is the sum over all devices."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    floats, masks = split_masks(data)

    def each(floats, masks, point):
        return fn(**floats, **masks, **point, reduce_fn=None)

    split = jax.shard_map(
        each, mesh=mesh, in_specs=(P("data"), P("data"), P()), out_specs=P("data")
    )

    @quick_jit
    @partial(jax.value_and_grad, argnums=(0, 1))
    def mean(floats, point):
        return jnp.mean(split(floats, masks, point))

    value, (slopes, of_point) = mean(floats, at(hyper, 0.7))
    want = mean_and_slopes(fn)(data, at(hyper, 0.7))
    got = value, slopes | of_point
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), got, want)


@each_separable_loss
def test_hyperparameters_may_differ_between_anchors(fn, ref, hyper, n_extra, arrays, data):
    if not hyper:
        return
    points = {k: v + 0.05 * np.linspace(0, 1, 5, dtype=np.float32) for k, v in hyper.items()}
    got = each_of(fn)(data, at(points))
    for i in range(5):
        want = each_of(fn)(data, at({k: v[i] for k, v in points.items()}))
        np.testing.assert_allclose(got[:, i], want[:, i], rtol=2e-5)


@each_loss
def test_negatives_have_no_order(fn, ref, hyper, n_extra, arrays, data):
    turned = data | {k: data[k][..., ::-1] for k in ALONG_NEGATIVES if k in data}
    got, want = (each_of(fn)(d, at(hyper)).mean() for d in (turned, data))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@each_loss
def test_half_precision_computes_in_float32(fn, ref, hyper, n_extra, arrays, data):
    floats, masks = split_masks(data)
    half = {k: v.astype(jnp.bfloat16) for k, v in floats.items()}
    back = {k: v.astype(jnp.float32) for k, v in half.items()} | masks
    want = each_of(fn)(back, at(hyper, 0.5))
    half |= masks

    @quick_jit
    def both(half, neg, point):
        return [fn(**d, **point, reduce_fn=None) for d in (half, half | {"neg": neg})]

    point = at(hyper) | {"temperature": jnp.asarray(0.5, jnp.bfloat16)}
    for got in both(half, back["neg"], point):
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@cache
def value_and_all_gradients(name):
    """Each loss compiles once, whatever the values: 32 anchors with 5 negatives."""

    def f(d, masks, hyper, t):
        return LOSSES[name].fn(**d, **masks, **hyper, temperature=t)

    f = jax.jit(jax.value_and_grad(f, argnums=(0, 3)))

    def of(pos, neg, keep, hyper, t):
        _, _, _, n_extra, arrays = LOSSES[name]
        d = make_data(n_extra, arrays, batch=(32,), n=5)
        d |= dict(pos=pos if n_extra else pos[:, 0], neg=neg, where=d["where"] & keep)
        spread = {k: v if k == "drop_rate" else np.broadcast_to(v, 32) for k, v in hyper.items()}
        point = at(spread, t)
        return f(*split_masks(d), point, point.pop("temperature"))

    return of


def at_scores_of_100(name):
    """Returns every combination of ±100 for the positive, one negative and the extra positives."""
    _, _, hyper, n_extra, _ = LOSSES[name]
    size = 2 + n_extra
    signs = 1 - 2 * ((np.arange(32)[:, None] >> np.arange(size)) & 1)
    scores = np.float32(100 * signs)
    neg = np.repeat(scores[:, 1 + n_extra :], 5, axis=1)
    compute = value_and_all_gradients(name)
    return compute(scores[:, : 1 + n_extra], neg, np.arange(5)[None] == 0, hyper, 0.01)


@pytest.mark.parametrize("name", FINITE)
def test_scores_of_100_at_temperature_a_hundredth(name):
    assert_finite(at_scores_of_100(name))


@pytest.mark.parametrize("name", OVERFLOWING)
def test_none_is_excused_that_stays_finite(name):
    value, _ = at_scores_of_100(name)
    assert not np.isfinite(value), f"{name} need not stand in OVERFLOWING"


@pytest.mark.parametrize("name", ["info_nce", "hard", "punce", "pairwise"])
def test_a_constant_temperature_at_scores_of_a_million(name):
    """The compiler fuses the division into the subtraction of the maximum and skips its rounding.

    Here the last digit of a logit is worth thousands, and the exponential of that overflows.
    """
    fn, _, hyper, n_extra, arrays = LOSSES[name]
    args, masks = split_masks(make_data(n_extra, arrays, batch=(512,), n=16))
    args |= {k: 1e6 * args[k] for k in ("pos", "neg")}
    del masks["where"]  # a select between scores would prevent the fusion

    def each(d):
        return fn(**d, **masks, **hyper, temperature=3e-5, reduce_fn=None)

    assert_finite(as_users_do(jax.value_and_grad(lambda d: each(d).sum()))(args))
    last_digit = 2.0**13  # of a logit of 1e11
    got = as_users_do(each)(args)
    with jax.enable_x64(True):
        want = each_of(fn)(wide(args) | masks, at(hyper, 3e-5, np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2 * last_digit)


scores = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 1e4, -1e4]),  # to make ties
    st.floats(-2, 2, width=32),
    st.floats(-1e4, 1e4, width=32),
)
EDGES = {
    "min_score": [-np.inf, -1e4, -1.0, 0.0],
    "ratio": [1e-30, 1.0, 1e30],
}
"""Hyper-parameter values for which those of :func:`inside` would overflow float32."""


def inside(limits):
    """Returns values in a range: its ends, or up to 1e4, and some between."""
    low = max(limits.low, -1e4) + (1e-2 if limits.low_open and limits.low == 0 else 0)
    high = min(limits.high, 1e4)
    if limits.high_open and high == limits.high:
        high = float(np.nextafter(np.float32(high), np.float32(low)))
    between = [x for x in (1e-30, 1e-7, 1e-2, 0.1, 0.5, 0.75, 0.9999999, 1.0) if low < x < high]
    return [low, *between, high]


def beyond(limits):
    """Returns values outside a range, at the latest after rounding to float32."""
    found = [np.nan]
    if np.isfinite(limits.low):
        found += [limits.low - 0.1, *([limits.low, limits.low + 1e-46] if limits.low_open else [])]
    elif limits.low_open:
        found += [-np.inf, -1e39]
    if np.isfinite(limits.high):
        found += [limits.high, limits.high - 1e-8] if limits.high_open else [limits.high + 0.1]
    elif limits.high_open:
        found += [np.inf, 1e39]
    return found


@pytest.mark.parametrize("name", FINITE)
@given(st.data())
@settings(max_examples=12, deadline=None)
def test_always_finite(name, data):
    fn, _, hyper, n_extra, _ = LOSSES[name]
    declared = hyperparams(fn)
    # Eight anchors, repeated four times, each with separate hyper-parameters.
    few = data.draw(hnp.arrays(np.float32, (8, 6 + n_extra), elements=scores))
    pos, neg = np.split(np.tile(few, (4, 1)), [1 + n_extra], axis=1)
    t = data.draw(st.sampled_from([0.01, 1.0, 100.0]))
    point = {}
    for k in hyper:
        values = EDGES.get(k) or inside(declared[k].range)
        drawn = data.draw(st.lists(st.sampled_from(values), min_size=8, max_size=8))
        point[k] = drawn[0] if k == "drop_rate" else np.tile(drawn, 4)
    value, gradient = value_and_all_gradients(name)(pos, neg, True, point, t)
    assert_finite((value, gradient))
    if name not in SIGNED:
        assert value >= 0


BAD = {
    "temperature": [0.0, -1.0, np.nan, 1e-40],  # the last is flushed to 0 in float32
    "pos_temperature": [0.0, -1.0, np.nan, 1e-40],
    "tau_plus": [-0.1, 1.0, 1 - 1e-8],  # rounds to 1
    "alpha": [0.4, 1.1],
    "floor": [-0.1, 1.1],
    "min_score": [np.inf, np.nan],
    "rho": [-0.1, 1.1],
    "balance": [-0.1, 1.1],
    "margin": [-0.1, np.inf],
    "repulsion": [-0.1, np.inf, 1e39],
    "ratio": [0.0, np.inf, 1e-40],
    "drop_rate": [-0.1, 1.1, np.nan],
    "exponent": [-0.1, np.inf, 1e39],
    "bias": [-np.inf, np.inf, np.nan, 1e39],
    "pos_concentration": [0.0, np.nan, 1e-40],
    "neg_concentration": [0.0, np.nan, 1e-40],
    "pos_log_noise": [-np.inf, np.nan],
    "neg_log_noise": [-np.inf, np.nan],
}
"""Values that the formulas do not allow, whatever a signature declares."""


@each_loss
def test_range_errors_name_the_argument(fn, ref, hyper, n_extra, arrays, data):
    declared = hyperparams(fn)
    assert hyper.keys() | {"temperature"} <= declared.keys()
    bad = BAD | {"beta": [0.4 if fn is losses.bayesian_contrastive else -0.1]}
    for name, of in declared.items():
        for value in [*bad.get(name, ()), *(beyond(of.range) if of.range else ())]:
            call = partial(fn, **data | hyper | {name: value})
            for run_it in (call, partial(jax.eval_shape, call)):  # a scalar is concrete in jit, too
                with raises(ValueError, match=f"`{name}` must lie in"):
                    run_it()


@each_loss
def test_shape_errors_name_the_argument(fn, ref, hyper, n_extra, arrays, data):
    wrong = {k: v[:3] for k, v in data.items()} | {"temperature": jnp.ones(5)}
    for name, value in wrong.items():
        # Where "neg" is invalid, so are the arguments whose shape must match it.
        with raises(Exception, match="|".join(["pos", *arrays]) if name == "neg" else name):
            fn(**data | {name: value}, **hyper)
    for name in hyper.keys() - {"drop_rate"}:  # a scalar for the whole batch
        with raises(ValueError, match=f"`{name}` must be a scalar or broadcast"):
            fn(**data, **hyper | {name: jnp.full(3, 0.6)})


@each_loss
def test_signature(fn, ref, hyper, n_extra, arrays):
    """Arguments: two arrays, then keywords: hyper-parameters first, common ones in fixed order."""
    names = list(inspect.signature(fn).parameters)
    assert names[:2] == ["pos", "neg"]
    assert names[-4:] == ["temperature", "where", "weights", "reduce_fn"]
    kinds = {p.kind for p in list(inspect.signature(fn).parameters.values())[2:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
