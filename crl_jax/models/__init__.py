"""Encoders as Flax NNX modules, and the way to use them as pure functions."""

from ._encoder import Encoder as Encoder
from ._encoder import RowEncoder as RowEncoder
from ._encoder import Tables as Tables
from ._encoder import inner_scores as inner_scores
from ._functional import Functional as Functional
from ._functional import Recommender as Recommender
from ._functional import RowScores as RowScores
from ._functional import SharedScores as SharedScores
from ._functional import functional as functional
from ._mf import MatrixFactorization as MatrixFactorization
