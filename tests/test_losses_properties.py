"""Every loss in the table answers to every property below.

The references are the formulas as printed, in float64 and without any care for overflow;
they share nothing with the code under test.
"""

import inspect
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from jax.test_util import check_grads

from crl_jax import losses


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


PRIOR = dict(tau_plus=0.1)
BAYES = dict(tau_plus=0.1, alpha=0.8, beta=0.7)
UNBOUNDED = dict(tau_plus=0.1, min_score=-np.inf)
LOSSES = {  # function, reference, hyper-parameters, extra positives
    "bpr": (losses.bpr, np_bpr, {}, 0),
    "bce": (losses.bce, np_bce, {}, 0),
    "info_nce": (losses.info_nce, np_info_nce, {}, 0),
    "debiased": (losses.debiased_contrastive, np_debiased, PRIOR, 0),
    "debiased_extra": (losses.debiased_contrastive, np_debiased, UNBOUNDED, 3),
    "hard": (losses.hard_contrastive, np_hard, PRIOR | {"beta": 0.8}, 0),
    "bayesian": (losses.bayesian_contrastive, np_bayesian, BAYES, 0),
    "pairwise": (losses.debiased_pairwise, np_pairwise, PRIOR, 0),
    "pairwise_extra": (losses.debiased_pairwise, np_pairwise, PRIOR, 3),
}
each_loss = pytest.mark.parametrize(("fn", "ref", "hyper", "n_extra"), LOSSES.values(), ids=LOSSES)


def make_data(n_extra, batch=(4, 5), n=7):
    """Arguments of a loss: four anchors by five, every one with a negative to keep."""
    kp, kn, kw, km = jax.random.split(jax.random.key(0), 4)
    pos = jax.random.normal(kp, (*batch, 1 + n_extra)) + 1
    return dict(
        pos=pos if n_extra else pos[..., 0],
        neg=jax.random.normal(kn, (*batch, n)),
        weights=jax.random.uniform(kw, batch) + 0.1,
        where=jax.random.bernoulli(km, 0.7, (*batch, n)).at[..., 0].set(True),
    )


@cache
def run(fn):
    """The loss in one piece: compiled once for each shape and type."""
    return jax.jit(fn, static_argnames="reduce_fn")


@pytest.fixture
def data(n_extra):
    return make_data(n_extra)


def wide(tree):
    """As float64 arrays; inside ``jax.enable_x64``."""
    return jax.tree.map(
        lambda x: x if x.dtype == bool else jnp.asarray(np.asarray(x), jnp.float64), tree
    )


def reference(ref, data, t, hyper):
    d = {k: np.asarray(v, bool if k == "where" else np.float64) for k, v in data.items()}
    own, extra = d["pos"], None
    if own.ndim == d["neg"].ndim:
        own, extra = own[..., 0], own[..., 1:]
    return d["weights"] * ref(own, extra, d["neg"], d["where"], t, **hyper)


def assert_trees_equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        assert np.isfinite(leaf).all(), tree


@each_loss
@pytest.mark.parametrize(
    ("scale", "t", "lead"),
    [(1.0, 1.0, 0.0), (1.0, 0.2, 0.0), (0.1, 1.0, 30.0), (0.1, 1.0, -30.0), (1.0, 0.02, 0.0)],
)
def test_value(fn, ref, hyper, n_extra, data, scale, t, lead):
    """lead = 30: small losses keep their digits; t = 0.02: exp(s/t) is no float32."""
    data["neg"] = scale * data["neg"]
    data["pos"] = scale * data["pos"] + lead
    got = run(fn)(**data, **hyper, temperature=t, reduce_fn=None)
    want = reference(ref, data, t, hyper)
    # A debiased estimate near its floor is a difference that cancels; and the log of a
    # debiased probability, which may be near 1, keeps no relative precision.
    atol = 3e-7 if fn is losses.debiased_pairwise else 1e-30
    np.testing.assert_allclose(got, want, rtol=3e-4, atol=atol)
    assert got.dtype == jnp.float32
    assert got.shape == (4, 5)
    with jax.enable_x64(True):
        got = run(fn)(**wide(data), **hyper, temperature=t, reduce_fn=None)
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=atol * 1e-7)


@each_loss
def test_masking_equals_deleting(fn, ref, hyper, n_extra, data):
    data["where"] = jnp.broadcast_to(jnp.arange(7) < 3, (4, 5, 7))
    for shift in (0, -200):  # far below 0, which is as good as any number under a mask
        moved = data | {k: data[k] + shift for k in ("pos", "neg")}
        short = moved | {"neg": moved["neg"][..., :3], "where": None}
        want = run(fn)(**short, **hyper)
        np.testing.assert_allclose(run(fn)(**moved, **hyper), want, rtol=1e-5)


@each_loss
def test_masked_entries_are_never_read(fn, ref, hyper, n_extra, data):
    """Neither masked negatives nor anything else of an anchor that keeps none."""
    where = data.pop("where").at[0].set(False)
    data["temperature"] = jnp.float32(0.5)  # its gradient sums over all scores
    data |= {k: jnp.float32(v) for k, v in hyper.items()}
    value_and_grad = jax.jit(jax.value_and_grad(lambda d: fn(**d, where=where)))
    want = value_and_grad(data)
    for junk in (jnp.nan, jnp.inf, -jnp.inf):
        soiled = data | {"neg": jnp.where(where, data["neg"], junk)}
        soiled |= {k: data[k].at[0].set(junk) for k in ("pos", "weights")}
        assert_trees_equal(value_and_grad(soiled), want)
    assert_finite(want)


@each_loss
def test_anchor_without_negatives_leaves_the_mean(fn, ref, hyper, n_extra, data):
    each = run(fn)(**data, **hyper, reduce_fn=None)
    gone = data | {"where": data["where"].at[0].set(False)}
    np.testing.assert_allclose(run(fn)(**gone, **hyper), each[1:].mean(), rtol=1e-6)
    np.testing.assert_allclose(run(fn)(**data, **hyper), each.mean(), rtol=1e-6)
    left = run(fn)(**gone, **hyper, reduce_fn=None)
    np.testing.assert_array_equal(left, each.at[0].set(0))
    nothing = data | {"where": jnp.zeros_like(data["where"])}
    assert run(fn)(**nothing, **hyper) == 0


@each_loss
def test_a_nan_that_is_kept_is_seen(fn, ref, hyper, n_extra, data):
    for k in ("pos", "neg", "weights"):
        first = (0,) * data[k].ndim
        each = run(fn)(**data | {k: data[k].at[first].set(jnp.nan)}, **hyper, reduce_fn=None)
        assert np.isnan(each[0, 0]), k
        assert np.isfinite(each.ravel()[1:]).all()


@each_loss
def test_weight_k_equals_k_copies(fn, ref, hyper, n_extra, data):
    copies = np.array([1, 2, 0, 1])
    data = {k: v[:, 0] for k, v in data.items()}
    weighted = run(fn)(**data | {"weights": copies.astype(np.float32)}, **hyper, reduce_fn=None)
    data = jax.tree.map(lambda x: np.repeat(x, copies, axis=0), data)
    repeated = run(fn)(**data | {"weights": np.ones(4, np.float32)}, **hyper, reduce_fn=None)
    np.testing.assert_allclose(weighted.sum(), repeated.sum(), rtol=1e-6)
    np.testing.assert_allclose(weighted[1], 2 * repeated[1], rtol=1e-6)


@each_loss
def test_gradients(fn, ref, hyper, n_extra, data):
    """Against finite differences, with respect to everything that takes a gradient."""
    where = data.pop("where")
    fixed = dict(hyper)
    if fn is not losses.bayesian_contrastive:  # holds what its hyper-parameters make constant
        data |= {k: jnp.float32(fixed.pop(k)) for k in ("tau_plus", "beta") if k in fixed}
    data["temperature"] = jnp.float32(1.0)
    with jax.enable_x64(True):
        f = jax.jit(lambda d: fn(**d, **fixed, where=where, reduce_fn=None))
        check_grads(f, (wide(data),), order=1, modes=["rev"], rtol=1e-4, atol=1e-7)


@each_loss
def test_jit_and_vmap_agree_and_nothing_retraces(fn, ref, hyper, n_extra, data):
    traces = 0

    def f(d, hyper):
        nonlocal traces
        traces += 1
        return fn(**d, **hyper, reduce_fn=None)

    jitted = jax.jit(f)
    for t in (0.5, 1.0):
        moved = {k: v + 0.01 * t for k, v in hyper.items()} | {"temperature": t}
        want = fn(**data, **moved, reduce_fn=None)  # op by op
        np.testing.assert_allclose(jitted(data, moved), want, rtol=1e-5)
    assert traces == 1
    each_anchor = jax.jit(jax.vmap(jax.vmap(f, (0, None)), (0, None)))
    np.testing.assert_allclose(each_anchor(data, moved), want, rtol=1e-5)


@each_loss
def test_sweeps_over_hyperparameters(fn, ref, hyper, n_extra, data):
    points = {k: v + jnp.array([0.0, 0.02, 0.05]) for k, v in hyper.items()}
    points["temperature"] = jnp.array([0.5, 1.0, 2.0])
    gradient = jax.jit(jax.vmap(jax.value_and_grad(lambda p: fn(**data, **p))))
    values, slopes = gradient(points)
    assert_finite(slopes)
    for i in range(3):
        point = {k: float(v[i]) for k, v in points.items()}
        np.testing.assert_allclose(values[i], run(fn)(**data, **point), rtol=1e-5)


@each_loss
def test_hyperparameters_may_differ_between_anchors(fn, ref, hyper, n_extra, data):
    if not hyper:
        return
    points = {k: v + 0.05 * jax.random.uniform(jax.random.key(1), (5,)) for k, v in hyper.items()}
    got = run(fn)(**data, **points, reduce_fn=None)
    for i in range(5):
        column = {k: v[:, i] for k, v in data.items()}
        point = {k: v[i] for k, v in points.items()}
        want = run(fn)(**column, **point, reduce_fn=None)
        np.testing.assert_allclose(got[:, i], want, rtol=2e-5)


@each_loss
def test_negatives_have_no_order(fn, ref, hyper, n_extra, data):
    turned = data | {k: data[k][..., ::-1] for k in ("neg", "where")}
    np.testing.assert_allclose(run(fn)(**turned, **hyper), run(fn)(**data, **hyper), rtol=1e-6)


@each_loss
def test_half_precision_computes_in_float32(fn, ref, hyper, n_extra, data):
    half = data | {k: data[k].astype(jnp.bfloat16) for k in ("pos", "neg", "weights")}
    back = half | {k: half[k].astype(jnp.float32) for k in ("pos", "neg", "weights")}
    want = fn(**back, **hyper, temperature=0.5)
    for args in (half, half | {"neg": back["neg"]}):
        got = fn(**args, **hyper, temperature=jnp.asarray(0.5, jnp.bfloat16))
        assert got.dtype == jnp.float32
        assert got == want


@pytest.mark.parametrize("name", LOSSES)
def test_scores_of_100_at_temperature_a_hundredth(name):
    """Every combination of ±100 for the positive, a negative and the extra positives."""
    _, _, hyper, n_extra = LOSSES[name]
    size = 2 + n_extra
    signs = 1 - 2 * ((np.arange(2**size)[:, None] >> np.arange(size)) & 1)
    scores = jnp.asarray(100 * signs, jnp.bfloat16)  # exact there, and float32 inside
    d = dict(
        pos=scores[:, : 1 + n_extra] if n_extra else scores[:, 0], neg=scores[:, 1 + n_extra :]
    )
    assert_finite(value_and_all_gradients(name)(d, hyper, 0.01))


scores = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 100.0, -100.0, 1e4, -1e4]),  # to make ties
    st.floats(-2, 2, width=32),
    st.floats(-1e4, 1e4, width=32),
)
EDGES = {
    "tau_plus": [0.0, 1e-30, 1e-7, 0.1, 0.5, 0.9, 0.9999999],
    "alpha": [0.5, 0.7, 0.9999999, 1.0],
    "beta": [0.5, 0.75, 0.9999999, 1.0],
    "floor": [0.0, 1e-30, 1e-2, 1.0],
    "min_score": [-np.inf, -1e4, -1.0, 0.0],
}


@cache
def value_and_all_gradients(name):
    """One compilation for each loss and shape, whatever the values."""

    def f(d, hyper, t):
        return LOSSES[name][0](**d, **hyper, temperature=t)

    return jax.jit(jax.value_and_grad(f, argnums=(0, 2)))


@pytest.mark.parametrize("name", LOSSES)
@given(st.data())
@settings(max_examples=30, deadline=None)
def test_always_finite(name, data):
    fn, _, hyper, n_extra = LOSSES[name]
    pos = data.draw(hnp.arrays(np.float32, (2, 1 + n_extra), elements=scores))
    neg = data.draw(hnp.arrays(np.float32, (2, 5), elements=scores))
    t = data.draw(st.sampled_from([0.01, 1.0, 100.0]))
    point = {k: data.draw(st.sampled_from(EDGES[k])) for k in hyper}
    d = dict(pos=pos if n_extra else pos[:, 0], neg=neg)
    value, gradient = value_and_all_gradients(name)(d, point, t)
    assert_finite((value, gradient))
    if fn is not losses.debiased_pairwise:  # an unbiased probability may exceed 1
        assert value >= 0


BAD = {
    "temperature": [0.0, -1.0, np.nan],
    "tau_plus": [-0.1, 1.0],
    "alpha": [0.4, 1.1],
    "floor": [-0.1, 1.1],
    "min_score": [np.inf, np.nan],
}


@each_loss
def test_range_errors_name_the_argument(fn, ref, hyper, n_extra, data):
    takes = inspect.signature(fn).parameters
    bad = dict(BAD)
    if "beta" in takes:
        bad["beta"] = [-0.1, 0.4][fn is losses.bayesian_contrastive :][:1]
    for name in bad.keys() & takes.keys():
        for value in bad[name]:
            with pytest.raises(ValueError, match=f"`{name}` must lie in"):
                fn(**data, **hyper | {name: value})


@each_loss
def test_shape_errors_name_the_argument(fn, ref, hyper, n_extra, data):
    wrong = {k: v[0] for k, v in data.items()} | {"temperature": jnp.ones(5)}
    if n_extra:
        wrong["pos"] = data["pos"][:3]
    for name, value in wrong.items():
        with pytest.raises(Exception, match="pos" if name == "neg" else name):
            fn(**data | {name: value}, **hyper)
    for name in hyper:
        with pytest.raises(ValueError, match=f"`{name}` must be a scalar or broadcast"):
            fn(**data, **hyper | {name: jnp.full(3, 0.6)})


@each_loss
def test_signature(fn, ref, hyper, n_extra):
    """Two arrays, then keywords: hyper-parameters first, and the common ones in one order."""
    names = list(inspect.signature(fn).parameters)
    assert names[:2] == ["pos", "neg"]
    assert names[-4:] == ["temperature", "where", "weights", "reduce_fn"]
    kinds = {p.kind for p in list(inspect.signature(fn).parameters.values())[2:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
