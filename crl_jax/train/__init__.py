"""The engine: trains any task, one run or many at once, on one device or several.

It knows no users, items, images or words. A :class:`Task` says what a batch and its loss are;
:func:`fit` does the rest. The tasks of this library are in :mod:`crl_jax.tasks`.
"""

from .._checks import check_count as check_count
from . import rows as rows
from ._batches import ArrayBatches as ArrayBatches
from ._batches import HostBatches as HostBatches
from ._batches import local_batch_size as local_batch_size
from ._callbacks import Callback as Callback
from ._callbacks import Checkpoint as Checkpoint
from ._callbacks import Loop as Loop
from ._callbacks import Progress as Progress
from ._checkpoint import load_checkpoint as load_checkpoint
from ._checkpoint import save_checkpoint as save_checkpoint
from ._compiled import Runs as Runs
from ._compiled import initial_state as initial_state
from ._fingerprint import computation_hash as computation_hash
from ._hooks import Best as Best
from ._hooks import Hook as Hook
from ._hooks import KeepBest as KeepBest
from ._hooks import KeepLast as KeepLast
from ._hooks import Report as Report
from ._hooks import Validate as Validate
from ._jit import jit as jit
from ._loop import Fitted as Fitted
from ._loop import TrainingDiverged as TrainingDiverged
from ._loop import fit as fit
from ._numbers import settle_runs as settle_runs
from ._optimizers import AnyOptimizer as AnyOptimizer
from ._optimizers import Fixed as Fixed
from ._optimizers import Optimizer as Optimizer
from ._optimizers import RowOptimizer as RowOptimizer
from ._optimizers import RowRule as RowRule
from ._optimizers import Rule as Rule
from ._optimizers import Schedule as Schedule
from ._optimizers import Scheduled as Scheduled
from ._optimizers import Updates as Updates
from ._optimizers import adagrad_l2 as adagrad_l2
from ._optimizers import adam_l2 as adam_l2
from ._optimizers import adamw as adamw
from ._optimizers import constant as constant
from ._optimizers import cosine as cosine
from ._optimizers import lars as lars
from ._optimizers import linear as linear
from ._optimizers import rows_pay as rows_pay
from ._optimizers import rowwise_adagrad_l2 as rowwise_adagrad_l2
from ._optimizers import sgd_l2 as sgd_l2
from ._optimizers import step_decay as step_decay
from ._shared_checkpoint import SharedCheckpoint as SharedCheckpoint
from ._steps import StepPlan as StepPlan
from ._steps import Steps as Steps
from ._steps import run_steps as run_steps
from ._sweep import Choice as Choice
from ._sweep import choose as choose
from ._sweep import grid as grid
from ._task import Examples as Examples
from ._task import Moment as Moment
from ._task import RowTask as RowTask
from ._task import State as State
from ._task import Task as Task
from ._task import stream as stream
