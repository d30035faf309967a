"""Vectors of users who were not there in training, from the items that they took."""

import numpy as np
from jaxtyping import Float, Float32, Int, Int64

_ROWS = 65536  # of the item table in float64 at once


class FoldIn:
    r"""Least squares of a user's row of 0 and 1 on the item vectors, for any number of users.

    With :math:`H` the item vectors less their mean and :math:`x` the user's row, 1 for an item
    taken and 0 for any other,

    .. math::
        w = (H^\top H + \lambda I)^{-1} H^\top x, \qquad
        \lambda = \text{ridge} \cdot \operatorname{tr}(H^\top H) / d .

    It is the step of alternating least squares that fits a user to fixed items, with one weight
    for all items and with an intercept, which is what taking off the mean does. :math:`\lambda`
    grows with the square of the vectors, so that their scale does not matter. One
    eigendecomposition ``[d, d]`` serves every user and every ridge.

    References:
      Hu, Koren and Volinsky, Collaborative Filtering for Implicit Feedback Datasets, 2008, Eq. 4.

    Args:
      items: Item vectors, float32 ``[n_items, dim]``.
    """

    def __init__(self, items: Float32[np.ndarray, "n_items dim"]):
        self._items = items
        self._mean = items.mean(axis=0, dtype=np.float64)
        gram = np.zeros((items.shape[1], items.shape[1]))
        for start in range(0, len(items), _ROWS):
            centred = items[start : start + _ROWS] - self._mean
            gram += centred.T @ centred
        values, self._axes = np.linalg.eigh(gram)
        self._values = np.maximum(values, 0)

    def vectors(
        self, indptr: Int64[np.ndarray, " rows"], items: Int[np.ndarray, " n"], ridge: int | float
    ) -> Float[np.ndarray, "n_users dim"]:
        """The vectors of new users.

        Args:
          indptr: User u took ``items[indptr[u]:indptr[u + 1]]``; none of these is empty.
          items: Distinct items within each user.
          ridge: Strength of the pull towards 0, >= 0.

        Returns:
          float64 ``[n_users, dim]``.
        """
        sums = np.add.reduceat(self._items[items] - self._mean, indptr[:-1], axis=0)
        scale = self._values + ridge * self._values.mean()
        # A direction in which items do not differ says nothing; without a ridge it has no inverse.
        smallest = self._values.max() * len(self._values) * np.finfo(np.float64).eps
        kept = scale > smallest
        inverse = np.where(kept, 1 / np.where(kept, scale, 1), 0)
        return (sums @ self._axes * inverse) @ self._axes.T
