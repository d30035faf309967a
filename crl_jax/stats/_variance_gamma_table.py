r"""Coefficients of :mod:`._variance_gamma` for each dimension.

The dimension is static: coefficients are computed in float64 NumPy while JAX traces and are
constants of the compiled program, correctly rounded for programs in float32. This takes about 50 ms
once per process.
"""

import math
from functools import cache
from typing import NamedTuple

import numpy as np

Values = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# Intervals per octave: with 32, the log density varies by a few units within an interval, which
# float32 can represent, and a table in float32 still fits into the first-level cache.
PIECES = 32
_FEWEST_OCTAVES = 11

# Step and range of the trapezoidal rule in units of the saddle's width: the error is 1e-15 for all
# nu >= 0 and z >= 1. The left tail is heavier, most of all near nu = 10.
_STEP = 0.25
_REACH = (-16.0, 9.0)


class Table(NamedTuple):
    r"""Coefficients for one dimension at unit scale; polynomials in increasing powers.

    For :math:`z < 1` the density is ``even + psi * other``, polynomials in :math:`z^2`, with
    :math:`\psi = \log z` if the dimension is odd and :math:`z` if it is even; its integral from 0
    is :math:`z` times the same expression in ``integral_even`` and ``integral_other``. From 1 to
    ``far`` each column belongs to one interval; the last column is for larger values.
    """

    even: Values
    other: Values
    integral_even: Values
    integral_other: Values
    far: float
    centre: Values
    per_half_width: Values
    log_density: Values  # without log_offset
    log_offset: Values
    root_offset: Values  # exp(log_offset / 2), a power of two
    mills: Values  # survival function / density


@cache
def build_table(dim: int, terms: int, degree: int) -> Table:
    """Builds the table with ``terms`` powers of z² below 1 and polynomials of ``degree`` above."""
    nu = (dim - 1) / 2
    # From 8 nu on, polynomials in 1/z are as good as those on the intervals.
    octaves = max(_FEWEST_OCTAVES, math.ceil(math.log2(8 * nu + 1)))
    far = 2.0**octaves
    octave, piece = np.divmod(np.arange(octaves * PIECES), PIECES)
    centre = np.exp2(octave) * (1 + (piece + 0.5) / PIECES)
    half_width = np.exp2(octave) / (2 * PIECES)

    angles = np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)
    nodes = np.cos(angles)
    far_nodes = 2 * far / (1 + nodes)
    log_density, mills = _log_density_and_mills(
        nu, np.vstack([centre[:, None] + half_width[:, None] * nodes, far_nodes])
    )
    # The unbounded part; the remainder is smooth in 1/z.
    log_density[-1] -= (nu - 0.5) * np.log(far_nodes / far) - (far_nodes - far)
    exponent = 2 * np.round(log_density.mean(-1) / (2 * math.log(2)))
    log_offset = exponent * math.log(2)
    log_density -= log_offset[:, None]

    return Table(
        *_series(dim, terms),
        far=far,
        centre=np.append(centre, 0),
        per_half_width=np.append(1 / half_width, 0),
        log_density=_interpolate(angles, log_density),
        log_offset=log_offset,
        root_offset=np.exp2(exponent / 2),
        mills=_interpolate(angles, mills),
    )


def _interpolate(angles: Values, values: Values) -> Values:
    """Coefficients of polynomials from rows of values at Chebyshev nodes.

    Chebyshev coefficients are an intermediate step: the inverse Vandermonde matrix would lose three
    digits.
    """
    n = len(angles)
    coefficients = np.cos(np.outer(np.arange(n), angles)) @ values.T * 2 / n
    coefficients[0] /= 2
    to_powers = np.zeros((n, n))
    for k in range(n):
        to_powers[: k + 1, k] = np.polynomial.chebyshev.cheb2poly([0] * k + [1])
    return to_powers @ coefficients


def _log_density_and_mills(nu: float, z: Values) -> tuple[Values, Values]:
    r"""Log density, and ratio of survival function and density, for ``z >= 1``.

    With :math:`a = \nu + \frac12`, mixing :math:`\mathcal N(0, 2g)` over :math:`g \sim
    \mathrm{Gamma}(a, 1)` and substituting :math:`g = \frac z2 e^t`,

    .. math::
        f = \frac{(z/2)^\nu}{2 \sqrt\pi\, \Gamma(a)} \int e^{\nu t - z \cosh t}\, dt, \qquad
        \frac Sf = \frac{\int e^{\nu t - z \cosh t} \sqrt{\pi g}\,
                         \mathrm{erfcx}(z / 2\sqrt g)\, dt}{\int e^{\nu t - z \cosh t}\, dt},

    by the trapezoidal rule about the saddle :math:`\sinh t_* = \nu / z`, whose width is
    :math:`r^{-1/2}`, :math:`r = \sqrt{z^2 + \nu^2}`. In terms of :math:`u = t - t_*` and
    :math:`q = r - \nu` there is no cancellation.
    """
    z = z[..., None]
    r = np.hypot(z, nu)
    q = z**2 / (r + nu)
    u = np.arange(_REACH[0], _REACH[1] + _STEP, _STEP) / np.sqrt(r)
    weights = np.exp(-2 * r * np.sinh(u / 2) ** 2 - nu * (np.sinh(u) - u))
    g = (nu + r) / 2 * np.exp(u)
    total = weights.sum(-1)
    mills = (weights * np.sqrt(np.pi * g) * _erfcx(z / (2 * np.sqrt(g)))).sum(-1) / total

    r, q = r[..., 0], q[..., 0]
    constant = -math.log(2 * math.sqrt(math.pi)) - math.lgamma(nu + 0.5)
    if nu > 0:
        constant = constant + nu * math.log(nu) - nu + nu * np.log1p(q / (2 * nu))
    return constant - q + np.log(_STEP * total) - np.log(r) / 2, mills


def _erfcx(y: Values) -> Values:
    r"""Scaled complementary error function :math:`e^{y^2}\mathrm{erfc}(y)` for ``y >= 0``.

    Midpoint rule with step 1/2 for :math:`\frac y\pi \int e^{-t^2} / (t^2 + y^2)\, dt`, plus
    the residue of the pole at :math:`t = iy`, which is needed for :math:`y < 2\pi`. As accurate as
    ``scipy.special.erfcx`` (1e-15), whose import takes longer than all tables.
    """
    rule = np.zeros_like(y)
    for t in np.arange(0.25, 6.5, 0.5):
        rule += np.exp(-(t**2)) / (t**2 + y**2)
    below = np.minimum(y, 2 * np.pi)
    residue = 2 * np.exp(below**2) / (1 + np.exp(4 * np.pi * below))
    return rule * y / np.pi + np.where(y < 2 * np.pi, residue, 0)


def _series(dim: int, terms: int) -> tuple[Values, Values, Values, Values]:
    r"""Power series of the density and its integral, see :class:`Table`.

    .. math::
        (z/2)^\nu K_\nu(z) = \tfrac12 \Gamma(\nu) \sum_k \frac{(z^2/4)^k}{k!\,(1-\nu)_k}
            + \tfrac12 \Gamma(-\nu) (z/2)^{2\nu} \sum_k \frac{(z^2/4)^k}{k!\,(1+\nu)_k}

    for half-integers :math:`\nu`; for integers the first sum stops at :math:`k < \nu` and the
    second has the limit :math:`(-1)^{\nu+1} (\log\frac z2 - \frac12 \psi(k+1) - \frac12
    \psi(\nu+k+1)) / \nu!` for its factor :math:`\frac12 \Gamma(-\nu)`.
    """
    nu, odd = (dim - 1) / 2, dim % 2 == 1
    first = dim // 2 if odd else dim // 2 - 1  # first power of z² of the second sum
    norm = math.log(math.pi) / 2 + math.lgamma(dim / 2)
    even, other = np.zeros(terms), np.zeros(terms)

    if dim > 1:
        even[0] = math.exp(math.lgamma(nu) - norm) / 2
        for k in range(1, min(terms, first) if odd else terms):
            even[k] = even[k - 1] / (4 * k * (k - nu))
    if first < terms:
        sign = -math.cos(math.pi * first)
        factor = 1 / math.factorial(first)
        if not odd:
            factor = math.pi / (2 * math.gamma(nu + 1))
        other[first] = sign * factor * math.exp(-norm) / 4**nu
        for k in range(1, terms - first):
            other[first + k] = other[first + k - 1] / (4 * k * (k + nu))
    if odd:
        digamma = np.concatenate([[0], np.cumsum(1 / np.arange(1, terms))]) - np.euler_gamma
        k = np.arange(max(terms - first, 0))
        even[first:] -= other[first:] * (math.log(2) + (digamma[k] + digamma[k + first]) / 2)

    degree = 2 * np.arange(terms)
    if odd:
        integral_even = even / (degree + 1) - other / (degree + 1) ** 2
        return even, other, integral_even, other / (degree + 1)
    return even, other, even / (degree + 1), other / (degree + 2)
