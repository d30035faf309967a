"""Properties that every loss of the table ``LOSSES`` must satisfy.

To add a loss, add its formula to ``_helpers/loss_formulas.py`` and a :class:`Case` to ``LOSSES``.
Its hyper-parameters are tested at the ends of the ranges that its signature declares, and beyond.
The groups below ``LOSSES`` list the exceptions. All properties share one program per loss and
dtype, so that each adds little time.
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
from _helpers import loss_formulas as formulas
from _helpers.exported import exported
from _helpers.programs import as_users_do
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

pytestmark = pytest.mark.usefixtures("quick_compiles")


def loss_from_docs():
    """Returns the example loss of the page on adding a loss."""
    page = (Path(__file__).parents[2] / "docs" / "guide" / "losses.md").read_text()
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
SCALES = dict(pos_scale=0.8, neg_scale=1.2)
TOP = dict(top_fraction=0.3, weight_temperature=0.8)
LATENT = dict(pos_strength=0.9, neg_strength=1.5, pos_hardness=0.2, neg_hardness=0.3)
NOISE = ("pos_log_noise", "neg_log_noise")


class Case(NamedTuple):
    """Test case: loss, formula, hyper-parameters, extra positives and additional arrays."""

    fn: object
    ref: object
    hyper: dict = {}  # noqa: RUF012
    n_extra: int = 0
    arrays: tuple = ()


LOSSES = {
    "bpr": Case(losses.bpr, formulas.bpr),
    "bce": Case(losses.bce, formulas.bce),
    "gbce": Case(losses.gbce, formulas.gbce, dict(sampling_rate=0.2, calibration=0.6)),
    "gbpr": Case(losses.gbpr, formulas.gbpr, dict(rho=0.4), 0, ("group", "where_group")),
    "mpr": Case(losses.mpr, formulas.mpr, dict(balance=0.7), 0, ("likely",)),
    "mpr_extra": Case(losses.mpr, formulas.mpr, dict(balance=0.7), 2, ("likely",)),
    "triplet": Case(losses.triplet_margin, formulas.triplet, dict(margin=0.5)),
    "linear": Case(losses.linear_pairwise, formulas.linear, dict(repulsion=0.5)),
    "pairwise": Case(losses.debiased_pairwise, formulas.pairwise, PRIOR),
    "pairwise_extra": Case(losses.debiased_pairwise, formulas.pairwise, PRIOR, 3),
    "info_nce": Case(losses.info_nce, formulas.info_nce),
    "debiased": Case(losses.debiased_contrastive, formulas.debiased, PRIOR),
    "debiased_extra": Case(losses.debiased_contrastive, formulas.debiased, UNBOUNDED, 3),
    "hard": Case(losses.hard_contrastive, formulas.hard, PRIOR | {"beta": 0.8}),
    "bayesian": Case(losses.bayesian_contrastive, formulas.bayesian, BAYES),
    "adjusted": Case(losses.adjusted_contrastive, formulas.adjusted, dict(mu=0.6, sigma=0.8)),
    "corrected": Case(losses.corrected_contrastive, formulas.corrected, PRIOR | {"gamma": 0.6}),
    "corrected_extra": Case(
        losses.corrected_contrastive, formulas.corrected, PRIOR | {"gamma": 0.3}, 3
    ),
    "attention": Case(losses.attention_contrastive, formulas.attention, SCALES),
    "attention_extra": Case(losses.attention_contrastive, formulas.attention, SCALES, 3),
    "global": Case(losses.global_contrastive, formulas.global_contrastive, {}, 0, ("log_mean",)),
    "decoupled": Case(losses.decoupled_contrastive, formulas.decoupled),
    "sigmoid": Case(losses.sigmoid_contrastive, formulas.sigmoid_contrastive, dict(bias=-0.7)),
    "bilateral": Case(losses.bilateral_softmax, formulas.bilateral, dict(repulsion=0.8)),
    "bilateral_extra": Case(
        losses.bilateral_softmax, formulas.bilateral, dict(repulsion=1.2, pos_temperature=0.7), 3
    ),
    "cosine": Case(losses.cosine_contrastive, formulas.cosine, dict(margin=0.3, repulsion=2.0)),
    "info_nce_plus": Case(
        losses.info_nce_plus, formulas.info_nce_plus, dict(inclusion=0.4, repulsion=1.2)
    ),
    "debiased_cosine": Case(
        losses.debiased_cosine_contrastive,
        formulas.debiased_cosine,
        PRIOR | dict(margin=0.3, repulsion=2.0),
    ),
    "debiased_cosine_extra": Case(
        losses.debiased_cosine_contrastive,
        formulas.debiased_cosine,
        PRIOR | dict(margin=0.3, repulsion=2.0),
        3,
    ),
    "proto_nce": Case(
        losses.proto_nce, formulas.proto, {}, 0, ("pos_concentration", "neg_concentration")
    ),
    "nce": Case(losses.nce, formulas.nce, {}, 0, NOISE),
    "nce_ratio": Case(losses.nce, formulas.nce, dict(ratio=3.0), 0, NOISE),
    "oracle": Case(losses.oracle_contrastive, formulas.oracle, {}, 0, ("true_negative",)),
    "oracle_pairwise": Case(
        losses.oracle_pairwise, formulas.oracle_pairwise, {}, 0, ("true_negative",)
    ),
    "supervised": Case(losses.supervised_contrastive, formulas.supervised, {}, 3, ("where_pos",)),
    "supervised_own": Case(
        partial(losses.supervised_contrastive, denominator="own"),
        partial(formulas.supervised, denominator="own"),
        {},
        3,
        ("where_pos",),
    ),
    "punce": Case(losses.punce, formulas.punce, PRIOR, 3, ("where_pos", "labelled")),
    "truncated_bce": Case(losses.truncated_bce, formulas.truncated_bce, SMALL),
    "truncated_bpr": Case(losses.truncated_bpr, formulas.truncated_bpr, SMALL),
    "reweighted_bce": Case(losses.reweighted_bce, formulas.reweighted_bce, TRUST),
    "reweighted_bpr": Case(losses.reweighted_bpr, formulas.reweighted_bpr, TRUST),
    "pairwise_softmax": Case(losses.pairwise_softmax, formulas.pairwise_softmax),
    "pairwise_softmax_relu": Case(
        partial(losses.pairwise_softmax, surrogate="relu"),
        partial(formulas.pairwise_softmax, surrogate="relu"),
    ),
    "pairwise_softmax_atan": Case(
        partial(losses.pairwise_softmax, surrogate="atan"),
        partial(formulas.pairwise_softmax, surrogate="atan"),
    ),
    "variational": Case(losses.variational_bpr, formulas.variational, LATENT, 2),
    "variational_exact": Case(
        partial(losses.variational_bpr, objective="exact"),
        partial(formulas.variational, objective="exact"),
        LATENT,
        2,
        ("pos_log_prior", "neg_log_prior"),
    ),
    "adversarial": Case(losses.adversarial_contrastive, formulas.adversarial, dict(radius=0.3)),
    "softmax_at_k": Case(losses.softmax_at_k, formulas.softmax_at_k, TOP),
    "softmax_at_k_extra": Case(losses.softmax_at_k, formulas.softmax_at_k, TOP, 2),
    "softmax_at_k_threshold": Case(
        losses.softmax_at_k, formulas.softmax_at_k, TOP, 0, ("threshold",)
    ),
    "lambda_at_k": Case(losses.lambda_loss_at_k, formulas.lambda_at_k, dict(cutoff=3.0)),
    "squared_hinge": Case(loss_from_docs(), formulas.squared_hinge, dict(margin=0.5)),
    "exponential": Case(exponential, formulas.exponential),
}
# The dropped anchors depend on the whole batch: no anchor can be evaluated alone.
WHOLE_BATCH = (losses.truncated_bce, losses.truncated_bpr)
# Hyper-parameters of which a loss is a step function, and an infinity.
STEPS = ("drop_rate", "cutoff", "min_score")
# Arguments whose gradient differs from that of the formula: the loss holds its weights constant or
# is a maximum over them.
WITHOUT_GRADIENT = {
    losses.adjusted_contrastive: ("neg", "mu", "sigma"),
    losses.adversarial_contrastive: ("radius",),
    losses.attention_contrastive: ("pos", "neg", "pos_scale", "neg_scale"),
    losses.bayesian_contrastive: ("neg", "temperature", *BAYES),
    losses.corrected_contrastive: ("neg", "gamma", "temperature"),
    losses.reweighted_bce: ("pos", "neg", "temperature", *TRUST),
    losses.reweighted_bpr: ("pos", "neg", "temperature", *TRUST),
    losses.softmax_at_k: ("pos", "neg", "threshold", *TOP),
    losses.variational_bpr: (
        "pos", "neg", "temperature", "pos_log_prior", "neg_log_prior", *LATENT,
    ),
}  # fmt: skip
SIGNED = (
    "pairwise",
    "pairwise_extra",
    "decoupled",
    "corrected",
    "corrected_extra",
    "global",
    "linear",
    "bilateral",
    "bilateral_extra",
    "cosine",
    "info_nce_plus",
    "debiased_cosine",
    "debiased_cosine_extra",
)  # may be negative
# Losses whose formulas differ from another one of the table only in elementwise operations.
SHARED_FORMULA = ("bpr", "mpr", "pairwise_softmax_relu", "variational", "softmax_at_k_extra",
         "softmax_at_k_threshold",
         "triplet", "linear", "pairwise", "oracle_pairwise", "debiased",
         "debiased_extra", "sigmoid", "bilateral", "cosine", "nce_ratio", "supervised",
         "supervised_own", "truncated_bpr", "reweighted_bce", "squared_hinge",
         "attention", "info_nce_plus", "debiased_cosine", "debiased_cosine_extra",
         "exponential")  # fmt: skip
ALONG_NEGATIVES = ("neg", "where", "true_negative", "neg_concentration", "neg_log_noise",
                   "neg_log_prior")  # fmt: skip
FINITE = [name for name in LOSSES if name != "exponential"]  # which overflows float32
each_loss = pytest.mark.parametrize(Case._fields, LOSSES.values(), ids=LOSSES)


def mask_with_first(rng, shape):
    mask = rng.random(shape) < 0.7
    mask[..., 0] = True
    return mask


EXTRA_ARRAYS = {  # additional arrays of some losses
    "likely": lambda rng, batch, n, m: rng.normal(size=batch),
    "group": lambda rng, batch, n, m: rng.normal(size=(*batch, 3)),
    "where_group": lambda rng, batch, n, m: mask_with_first(rng, (*batch, 3)),
    "where_pos": lambda rng, batch, n, m: mask_with_first(rng, (*batch, 1 + m)),
    "true_negative": lambda rng, batch, n, m: mask_with_first(rng, (*batch, n)),
    "labelled": lambda rng, batch, n, m: rng.random(batch) < 0.5,
    "log_mean": lambda rng, batch, n, m: rng.normal(size=batch),
    "pos_concentration": lambda rng, batch, n, m: rng.uniform(0.5, 1.5, batch),
    "neg_concentration": lambda rng, batch, n, m: rng.uniform(0.5, 1.5, (*batch, n)),
    "threshold": lambda rng, batch, n, m: rng.normal(size=batch),
    "pos_log_prior": lambda rng, batch, n, m: rng.normal(size=(*batch, 1 + m)),
    "neg_log_prior": lambda rng, batch, n, m: rng.normal(size=(*batch, n)),
    "pos_log_noise": lambda rng, batch, n, m: rng.uniform(-2, -1, batch),
    "neg_log_noise": lambda rng, batch, n, m: rng.uniform(-2, -1, (*batch, n)),
}
BATCH, N = (4, 8), 7
"""One shape for all properties: another would compile again."""


def make_data(n_extra, arrays, batch=BATCH, n=N):
    """Returns arguments of a loss, with at least one pair per anchor that no mask excludes."""
    rng = np.random.default_rng(1)
    pos = 1 + rng.normal(size=(*batch, 1 + n_extra))
    data = dict(
        pos=pos if n_extra else pos[..., 0],
        neg=rng.normal(size=(*batch, n)),
        weights=rng.uniform(0.1, 1.1, batch),
        where=mask_with_first(rng, (*batch, n)),
    )
    data |= {name: EXTRA_ARRAYS[name](rng, batch, n, n_extra) for name in arrays}
    return {k: v if v.dtype == bool else np.float32(v) for k, v in data.items()}


@pytest.fixture
def data(n_extra, arrays):
    return make_data(n_extra, arrays)


def at(hyper, t=1.0):
    """Returns the temperature and hyper-parameters that differ slightly between anchors."""
    point, spread = {"temperature": np.float32(t)}, np.linspace(0, 0.05, 32).reshape(BATCH)
    for k, v in hyper.items():
        point[k] = np.float32(v + (0 if k == "drop_rate" else spread))
    return point


TRACES = Counter()


@cache
def evaluation(fn):
    """Returns mean, gradient and loss of each anchor, compiled once per dtype and mask."""

    @jax.jit
    def f(floats, masks):
        TRACES[fn] += 1

        def mean(floats):
            each = []

            def reduce_fn(loss, where):
                each.append(loss)
                return masked_mean(loss, where=where)

            return fn(**floats, **masks, reduce_fn=reduce_fn), each[0]

        (mean, each), slopes = jax.value_and_grad(mean, has_aux=True)(floats)
        return mean, slopes, each

    return f


def evaluate(fn, data, point):
    floats, masks = split_masks(data)
    return evaluation(fn)(floats | point, masks)


def each_of(fn, data, point):
    return np.asarray(evaluate(fn, data, point)[2])


ENDS = {"tau_plus": [0, 0.6], "alpha": [1], "rho": [0, 1], "balance": [0, 1], "margin": [0],
        "repulsion": [0], "exponent": [0], "drop_rate": [0, 1], "bias": [9], "min_score": [0.2],
        "pos_temperature": [5], "ratio": [40], "mu": [-1], "sigma": [0.2, 30],
        "pos_scale": [0.2, 30], "neg_scale": [0.2, 30], "inclusion": [0, 1],
        "radius": [0, 1e-6, 0.7, 2], "top_fraction": [0, 1], "cutoff": [1, 9],
        "sampling_rate": [1], "calibration": [0, 1]}  # fmt: skip
"""Values of hyper-parameters at which :func:`test_value` tests the formulas, too."""


def split_masks(data):
    """Splits the arguments into differentiable ones and masks or labels."""
    masks = {k: v for k, v in data.items() if v is None or v.dtype == bool}
    return {k: v for k, v in data.items() if k not in masks}, masks


def reference(ref, data, point):
    d = {k: np.asarray(v, bool if v.dtype == bool else np.float64) for k, v in data.items()}
    own, neg, where, weights = (d.pop(k) for k in ("pos", "neg", "where", "weights"))
    extra = None
    if own.ndim == neg.ndim:
        own, extra = own[..., 0], own[..., 1:]
    point = {k: np.float64(v) for k, v in point.items()}
    return weights * ref(own, extra, neg, where, point.pop("temperature"), **d, **point)


def assert_finite(tree):
    for leaf in jax.tree.leaves(tree):
        assert np.isfinite(leaf).all(), tree


def tolerance(fn):
    """Absolute error in float32.

    A debiased estimate near its floor suffers from cancellation, and the log of a debiased
    probability, which may be near 1, keeps no relative precision.
    """
    return 3e-7 if fn is losses.debiased_pairwise else 1e-30


@each_loss
def test_value(fn, ref, hyper, n_extra, arrays, data):
    """Small losses keep their relative precision at a margin of 30."""
    cases = [(1, 1.0, 0, 0), (1, 0.2, 0, 0), (0.1, 1, 30, 0), (0.1, 1, -30, 0), (1, 1, 0, -200)]
    if fn is not exponential:
        cases += [(1, 0.02, 0, 0)]  # no exponential is a float32
    for name in hyper.keys() & ENDS.keys():
        for value in ENDS[name]:
            point = at(hyper)
            point[name] = np.full_like(point[name], value)
            want = reference(ref, data, point)
            np.testing.assert_allclose(each_of(fn, data, point), want, rtol=3e-4, atol=1e-6)
    evaluate(fn, data, at(hyper))
    traces = TRACES[fn]
    for scale, t, lead, shift in cases:
        moved = data | {"neg": scale * data["neg"] + shift}
        moved["pos"] = scale * data["pos"] + lead + shift
        point = at(hyper, t)
        _, _, got = evaluate(fn, moved, point)
        want = reference(ref, moved, point)
        np.testing.assert_allclose(got, want, rtol=3e-4, atol=tolerance(fn))
        assert got.dtype == jnp.float32
    assert TRACES[fn] == traces, "recompiled for other values of hyper-parameters"


def slopes_by_differences(ref, data, point, constant):
    """Returns a direction for each argument, and the central difference of the mean along it."""
    rng = np.random.default_rng(0)
    args, found = {**data, **point}, {}
    for name, value in args.items():
        if name in constant or value is None or value.dtype == bool:
            continue
        way = rng.normal(size=np.shape(value))
        up, down = (args | {name: np.float64(value) + step * way} for step in (1e-5, -1e-5))
        up, down = (
            reference(ref, {k: d[k] for k in data}, {k: d[k] for k in point}).mean()
            for d in (up, down)
        )
        found[name] = way, (up - down) / 2e-5
    return found


@each_loss
def test_gradients_match_finite_differences(fn, ref, hyper, n_extra, arrays, data):
    """Compares with central differences of the formula, for one argument after another."""
    constant = {*STEPS, *WITHOUT_GRADIENT.get(getattr(fn, "func", fn), ())}
    point = at(hyper)
    _, slopes, _ = evaluate(fn, data, point)
    for name, (way, want) in slopes_by_differences(ref, data, point, constant).items():
        got = np.sum(np.asarray(slopes[name]) * way)
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-5, err_msg=name)

    # A scalar for all anchors, and no mask.
    with jax.enable_x64(True):
        point = {k: np.float64(v) for k, v in (hyper | {"temperature": 0.4}).items()}
        wide = {k: v if v.dtype == bool else np.float64(v) for k, v in data.items()}
        _, slopes, each = evaluate(fn, wide | {"where": None}, point)
    wide["where"] = np.ones_like(data["where"])
    assert each.dtype == np.float64
    want = reference(ref, wide, point)
    np.testing.assert_allclose(each, want, rtol=1e-9, atol=tolerance(fn) * 1e-7)
    for name, (way, want) in slopes_by_differences(ref, wide, point, constant).items():
        got = np.sum(np.asarray(slopes[name]) * way)
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9, err_msg=name)


@each_loss
def test_ignores_masked_entries(fn, ref, hyper, n_extra, arrays, data):
    """Masked negatives have no effect, nor does any input of an anchor without valid negatives."""
    point = at(hyper, 0.5)  # the gradients sum over all scores
    gone = ["where", "where_pos"] if "where_pos" in data else ["where"]
    for mask in gone:
        data[mask][0] = False
        mean, _, left = evaluate(fn, data, point)
        assert (left[0] == 0).all()
        rest = jax.tree.map(lambda x: x[1:] if np.ndim(x) else x, (data, point))
        np.testing.assert_allclose(left[1:], reference(ref, *rest), rtol=3e-4, atol=1e-6)
        np.testing.assert_allclose(mean, left[1:].mean(), rtol=1e-6)
        if mask == "where_pos":
            data[mask][0] = True

    keep = dict.fromkeys(ALONG_NEGATIVES, data["where"])
    keep |= {"pos": data.get("where_pos", True), "group": data.get("where_group", True)}
    if "true_negative" in data:
        keep["neg"] = data["where"] & data["true_negative"]
    want = evaluate(fn, data, point)
    assert_finite(want)
    for junk in (np.nan, np.inf, -np.inf):
        corrupted = {
            k: np.where(keep.get(k, True), v, junk) for k, v in data.items() if v.dtype != bool
        }
        for v in corrupted.values():
            v[0] = junk
        corrupted = {k: v.astype(np.float32) for k, v in corrupted.items()}
        jax.tree.map(np.testing.assert_array_equal, evaluate(fn, data | corrupted, point), want)
    nothing = data | {"where": np.zeros_like(data["where"])}
    assert evaluate(fn, nothing, point)[0] == 0


@each_loss
def test_anchors_are_independent_in_per_anchor_losses(fn, ref, hyper, n_extra, arrays, data):
    """A NaN in a valid entry propagates to the loss of that anchor only."""
    want = each_of(fn, data, at(hyper))
    for k in ("pos", "neg", "weights"):
        first = data[k].copy()
        first[(0,) * first.ndim] = np.nan
        each = each_of(fn, data | {k: first}, at(hyper))
        assert np.isnan(each[0, 0]), k
        assert np.isfinite(each.ravel()[1:]).all()
    alone = []
    for shift in (9.0, -9.0):  # next to easier anchors the first one is dropped
        moved = {k: data[k] + np.float32(sign * shift) for k, sign in (("pos", 1), ("neg", -1))}
        for k, v in moved.items():
            v[0, 0] = data[k][0, 0]
        alone.append(each_of(fn, data | moved, at(hyper))[0, 0] == want[0, 0])
    assert all(alone) == (fn not in WHOLE_BATCH) == losses.is_per_anchor_loss(fn)


def test_table_covers_every_per_anchor_loss():
    marked = {f for f in vars(losses).values() if callable(f) and losses.is_per_anchor_loss(f)}
    assert marked <= {case.fn for case in LOSSES.values()}
    assert not losses.is_per_anchor_loss(lambda pos, neg, **_: pos)


@pytest.mark.parametrize("name", LOSSES)
def test_transformations_and_half_precision(name):
    """Sweeps hyper-parameters, with single anchors in bfloat16 sharded over several devices.

    Whole-batch losses are swept on one device. Hyper-parameters are replicated: their gradient is
    the sum over all devices. Only dtypes are checked for losses that share code with others.
    """
    fn, _, hyper, n_extra, arrays = LOSSES[name]
    data = make_data(n_extra, arrays)
    floats, masks = split_masks(data)
    half = {k: jnp.asarray(v, jnp.bfloat16) for k, v in floats.items()}
    back = {k: np.float32(v) for k, v in half.items()} | masks
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))

    def each(args, point):
        def of_anchor(args):
            return fn(**args, **point, reduce_fn=None)

        return of_anchor(args) if fn in WHOLE_BATCH else jax.vmap(jax.vmap(of_anchor))(args)

    if fn not in WHOLE_BATCH:
        each = jax.shard_map(each, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data"))

    def mean(point, args):
        values = each(args, point)
        return values.mean(), values

    gradient = jax.value_and_grad(mean, has_aux=True)
    sweep = {k: jnp.float32(v) + jnp.array([0.0, 0.05]) for k, v in hyper.items()}
    sweep["temperature"] = jnp.array([0.5, 2.0])
    swept = jax.vmap(gradient, (0, None))
    mixed = jax.eval_shape(
        partial(fn, **hyper, reduce_fn=None), **half | masks | {"neg": data["neg"]}
    )
    assert mixed.dtype == jnp.float32
    if name in SHARED_FORMULA:
        (_, got), slopes = jax.eval_shape(swept, sweep, half | masks)
        assert {x.dtype for x in (got, *slopes.values())} == {np.dtype(np.float32)}
        return
    (_, got), slopes = jax.jit(swept)(sweep, half | masks)
    assert got.dtype == jnp.float32
    for i in range(2):
        point = {k: np.full((), v[i]) for k, v in sweep.items()}
        wide = {
            k: v if k in ("temperature", "drop_rate") else np.full(BATCH, v)
            for k, v in point.items()
        }
        _, want_slopes, want = evaluate(fn, back, wide)
        np.testing.assert_allclose(got[i], want, rtol=2e-5, atol=1e-6)
        for k, slope in slopes.items():
            want = want_slopes[k].sum()
            np.testing.assert_allclose(slope[i], want, rtol=1e-3, atol=1e-6, err_msg=k)
    assert_finite(slopes)


def evaluate_at_scores_of_100(fn, hyper, n_extra, data):
    """Returns every combination of ±100 for the positive, one negative and the extra positives."""
    signs = 1 - 2 * ((np.arange(32)[:, None] >> np.arange(2 + n_extra)) & 1)
    own, neg = np.split(np.float32(100 * signs).reshape(*BATCH, -1), [1 + n_extra], axis=-1)
    where = data["where"] & (np.arange(N) == 0)
    where[..., 0] = True
    data |= dict(pos=own if n_extra else own[..., 0], neg=np.tile(neg, N), where=where)
    return evaluate(fn, data, at(hyper, 0.01))


@each_loss
def test_finite_at_scores_of_100_and_temperature_of_0_01(fn, ref, hyper, n_extra, arrays, data):
    found = evaluate_at_scores_of_100(fn, hyper, n_extra, data)
    if fn is exponential:
        assert not np.isfinite(found[0])  # otherwise these scores are too small to show overflow
    else:
        assert_finite(found)


@pytest.mark.parametrize("name", ["hard", "punce", "pairwise"])
@pytest.mark.usefixtures("all_optimisations")
def test_accurate_when_compiler_fuses_temperature_division(name):
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
        want = jax.jit(each)({k: np.float64(v) for k, v in args.items()})
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
    fn, _, hyper, n_extra, arrays = LOSSES[name]
    declared, rows = hyperparams(fn), BATCH[1]
    # Eight anchors, repeated four times, each with separate hyper-parameters.
    few = data.draw(hnp.arrays(np.float32, (rows, 1 + n_extra + N), elements=scores))
    pos, neg = np.split(np.broadcast_to(few, (*BATCH, few.shape[1])), [1 + n_extra], axis=-1)
    point = {"temperature": np.float32(data.draw(st.sampled_from([0.01, 1.0, 100.0])))}
    for k in hyper:
        values = EDGES.get(k) or inside(declared[k].range)
        drawn = np.float32(
            data.draw(st.lists(st.sampled_from(values), min_size=rows, max_size=rows))
        )
        point[k] = drawn[0] if k == "drop_rate" else np.broadcast_to(drawn, BATCH)
    args = make_data(n_extra, arrays) | {"pos": pos if n_extra else pos[..., 0], "neg": neg}
    found = evaluate(fn, args, point)
    assert_finite(found)
    if name not in SIGNED:
        assert found[0] >= 0


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
    "mu": [-np.inf, np.inf, np.nan, 1e39],
    "sigma": [0.0, -1.0, np.nan, 1e-40],
    "pos_scale": [0.0, -1.0, np.nan, 1e-40],
    "neg_scale": [0.0, -1.0, np.nan, 1e-40],
    "inclusion": [-0.1, np.inf, 1e39],
    "drop_rate": [-0.1, 1.1, np.nan],
    "exponent": [-0.1, np.inf, 1e39],
    "bias": [-np.inf, np.inf, np.nan, 1e39],
    "radius": [-0.1, np.inf, 1e39],
    "top_fraction": [-0.1, 1.1],
    "cutoff": [0.9, np.inf],
    "weight_temperature": [0.0, np.nan, 1e-40],
    "pos_strength": [0.0, np.nan, 1e-40],
    "neg_strength": [0.0, np.nan, 1e-40],
    "pos_hardness": [-0.1, np.inf, 1e39],
    "neg_hardness": [-0.1, np.inf, 1e39],
    "pos_log_prior": [-np.inf, np.nan],
    "neg_log_prior": [-np.inf, np.nan],
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
    wrong = {k: v[:3] for k, v in data.items()} | {"temperature": np.ones(8)}
    for name, value in wrong.items():
        # Where "neg" is invalid, so are the arguments whose shape must match it.
        with raises(Exception, match="|".join(["pos", *arrays]) if name == "neg" else name):
            fn(**data | {name: value}, **hyper)
    for name in hyper:
        with raises(Exception, match=name):
            fn(**data, **hyper | {name: np.full(3, 0.6)})


@each_loss
def test_signature(fn, ref, hyper, n_extra, arrays):
    """Arguments: two arrays, then keywords: hyper-parameters first, common ones in fixed order."""
    parameters = inspect.signature(fn).parameters
    names = list(parameters)
    assert names[:2] == ["pos", "neg"]
    assert names[-4:] == ["temperature", "where", "weights", "reduce_fn"]
    kinds = {p.kind for p in list(parameters.values())[2:]}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}
    assert parameters["reduce_fn"].default is masked_mean


@pytest.mark.parametrize("name", [name for name in LOSSES if name not in SHARED_FORMULA])
def test_exports_with_symbolic_anchors_and_negatives(name):
    fn, _, hyper, n_extra, arrays = LOSSES[name]
    data, point, batch = make_data(n_extra, arrays), at(hyper), (11, 13)
    floats, masks = split_masks(make_data(n_extra, arrays, batch, 17))  # sizes of no other axis
    floats |= {k: np.resize(v, batch) if np.ndim(v) else v for k, v in point.items()}
    others, other_masks = split_masks(data)
    sizes = dict(zip("abn", (*batch, 17)))
    got = exported(evaluation(fn), floats, masks, **sizes).call(others | point, other_masks)
    want = evaluate(fn, data, point)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-7), got, want)
