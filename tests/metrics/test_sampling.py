"""Quality of negatives, by hand."""

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
def test_rates_are_those_of_the_kept(rows):
    info, is_false, kept = (np.array(column) for column in zip(*rows, strict=True))
    got = sampling_quality(
        jnp.asarray(info, jnp.float32), jnp.asarray(is_false), where=jnp.asarray(kept),
        risk_lambda=2.5,
    )  # fmt: skip
    if not kept.any():
        assert tuple(got) == (0, 0, 0)
        return
    assert got.tnr == pytest.approx(np.mean(~is_false[kept]))
    assert got.inf == pytest.approx(np.mean(np.where(is_false, -info, info)[kept]), abs=1e-6)
    assert got.risk == pytest.approx(np.mean(np.where(is_false, info, -2.5 * info)[kept]), abs=1e-6)


def test_shapes_must_fit():
    with raises(ValueError, match="`is_false` must have shape"):
        sampling_quality(jnp.ones(3), jnp.ones(2, bool))
    with raises(ValueError, match="`where` must have shape"):
        sampling_quality(jnp.ones(3), jnp.ones(3, bool), where=jnp.ones(2, bool))
    with raises(ValueError, match="`risk_lambda` must lie in"):
        sampling_quality(jnp.ones(3), jnp.ones(3, bool), risk_lambda=-1.0)
