"""Training: a pure step, an epoch as its scan, many runs as its ``vmap``."""

from ._checkpoint import load_checkpoint as load_checkpoint
from ._checkpoint import save_checkpoint as save_checkpoint
from ._credence import Credence as Credence
from ._epoch import Anchors as Anchors
from ._epoch import EpochState as EpochState
from ._epoch import Step as Step
from ._epoch import run_epoch as run_epoch
from ._fingerprint import computation_hash as computation_hash
from ._fit import Fitted as Fitted
from ._fit import TrainingDiverged as TrainingDiverged
from ._fit import TrainState as TrainState
from ._fit import fit as fit
from ._optimizers import KnobSchedule as KnobSchedule
from ._optimizers import Optimizer as Optimizer
from ._optimizers import Schedule as Schedule
from ._optimizers import adam_l2 as adam_l2
from ._optimizers import adamw as adamw
from ._optimizers import constant as constant
from ._optimizers import cosine as cosine
from ._optimizers import halfway as halfway
from ._optimizers import sgd_l2 as sgd_l2
from ._sweep import Choice as Choice
from ._sweep import choose as choose
from ._sweep import grid as grid
