"""Encoders as pure functions: users, items, images and graphs become vectors."""

from ._convolution import Convolution as Convolution
from ._encoder import Encoder as Encoder
from ._encoder import Similarity as Similarity
from ._encoder import Tables as Tables
from ._encoder import inner_scores as inner_scores
from ._gin import GIN as GIN
from ._gin_batch import GraphArrays as GraphArrays
from ._gin_batch import GraphBatch as GraphBatch
from ._graph import InteractionGraph as InteractionGraph
from ._graph import Layout as Layout
from ._lightgcn import LightGCN as LightGCN
from ._mf import MatrixFactorization as MatrixFactorization
from ._mf import normal as normal
from ._mf import xavier_normal as xavier_normal
from ._mf import xavier_uniform as xavier_uniform
from ._network import Network as Network
from ._projection import FirstFeatures as FirstFeatures
from ._projection import Projection as Projection
from ._projection import WithHead as WithHead
from ._propagation import Noise as Noise
from ._propagation import propagate as propagate
from ._propagation import propagate_mixes as propagate_mixes
from ._resnet import ResNet as ResNet
