"""Ranks, empirical CDFs and distributions of scores, for samplers, losses and weights.

The empirical CDF of an anchor's scores is the normalised rank of each negative and does not depend
on the scale of the scores:

>>> import jax.numpy as jnp
>>> from crl_jax import stats
>>> scores = jnp.array([[0.3, -1.0, 0.3, 2.0]])
>>> print(stats.ecdf(scores))
[[0.75 0.25 0.75 1.  ]]

For long rows :func:`binned_ecdf` is a histogram estimate with a known error bound;
:func:`dkw_error` bounds the difference between the eCDF of a sample and the CDF of the population.

A :class:`Distribution` has a PDF and a CDF. :class:`VarianceGamma` is that of inner products of
Gaussian vectors, :class:`SmoothedEmpirical` a kernel density estimate, and :class:`OrderStatistic`
that of the k-th smallest of n scores:

>>> distribution = stats.SmoothedEmpirical().fit(jnp.linspace(0.0, 4.0, 1001))
>>> print(f"{distribution.cdf(jnp.float32(3.0)):.2f}")
0.75
"""

from ._columns import count_no_larger as count_no_larger
from ._columns import select_largest as select_largest
from ._distributions import Distribution as Distribution
from ._distributions import GridDistribution as GridDistribution
from ._distributions import OrderStatisticMixture as OrderStatisticMixture
from ._distributions import SmoothedEmpirical as SmoothedEmpirical
from ._distributions import VarianceGamma as VarianceGamma
from ._distributions import lack_of_fit as lack_of_fit
from ._parametric import Gamma as Gamma
from ._parametric import Normal as Normal
from ._parametric import OrderStatistic as OrderStatistic
from ._parametric import StudentT as StudentT
from ._ranks import binned_ecdf as binned_ecdf
from ._ranks import binned_ranks as binned_ranks
from ._ranks import dkw_error as dkw_error
from ._ranks import ecdf as ecdf
from ._ranks import map_binned_ranks as map_binned_ranks
from ._ranks import ranks as ranks
from ._variance_gamma import sample_variance_gamma as sample_variance_gamma
from ._variance_gamma import variance_gamma_cdf as variance_gamma_cdf
from ._variance_gamma import variance_gamma_logcdf as variance_gamma_logcdf
from ._variance_gamma import variance_gamma_logpdf as variance_gamma_logpdf
from ._variance_gamma import variance_gamma_logsf as variance_gamma_logsf
from ._variance_gamma import variance_gamma_pdf as variance_gamma_pdf
from ._variance_gamma import variance_gamma_sf as variance_gamma_sf
