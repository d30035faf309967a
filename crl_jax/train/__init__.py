"""Training engine: trains any :class:`Task`, in one run or many, on one device or several.

A task defines the parameters, batches and loss; :func:`fit` trains it. The engine is independent of
the domain; the tasks of this library are in :mod:`crl_jax.tasks`.
"""

from .._checks import check_count as check_count
from . import rows as rows
from ._batches import ArrayBatches as ArrayBatches
from ._batches import HostBatches as HostBatches
from ._batches import local_batch_size as local_batch_size
from ._checkpoint import Checkpoint as Checkpoint
from ._checkpoint import SharedCheckpoint as SharedCheckpoint
from ._checkpoint import load_checkpoint as load_checkpoint
from ._checkpoint import save_checkpoint as save_checkpoint
from ._epoch import RunStates as RunStates
from ._epoch import initial_state as initial_state
from ._fingerprint import computation_hash as computation_hash
from ._fit import FitResult as FitResult
from ._fit import TrainingDiverged as TrainingDiverged
from ._fit import broadcast_run_params as broadcast_run_params
from ._fit import fit as fit
from ._hooks import BestState as BestState
from ._hooks import Callback as Callback
from ._hooks import EarlyStopping as EarlyStopping
from ._hooks import EpochReport as EpochReport
from ._hooks import FinalValue as FinalValue
from ._hooks import Hook as Hook
from ._hooks import Progress as Progress
from ._hooks import TrainingLoop as TrainingLoop
from ._hooks import ValidationMetrics as ValidationMetrics
from ._jit import jit as jit
from ._jit import set_compiler_options as set_compiler_options
from ._optimizers import AnyOptimizer as AnyOptimizer
from ._optimizers import OptaxOptimizer as OptaxOptimizer
from ._optimizers import Optimizer as Optimizer
from ._optimizers import RowOptimizer as RowOptimizer
from ._optimizers import RowRule as RowRule
from ._optimizers import Rule as Rule
from ._optimizers import Schedule as Schedule
from ._optimizers import ScheduledOptimizer as ScheduledOptimizer
from ._optimizers import Updates as Updates
from ._optimizers import adagrad_l2 as adagrad_l2
from ._optimizers import adam_l2 as adam_l2
from ._optimizers import adamw as adamw
from ._optimizers import constant as constant
from ._optimizers import cosine as cosine
from ._optimizers import lars as lars
from ._optimizers import linear as linear
from ._optimizers import prefer_row_updates as prefer_row_updates
from ._optimizers import rowwise_adagrad_l2 as rowwise_adagrad_l2
from ._optimizers import sgd_l2 as sgd_l2
from ._optimizers import step_decay as step_decay
from ._scan import Steps as Steps
from ._scan import TrainConfig as TrainConfig
from ._scan import run_steps as run_steps
from ._sweep import Selection as Selection
from ._sweep import grid as grid
from ._sweep import select_best as select_best
from ._task import Batch as Batch
from ._task import LossOutput as LossOutput
from ._task import RowTask as RowTask
from ._task import State as State
from ._task import StepContext as StepContext
from ._task import Task as Task
from ._task import stream as stream
