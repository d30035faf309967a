"""Training tasks: an encoder, batches and a loss as pure functions.

:func:`fit_ranking` trains a recommender in one call.
"""

from ._auxiliary import AuxiliaryLoss as AuxiliaryLoss
from ._auxiliary import ContrastiveAuxiliaryLoss as ContrastiveAuxiliaryLoss
from ._auxiliary import GraphContrast as GraphContrast
from ._auxiliary import LayerContrast as LayerContrast
from ._auxiliary import SpectralContrast as SpectralContrast
from ._auxiliary import Uniformity as Uniformity
from ._auxiliary import align_positives as align_positives
from ._batch import PairBatch as PairBatch
from ._batch import UniformUserBatches as UniformUserBatches
from ._batch import count_row_reads as count_row_reads
from ._batch import host_interactions as host_interactions
from ._classification import Classification as Classification
from ._clip import CLIP as CLIP
from ._confidence import ConfidenceEM as ConfidenceEM
from ._confidence import InteractionPrior as InteractionPrior
from ._fit_ranking import RankingOptions as RankingOptions
from ._fit_ranking import RankingResult as RankingResult
from ._fit_ranking import RankingValidation as RankingValidation
from ._fit_ranking import Stopping as Stopping
from ._fit_ranking import fit_ranking as fit_ranking
from ._momentum import BYOL as BYOL
from ._momentum import BYOLState as BYOLState
from ._momentum import MoCo as MoCo
from ._momentum import MoCoState as MoCoState
from ._pcl import PCL as PCL
from ._pcl import Clustering as Clustering
from ._pcl import PCLState as PCLState
from ._ranking import HyperparamSchedule as HyperparamSchedule
from ._ranking import L2Target as L2Target
from ._ranking import Ranking as Ranking
from ._score_task import AlphaEstimator as AlphaEstimator
from ._score_task import AlphaFromLabels as AlphaFromLabels
from ._score_task import AlphaFromViews as AlphaFromViews
from ._score_task import AlphaState as AlphaState
from ._score_task import ClassMasks as ClassMasks
from ._score_task import LabelledExamples as LabelledExamples
from ._score_task import LossInputs as LossInputs
from ._score_task import ScoreTask as ScoreTask
from ._simclr import PuNCE as PuNCE
from ._simclr import SimCLR as SimCLR
from ._simclr import SupCon as SupCon
from ._simclr import SupervisedOracle as SupervisedOracle
from ._triplets import ClassPool as ClassPool
from ._triplets import ClassTriplets as ClassTriplets
from ._triplets import ResampledBatches as ResampledBatches
from ._triplets import Triplets as Triplets
from ._tune import Tuning as Tuning
from ._tune import TuningResult as TuningResult
from ._views import Augment as Augment
from ._views import TwoViewTask as TwoViewTask
from ._views import ViewBatch as ViewBatch
