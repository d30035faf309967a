"""Interactions of users with items: read, split, simulated. Images, texts and graphs: read.

:func:`load` takes a path, a folder, the name of a dataset, or data in memory, which
:func:`as_interactions` turns into :class:`Interactions`. :func:`columns` tells which columns are
read, and :func:`simulate` makes data whose truth is known. :func:`load_images`, :func:`load_texts`
and :func:`load_graphs` do for images, texts and graphs what :func:`load` does for interactions, and
:func:`load_captioned` does it for images with texts. What cannot be used raises :class:`DataError`.
What is used after a change is counted in a :class:`DataWarning`: nothing is dropped in silence.
"""

from ._captions import Captioned as Captioned
from ._captions import CaptionedSplit as CaptionedSplit
from ._captions_source import load_captioned as load_captioned
from ._columns import Columns as Columns
from ._datasets import DATASETS as DATASETS
from ._datasets import Dataset as Dataset
from ._download import download as download
from ._graph_memory import as_graphs as as_graphs
from ._graph_raw import NodeFeatures as NodeFeatures
from ._graph_set import Graphs as Graphs
from ._graph_simulate import simulate_graphs as simulate_graphs
from ._graph_source import load_graphs as load_graphs
from ._image_sets import IMAGE_SETS as IMAGE_SETS
from ._image_sets import ImageSet as ImageSet
from ._image_source import load_images as load_images
from ._images import Images as Images
from ._images import ImageSplit as ImageSplit
from ._interactions import Interactions as Interactions
from ._interactions import Split as Split
from ._memory import as_interactions as as_interactions
from ._outcomes import DataError as DataError
from ._outcomes import DataWarning as DataWarning
from ._readers import read as read
from ._readers import read_split as read_split
from ._shards import simulate_shards as simulate_shards
from ._source import columns as columns
from ._source import load as load
from ._splits import leave_k_out as leave_k_out
from ._splits import split_by_ratio as split_by_ratio
from ._splits import split_by_time as split_by_time
from ._splits import split_clean as split_clean
from ._splits import union as union
from ._splits import with_validation as with_validation
from ._synthetic import Simulated as Simulated
from ._synthetic import simulate as simulate
from ._text_pairs import TextPairs as TextPairs
from ._text_pairs import load_text_pairs as load_text_pairs
from ._text_source import load_texts as load_texts
from ._text_tokens import Tokens as Tokens
from ._text_vocabulary import WordPiece as WordPiece
from ._texts import Texts as Texts
from ._texts import TextSplit as TextSplit
