"""Tests of argument validation and its error messages."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax._checks import check_range, shortest_repr


@pytest.mark.parametrize(
    ("number", "printed"),
    [
        (0.3, "0.3"),
        (0.30000001192092896, "0.3"),  # a float32 converted to a Python float
        (np.float32(0.3), "0.3"),
        (jnp.float32(0.3), "0.3"),
        (jnp.bfloat16(0.3), "0.30078125"),
        (1 - 1e-8, "0.99999999"),
        (np.float64(1) / 3, "0.3333333333333333"),
        (0.5, "0.5"),
        (3, "3"),
        (np.int64(2**53 + 1), "9007199254740993"),
        (10**30, "1000000000000000000000000000000"),
        (True, "True"),
        (1e39, "1e+39"),  # exceeds float32
        (-np.inf, "-inf"),
        (np.nan, "nan"),
    ],
)
def test_shortest_repr_keeps_original_digits(number, printed):
    assert shortest_repr(number) == printed


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (jnp.array([0.1, 0.3]).tolist()[1], "got 0.3."),
        (jnp.float32(0.3), "got 0.3."),
        ([0.1, 0.3], r"got 0.3 at index \[1\]."),
        (jnp.array([[0.1, 0.1], [0.3, 0.9]]), r"got 0.3 at index \[1, 0\]."),
        (np.array([0.2 + 1e-9]), r"got 0.200000001 at index \[0\]."),
        (np.nan, "got nan."),
        (10**30, "got 1000000000000000000000000000000."),
    ],
)
def test_message_shows_first_value_out_of_range(value, got):
    with raises(ValueError, match=r"`share` must lie in \[0.0, 0.2\], " + got + "$"):
        check_range("share", value, 0.0, 0.2)
    check_range("share", [], 0.0, 0.2)


def test_open_bound_applies_to_value_rounded_to_dtype():
    half_open = partial(check_range, "share", low=0.0, high=1.0, high_open=True)
    pattern = r"in \[0.0, 1.0\), got 0.99999999, which is 1.0 in float32.$"
    with raises(ValueError, match=pattern):
        half_open(1 - 1e-8)
    half_open(1 - 1e-7)  # the last float32 below 1 is 1 - 6e-8
    half_open(1 - 1e-8, dtype=float)
    with jax.enable_x64(True):
        half_open(1 - 1e-8)
        with raises(ValueError, match=pattern):
            half_open(1 - 1e-8, dtype=np.float32)
        with raises(ValueError, match=r"got 1.0.$"):
            half_open(1 - 1e-17)


@pytest.mark.parametrize(("value", "met"), [(1e-46, "0.0"), (1e-40, "0.0"), (1e39, "inf")])
def test_reports_underflow_and_overflow_in_float32(value, met):
    with raises(ValueError, match=rf"which is {met} in float32.$"):
        check_range("scale", value, 0.0, np.inf, low_open=True, high_open=True)
    check_range("scale", value, 0.0, np.inf, low_open=True, high_open=True, dtype=float)
    check_range("scale", value, 0.0, np.inf)  # closed bounds apply to the original value
