"""Quality of sampled negatives, against direct means."""

import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises
from hypothesis import given, settings
from hypothesis import strategies as st

from crl_jax.metrics import sampling_quality


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1, width=32), st.booleans(), st.booleans()), min_size=9, max_size=9
    )
)
def test_rates_match_means_over_valid_negatives(rows):
    info, is_false, valid = (np.array(column) for column in zip(*rows, strict=True))
    got = sampling_quality(
        jnp.asarray(info, jnp.float32), jnp.asarray(is_false), where=jnp.asarray(valid),
        risk_lambda=2.5,
    )  # fmt: skip
    if not valid.any():
        assert tuple(got) == (0, 0, 0)
        return
    assert got.tnr == pytest.approx(np.mean(~is_false[valid]))
    assert got.inf == pytest.approx(np.mean(np.where(is_false, -info, info)[valid]), abs=1e-6)
    assert got.risk == pytest.approx(
        np.mean(np.where(is_false, info, -2.5 * info)[valid]), abs=1e-6
    )


def test_rejects_invalid_arguments():
    with raises(ValueError, match="`is_false` must have shape"):
        sampling_quality(jnp.ones(3), jnp.ones(2, bool))
    with raises(ValueError, match="`where` must have shape"):
        sampling_quality(jnp.ones(3), jnp.ones(3, bool), where=jnp.ones(2, bool))
    with raises(ValueError, match="`risk_lambda` must lie in"):
        sampling_quality(jnp.ones(3), jnp.ones(3, bool), risk_lambda=-1.0)
