"""What is trained: an encoder, batches and a loss, put together as pure functions.

:func:`fit_ranking` trains a recommender in one call.
"""

from ._alpha import AlphaByLabels as AlphaByLabels
from ._alpha import AlphaByViews as AlphaByViews
from ._alpha import RunningAlpha as RunningAlpha
from ._augment import Augment as Augment
from ._by_class import ClassPool as ClassPool
from ._by_class import ClassTriplets as ClassTriplets
from ._by_class import DrawnBatches as DrawnBatches
from ._by_class import Triplets as Triplets
from ._byol import BYOL as BYOL
from ._byol import Bootstrap as Bootstrap
from ._classification import Classification as Classification
from ._confidence import Confidence as Confidence
from ._contrast import Contrast as Contrast
from ._contrast import GraphViews as GraphViews
from ._contrast import LayerViews as LayerViews
from ._contrast import SpectralViews as SpectralViews
from ._draw import Interacted as Interacted
from ._draw import UserBatches as UserBatches
from ._draw import count_rows as count_rows
from ._draw import host_interactions as host_interactions
from ._fit_ranking import FittedRanking as FittedRanking
from ._fit_ranking import fit_ranking as fit_ranking
from ._kmeans import Clustering as Clustering
from ._labels import Labelled as Labelled
from ._labels import SameClass as SameClass
from ._labels import Scores as Scores
from ._momentum import Momentum as Momentum
from ._momentum import MomentumViews as MomentumViews
from ._positive_unlabelled import PositiveUnlabelledViews as PositiveUnlabelledViews
from ._prototypes import ProtoNCE as ProtoNCE
from ._prototypes import Prototypes as Prototypes
from ._ranking import HyperparamSchedule as HyperparamSchedule
from ._ranking import L2On as L2On
from ._ranking import Ranking as Ranking
from ._ranking_quality import RankingQuality as RankingQuality
from ._scored import ScoreTask as ScoreTask
from ._scored import WithAlpha as WithAlpha
from ._supervised import OracleViews as OracleViews
from ._supervised import SupervisedViews as SupervisedViews
from ._term import Term as Term
from ._towers import Towers as Towers
from ._uniformity import Uniformity as Uniformity
from ._uniformity import align_positives as align_positives
from ._views import TwoViews as TwoViews
from ._views import Views as Views
from ._views import ViewTask as ViewTask
