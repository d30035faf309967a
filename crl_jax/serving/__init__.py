"""Serving of trained recommenders from a single file, in the ids of the dataset.

:class:`Recommender` holds user and item vectors, the similarity that scores them, the ids and the
known interactions. It recommends items to trained and new users, scores user-item pairs, finds
similar users and items, and exports its vectors; with a :class:`FeatureModel` it also serves users
and items that were not in training, from their side features. :class:`BaselineRecommender` serves a
fitted baseline of :mod:`crl_jax.baselines` in the same way. :func:`export_top_k` exports the search
of the top-k items as a JAX function; :func:`push_to_hub` and :func:`from_hub` share a recommender
with its model card.
"""

from ._baseline import BaselineRecommender as BaselineRecommender
from ._baseline import load as load
from ._export_top_k import export_top_k as export_top_k
from ._feature_model import FeatureModel as FeatureModel
from ._hub import from_hub as from_hub
from ._hub import push_to_hub as push_to_hub
from ._hub import save_for_hub as save_for_hub
from ._recommender import Recommender as Recommender
from ._results import Neighbours as Neighbours
from ._results import Recommendations as Recommendations
