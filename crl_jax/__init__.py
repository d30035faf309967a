"""Debiased contrastive and pairwise learning on positive-unlabelled data, in JAX.

Losses and weights are pure functions of scores; samplers and metrics are pure functions of
arrays; encoders turn parameters into vectors. :mod:`crl_jax.tasks` puts them together, and
:mod:`crl_jax.train` trains any such task. Importing this package runs nothing on a device.
"""

from . import augment as augment
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
from ._pytree import pytree_dataclass as pytree_dataclass

__version__ = "0.1.0"
