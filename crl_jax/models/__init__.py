"""Encoders as Flax NNX modules, and the way to use them as pure functions."""

from ._functional import Functional as Functional
from ._functional import Recommender as Recommender
from ._functional import RowScores as RowScores
from ._functional import SharedScores as SharedScores
from ._functional import functional as functional
from ._mf import MatrixFactorization as MatrixFactorization
