"""Row sum for TPUs, which no other test exercises on a CPU."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from crl_jax.losses._logspace import log_sum_exp, sum_by_product


@pytest.mark.parametrize("shape", [(1,), (7, 130), (2, 3, 1000)])
def test_sum_by_product_matches_exact_sum(shape):
    rng = np.random.default_rng(0)
    terms = rng.exponential(size=shape).astype(np.float32) * np.float32(10) ** rng.integers(-9, 9)
    want = [math.fsum(row) for row in terms.reshape(-1, shape[-1]).astype(float)]
    got = np.asarray(sum_by_product(jnp.asarray(terms)), float).reshape(-1)
    np.testing.assert_allclose(got, want, rtol=2e-6)


def test_only_weighted_sums_on_tpu_use_full_precision_dot():
    x = jax.ShapeDtypeStruct((4, 300), jnp.float32)

    def products(platform, weighted):
        def gradient(x, weights):
            return jax.grad(lambda x: jnp.sum(log_sum_exp(x, weights=weights)))(x)

        args = (x, x) if weighted else (x, None)
        text = export.export(jax.jit(gradient), platforms=[platform])(*args).mlir_module()
        return [line for line in text.splitlines() if "stablehlo.dot_general" in line]

    (product,) = products("tpu", weighted=True)
    assert product.count("HIGHEST") == 2
    others = [("cpu", True), ("cuda", True), ("tpu", False)]
    assert not any(products(*other) for other in others)
