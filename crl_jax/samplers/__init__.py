"""Draws of items and orders, pure functions of a key that run inside a compiled epoch.

Negative samplers are pytrees with the one call ``sampler(key, batch, state) -> (ids, state)``; see
:class:`Sampler`.
"""

from .._permutation import permute as permute
from ._batch import Batch as Batch
from ._batch import Sampler as Sampler
from ._bayesian import BNS as BNS
from ._bayesian import Staged as Staged
from ._criteria import informativeness as informativeness
from ._criteria import sampling_risk as sampling_risk
from ._criteria import unbiasedness as unbiasedness
from ._dynamic import AOBPR as AOBPR
from ._dynamic import DNS as DNS
from ._mixed import Mixed as Mixed
from ._positives import Positives as Positives
from ._positives import below as below
from ._positives import sample_seen as sample_seen
from ._positives import sample_unseen as sample_unseen
from ._priors import Prior as Prior
from ._priors import as_prior as as_prior
from ._priors import group_prior as group_prior
from ._priors import oracle_prior as oracle_prior
from ._priors import popularity_prior as popularity_prior
from ._priors import prior_of as prior_of
from ._priors import uniform_prior as uniform_prior
from ._runs import by_run as by_run
from ._runs import spread as spread
from ._shared import InBatch as InBatch
from ._shared import Shared as Shared
from ._shared import SharedRNS as SharedRNS
from ._srns import SRNS as SRNS
from ._srns import SRNSState as SRNSState
from ._static import PNS as PNS
from ._static import RNS as RNS
