"""Negative samplers and permutations: pure functions of a random key that run under ``jax.jit``.

A sampler is a pytree with one call, ``sampler(key, batch, state) -> (ids, state)``; see
:class:`Sampler`.
"""

from .._permutation import permute as permute
from ._base import Negatives as Negatives
from ._base import Pools as Pools
from ._base import Sampler as Sampler
from ._base import SamplingContext as SamplingContext
from ._bayesian import BNS as BNS
from ._composite import MixedSampler as MixedSampler
from ._composite import StagedSampler as StagedSampler
from ._criteria import informativeness as informativeness
from ._criteria import sampling_risk as sampling_risk
from ._criteria import unbiasedness as unbiasedness
from ._dynamic import AOBPR as AOBPR
from ._dynamic import DNS as DNS
from ._positives import Positives as Positives
from ._positives import randint_below as randint_below
from ._positives import sample_absent as sample_absent
from ._positives import sample_seen as sample_seen
from ._positives import sample_unseen as sample_unseen
from ._priors import Prior as Prior
from ._priors import as_prior as as_prior
from ._priors import check_prior as check_prior
from ._priors import group_prior as group_prior
from ._priors import lookup_prior as lookup_prior
from ._priors import oracle_prior as oracle_prior
from ._priors import popularity_prior as popularity_prior
from ._priors import uniform_prior as uniform_prior
from ._shared import InBatch as InBatch
from ._shared import SharedRNS as SharedRNS
from ._shared import SharedSampler as SharedSampler
from ._shared import broadcast_pools as broadcast_pools
from ._shared import map_pools as map_pools
from ._srns import SRNS as SRNS
from ._srns import SRNSState as SRNSState
from ._static import PNS as PNS
from ._static import RNS as RNS
