"""Hand-written kernels for single platforms, each behind one plain function.

A kernel is chosen by an argument or, while compiling, by the platform
(:func:`jax.lax.platform_dependent`), so that a program compiled for another platform than the
default one is right too.
"""

from ._bit_matrix import BitMatrix as BitMatrix
from ._bit_matrix import bit_product as bit_product
from ._bitonic_sort import bitonic_ranks as bitonic_ranks
from ._convolution import Convolution as Convolution
from ._convolution import convolve as convolve
from ._row_log_sums import RankWeight as RankWeight
from ._row_log_sums import row_log_sums as row_log_sums
