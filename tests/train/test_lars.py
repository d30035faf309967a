"""LARS against the published steps, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import counted, in_one

from crl_jax import train

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

RNG = np.random.default_rng(0)
PARAMS = {
    "kernel": RNG.normal(size=(3, 4)), "bias": RNG.normal(size=4), "scale": np.ones(4),
    "zero": np.zeros((2, 2)), "convolution": RNG.normal(size=(3, 3, 2, 2)),
}  # fmt: skip
GRADS = [{name: RNG.normal(size=x.shape) for name, x in PARAMS.items()} for _ in range(3)]
GRADS[0]["convolution"][:] = 0


def reference(learning_rate, weight_decay, warm_up=0.0, n_steps=3):
    """The parameters after the steps, by the formula."""
    params = {name: x.copy() for name, x in PARAMS.items()}
    velocity = {name: np.zeros_like(x) for name, x in PARAMS.items()}
    for step, grads in enumerate(GRADS):
        rate = learning_rate * (min(step / n_steps / warm_up, 1) if warm_up else 1)
        for name, w in params.items():
            g, ratio = grads[name], 1.0
            if w.ndim > 1:
                g = g + weight_decay * w
                lengths = np.linalg.norm(w), np.linalg.norm(g)
                ratio = 1e-3 * lengths[0] / lengths[1] if min(lengths) > 0 else 1.0
            velocity[name] = 0.9 * velocity[name] + rate * ratio * g
            params[name] = w - velocity[name]
    return params


def run_optimizer(optimizer):
    params = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), PARAMS)
    state = optimizer.init(params)
    for step, grads in enumerate(GRADS):
        grads = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), grads)
        updates, state = optimizer.update(grads, state, params, jnp.int32(step))
        params = jax.tree.map(jnp.add, params, updates)
    return params


def optimizer(learning_rate, weight_decay, warm_up=0.0):
    return train.Optimizer(
        learning_rate, weight_decay, warm_up=warm_up, n_steps=3, rule=train.lars
    )  # fmt: skip


@pytest.mark.parametrize(
    ("rate", "decay", "warm_up"), [(0.3, 0.0, 0.0), (4.8, 1e-2, 0.5), (0.3, None, 0)]
)
def test_steps_match_float64_formula(rate, decay, warm_up):
    got = in_one(lambda: run_optimizer(optimizer(rate, decay, warm_up)))
    want = reference(rate, decay or 0, warm_up)
    for name, value in want.items():
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-7, err_msg=name)


def test_vmapped_hyperparameters_do_not_recompile():
    run, traces = counted(jax.vmap(lambda rate, decay: run_optimizer(optimizer(rate, decay))))
    for rates, decays in (([0.1, 1.0], [0.0, 0.1]), ([0.2, 2.0], [0.3, 0.0])):
        got = run(jnp.array(rates), jnp.array(decays))
        for i, (rate, decay) in enumerate(zip(rates, decays, strict=True)):
            for name, value in reference(rate, decay).items():
                np.testing.assert_allclose(got[name][i], value, rtol=2e-5, atol=1e-7)
    assert len(traces) == 1
