"""Draws of items and orders, pure functions of a key that run inside a compiled epoch."""

from ._permutation import permute as permute
from ._positives import Positives as Positives
from ._positives import sample_seen as sample_seen
from ._positives import sample_unseen as sample_unseen
