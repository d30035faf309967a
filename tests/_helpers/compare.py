"""Comparisons of arrays."""

import numpy as np


def same(got, want, rtol=1e-6, atol=0.0):
    """Asserts that arrays are equal up to rounding."""
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
