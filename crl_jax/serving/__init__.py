"""What a training leaves in a user's hands: recommendations, in the ids of the data, from one file.

:class:`Recommender` holds the vectors of users and items, how they make scores, the ids, and what
every user has. It recommends to users of the training and to new ones, finds similar users and
items, and hands its vectors to other tools. The page ``README.md`` of this package shows its use.
"""

from ._recommender import Recommender as Recommender
from ._results import Neighbours as Neighbours
from ._results import Recommendations as Recommendations
