"""Debiased contrastive and pairwise learning on positive-unlabelled data, in JAX.

Losses and weights are pure functions of scores, samplers and metrics pure functions of arrays,
and encoders compute embeddings from parameters. :mod:`crl_jax.tasks` combines them into training
tasks, and :mod:`crl_jax.train` trains any task. Importing this package runs no device code.
"""

from . import augment as augment
from . import baselines as baselines
from . import data as data
from . import losses as losses
from . import metrics as metrics
from . import models as models
from . import samplers as samplers
from . import serving as serving
from . import stats as stats
from . import tasks as tasks
from . import train as train
from . import weights as weights
from ._hyperparams import Range as Range
from ._introspection import Hyperparam as Hyperparam
from ._introspection import hyperparams as hyperparams
from ._introspection import summary as summary
from ._pytree import pytree_dataclass as pytree_dataclass

__version__ = "0.2.0"
