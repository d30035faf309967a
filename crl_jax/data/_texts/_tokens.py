"""Texts as arrays: what an encoder of texts takes."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

Array = jax.Array | np.ndarray


class Tokens(NamedTuple):
    """Numbers of tokens, filled up to one length.

    A pytree of two arrays, so that batches, augmentations and blocks carry it as they carry any
    other data. An example of it has ``[length]`` in place of ``[n, length]``.

    Attributes:
      ids: Places in the vocabulary, int32 ``[n, length]``.
      mask: Which of them are tokens; False for what only fills up, bool ``[n, length]``.
    """

    ids: Int[Array, "n length"]
    mask: Bool[Array, "n length"]
