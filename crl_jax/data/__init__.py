"""Data: interactions, images, texts, graphs and captioned images, from files or memory.

:func:`load` reads interactions from a path, a folder, a dataset name or memory
(:func:`as_interactions`) as :class:`Interactions` or a :class:`Split`. :func:`simulate` generates
interactions with known ground truth. :func:`read_features` reads side features of users and items,
which a :class:`FeatureSchema` encodes. :func:`load_images`, :func:`load_texts`,
:func:`load_graphs` and :func:`load_captioned` read other modalities. Invalid data raise
:class:`DataError`; data that are changed are counted in a :class:`DataWarning`.
"""

from ._captions._captioned import CaptionedImages as CaptionedImages
from ._captions._captioned import CaptionedImageSplit as CaptionedImageSplit
from ._captions._load import load_captioned as load_captioned
from ._columns import Columns as Columns
from ._datasets import DATASETS as DATASETS
from ._datasets import IMAGE_SETS as IMAGE_SETS
from ._datasets import Dataset as Dataset
from ._datasets import ImageSet as ImageSet
from ._download import download as download
from ._errors import DataError as DataError
from ._errors import DataWarning as DataWarning
from ._feature_files import FeatureKind as FeatureKind
from ._feature_files import read_features as read_features
from ._features import BagColumn as BagColumn
from ._features import Combine as Combine
from ._features import Features as Features
from ._features import FeatureSchema as FeatureSchema
from ._features import FeatureTable as FeatureTable
from ._features import NumberColumn as NumberColumn
from ._from_arrays import as_interactions as as_interactions
from ._graphs._graphs import Graphs as Graphs
from ._graphs._graphs import NodeFeatures as NodeFeatures
from ._graphs._graphs import as_graphs as as_graphs
from ._graphs._readers import load_graphs as load_graphs
from ._graphs._simulate import simulate_graphs as simulate_graphs
from ._images._images import Images as Images
from ._images._images import ImageSplit as ImageSplit
from ._images._load import load_images as load_images
from ._interactions import HeldOutSplit as HeldOutSplit
from ._interactions import Interactions as Interactions
from ._interactions import Split as Split
from ._load import columns as columns
from ._load import load as load
from ._readers import read as read
from ._readers import read_split as read_split
from ._rows import DiskArray as DiskArray
from ._sequences import SequenceSplit as SequenceSplit
from ._sequences import item_sequences as item_sequences
from ._sequences import leave_one_out as leave_one_out
from ._sequences import simulate_sequences as simulate_sequences
from ._shards import simulate_shards as simulate_shards
from ._splits import ColdItemSplit as ColdItemSplit
from ._splits import hold_out_items as hold_out_items
from ._splits import k_core as k_core
from ._splits import leave_k_out as leave_k_out
from ._splits import split_by_ratio as split_by_ratio
from ._splits import split_by_time as split_by_time
from ._splits import split_top_rated as split_top_rated
from ._splits import union as union
from ._splits import with_validation as with_validation
from ._synthetic import SimulatedInteractions as SimulatedInteractions
from ._synthetic import simulate as simulate
from ._synthetic import simulate_features as simulate_features
from ._texts._load import load_texts as load_texts
from ._texts._pairs import TextPairs as TextPairs
from ._texts._pairs import load_text_pairs as load_text_pairs
from ._texts._texts import Texts as Texts
from ._texts._texts import TextSplit as TextSplit
from ._texts._wordpiece import Tokens as Tokens
from ._texts._wordpiece import WordPiece as WordPiece
