"""Quality of a posterior as a predictor of labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import jitted
from _helpers.refusals import raises

from crl_jax import weights

pytestmark = pytest.mark.usefixtures("quick_compiles")
quick = jitted(weights)


def test_posterior_by_label_matches_masked_means():
    keys = jax.random.split(jax.random.key(0))
    neg = jax.random.uniform(keys[0], (40, 5, 12), minval=-1.0)
    where = jax.random.bernoulli(keys[1], 0.5, neg.shape).at[0, 0].set(False)
    p = quick.true_negative_posterior(neg, tau_plus=0.2, alpha=0.8)
    true = neg < 0.4
    got = quick.posterior_by_label(jnp.where(where, p, jnp.nan), true, where=where)
    p, true, where = map(np.asarray, (p, true, where))
    assert got.true == pytest.approx(p[where & true].mean(dtype=np.float64), rel=1e-5)
    assert got.false == pytest.approx(p[where & ~true].mean(dtype=np.float64), rel=1e-5)
    assert quick.posterior_by_label(jnp.asarray(p), jnp.ones(p.shape, bool)).false == 0


def test_errors_name_the_argument():
    with raises(Exception, match="is_true"):
        weights.posterior_by_label(jnp.ones((2, 3)), jnp.ones(3, bool))
