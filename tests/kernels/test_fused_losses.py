"""Fused losses against unfused ones, on interpreted kernels with small tiles."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.exported import exported
from _helpers.refusals import raises
from jax.sharding import PartitionSpec as P

from crl_jax import losses
from crl_jax.kernels import _log_sum_kernels, _row_log_sums

pytestmark = pytest.mark.usefixtures("quick_compiles")

N = 13
WEIGHT_TOLERANCE = dict(rtol=3e-4, atol=3e-4)  # weights have 12 significant bits
binned = partial(losses.bayesian_contrastive, bins=5)


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch):
    monkeypatch.setattr(_row_log_sums, "_TILE", (128, 128))
    monkeypatch.setattr(_log_sum_kernels, "_STRIP", 64)  # two strips, to compile quickly


def embeddings(n=N, dim=3):
    z = losses.normalize(jax.random.normal(jax.random.key(0), (2, n, dim)))
    return z[0], z[1]


def assert_same(fused, plain, *args, rtol=2e-5, atol=2e-7):
    got, want = (
        jax.jit(jax.value_and_grad(f, tuple(range(len(args)))))(*args) for f in (fused, plain)
    )
    jax.tree.map(partial(np.testing.assert_allclose, rtol=rtol, atol=atol), got, want)


@pytest.mark.parametrize(
    ("loss", "hyper"),
    [(losses.hard_contrastive, {"tau_plus": 0.1, "beta": 0.8, "min_score": -0.5}),
     (binned, {"tau_plus": 0.1, "alpha": 0.8, "beta": 0.9})],
)  # fmt: skip
def test_fused_view_loss_matches_unfused(loss, hyper):
    ids, weights = jnp.arange(N) % 10, jnp.linspace(0, 2, 2 * N)
    hyper = {name: jnp.float32(value) for name, value in hyper.items()}
    hyper["tau_plus"] = jnp.linspace(0.01, 0.2, 2 * N)  # one for each anchor

    def fused(z1, z2, weights, temperature, hyper):
        return losses.fused_view_loss(
            loss, z1, z2, ids=ids, weights=weights, temperature=temperature, interpret=True, **hyper
        )

    def plain(z1, z2, weights, temperature, hyper):
        s = losses.view_scores(z1, z2, ids=ids)
        return loss(s.pos, s.neg, where=s.where, weights=weights, temperature=temperature, **hyper)

    tolerances = WEIGHT_TOLERANCE if loss is binned else {}
    assert_same(fused, plain, *embeddings(), weights, jnp.float32(0.3), hyper, **tolerances)


@pytest.mark.parametrize(
    ("batch", "loss"),
    [("tower", losses.info_nce), ("tower", losses.decoupled_contrastive),
     ("view", losses.debiased_contrastive)],
)  # fmt: skip
def test_masked_pairs_do_not_change_loss_or_gradients(batch, loss):
    where, ids = jnp.arange(N) % 4 != 1, jnp.arange(N) % 8
    kept = np.flatnonzero(where)
    fused_of = {"tower": losses.fused_tower_loss, "view": losses.fused_view_loss}[batch]
    scores_of = {"tower": losses.tower_scores, "view": losses.view_scores}[batch]
    weights = jnp.linspace(1, 2, {"tower": N, "view": 2 * N}[batch])

    def fused(x, y, temperature):
        x, y = (jnp.where(where[:, None], z, jnp.nan) for z in (x, y))
        return fused_of(
            loss, x, y, ids=ids, where=where, weights=weights, temperature=temperature,
            interpret=True,
        )  # fmt: skip

    def plain(x, y, temperature):
        s = scores_of(x[kept], y[kept], ids=ids[kept])
        own = weights.reshape(-1, N)[:, kept].ravel()
        return loss(s.pos, s.neg, where=s.where, weights=own, temperature=temperature)

    assert_same(fused, plain, *embeddings(), jnp.float32(0.3))


def test_low_temperature_matches_float64_and_finite_differences():
    x, y = (np.asarray(z, np.float64) for z in embeddings())

    def reference(x, y, temperature=0.01, tau_plus=0.05):
        scores = x @ y.T / temperature
        pos, others = np.diag(scores), ~np.eye(N, dtype=bool)
        mean = np.array([np.exp(s[m]).mean() for s, m in zip(scores, others, strict=True)])
        true = (mean - tau_plus * np.exp(pos)) / (1 - tau_plus)
        total = (N - 1) * np.maximum(true, np.exp(-1 / temperature))
        return np.mean(np.logaddexp(np.log(total) - pos, 0))

    def fused(x, y):
        return losses.fused_tower_loss(
            losses.debiased_contrastive, x, y, temperature=0.01, interpret=True
        )

    value, (d_x, d_y) = jax.jit(jax.value_and_grad(fused, (0, 1)))(*map(jnp.float32, (x, y)))
    np.testing.assert_allclose(value, reference(x, y), rtol=1e-5)
    for place in ((0, 0), (4, 2), (N - 1, 1)):
        step = np.zeros_like(x)
        step[place] = 1e-6
        slope_x = (reference(x + step, y) - reference(x - step, y)) / 2e-6
        slope_y = (reference(x, y + step) - reference(x, y - step)) / 2e-6
        np.testing.assert_allclose(
            [d_x[place], d_y[place]], [slope_x, slope_y], rtol=1e-3, atol=1e-3
        )


def test_large_scores_keep_gradient_of_beta():
    """For low positive scores, it is a difference of weighted means of scores."""
    u, v, beta = np.array([1, 0.5, 0.75, -0.5]), np.array([0, -0.5, 0.25, -1.5]), 0.75
    x = np.column_stack([np.ones(4), u, np.eye(4)])
    y = np.column_stack([np.full(4, 1e4), v, -32 * np.eye(4)])

    def fused(beta):
        return losses.fused_tower_loss(
            losses.hard_contrastive, jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32),
            beta=beta, tau_plus=0.0, min_score=-jnp.inf, interpret=True,
        )  # fmt: skip

    above = np.outer(u, v)[~np.eye(4, dtype=bool)].reshape(4, 3)  # scores of negatives minus 1e4
    weights = (np.exp(power * above) for power in (beta, beta + 1))
    means = [np.sum(w * above, axis=1) / np.sum(w, axis=1) for w in weights]
    slope = np.mean(means[1] - means[0])
    np.testing.assert_allclose(jax.jit(jax.grad(fused))(jnp.float32(beta)), slope, rtol=1e-5)


def test_loss_is_zero_without_negatives():
    def fused(z1, z2):
        return losses.fused_view_loss(
            losses.info_nce, z1, z2, ids=jnp.zeros(N, jnp.int32), temperature=0.1, interpret=True
        )

    value, grads = jax.jit(jax.value_and_grad(fused, (0, 1)))(*embeddings())
    assert value == 0
    assert all((np.asarray(g) == 0).all() for g in grads)


def test_two_devices_match_single_device():
    x, y = embeddings(12)
    mesh = jax.make_mesh(
        (2,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:2]
    )
    hyper: dict[str, Any] = {"tau_plus": 0.1, "temperature": 0.4}

    def on_both(x, y):
        part = partial(losses.fused_tower_loss, binned, axis_name="data", interpret=True, **hyper)
        # Interpreted kernels do not support the check of replication.
        split = jax.shard_map(
            part, mesh=mesh, in_specs=(P("data"), P("data")), out_specs=P(), check_vma=False
        )
        return split(x, y)

    def on_one(x, y):
        s = losses.tower_scores(x, y)
        return binned(s.pos, s.neg, where=s.where, **hyper)

    assert_same(on_both, on_one, x, y, **WEIGHT_TOLERANCE)


@pytest.mark.parametrize("interpret", [False, True])
def test_rejects_second_derivatives(interpret):
    x, y = embeddings(3)

    def loss(x):
        return losses.fused_tower_loss(losses.info_nce, x, y, interpret=interpret)

    with raises(NotImplementedError, match="differentiable once: use tiled losses"):
        jax.jit(jax.hessian(loss))(x)


def test_kernels_are_compiled_for_tpus_only():
    def gradient(z1, z2):
        return jax.value_and_grad(partial(losses.fused_view_loss, binned), (0, 1))(z1, z2)

    args = embeddings()
    for platform, kernels in (("tpu", True), ("cuda", False), ("cpu", False)):
        lowered = jax.jit(gradient).trace(*args).lower(lowering_platforms=(platform,))
        assert ("tpu_custom_call" in lowered.as_text()) == kernels


def test_other_platforms_and_symbolic_batches_use_tiled_loss():
    def gradients(tiled):
        loss = losses.tiled_tower_loss if tiled else losses.fused_tower_loss
        return jax.jit(jax.value_and_grad(partial(loss, binned, tau_plus=0.1), (0, 1)))

    x, y = embeddings()
    got, want = (gradients(tiled)(x, y) for tiled in (False, True))
    jax.tree.map(np.testing.assert_array_equal, got, want)
    again = exported(gradients(False), x, y, b=N).call(x, y)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-7), again, want)


def test_rejects_unsupported_losses_and_exact_ranks():
    x, y = embeddings()
    with raises(ValueError, match="`loss` must be one of `info_nce`.*got <function bpr"):
        losses.fused_view_loss(losses.bpr, x, y)
    with raises(ValueError, match="`bins` must be set"):
        losses.fused_tower_loss(losses.bayesian_contrastive, x, y)
    with raises(ValueError, match="`tau_plus` must lie in"):
        losses.fused_tower_loss(partial(losses.debiased_contrastive, tau_plus=1.5), x, y)
