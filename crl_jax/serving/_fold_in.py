"""Fold-in of new users from their items."""

import numpy as np
from jaxtyping import Float, Float32, Int, Int64

_ROWS = 65536  # item rows converted to float64 at a time


class FoldIn:
    r"""Ridge regression of binary user rows on centred item vectors.

    With :math:`H` the centred item vectors and :math:`x` the user's binary row (1 for items of the
    user, 0 for all others),

    .. math::
        w = (H^\top H + \lambda I)^{-1} H^\top x, \qquad
        \lambda = \text{ridge} \cdot \operatorname{tr}(H^\top H) / d .

    This is the user step of alternating least squares with equal confidences and an intercept
    (the centring). :math:`\lambda` scales with the squared vectors, so the solution is invariant
    to their scale. One eigendecomposition ``[d, d]`` serves all users and ridges.

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
        """Returns vectors of new users, float64 ``[n_users, dim]``.

        Args:
          indptr: CSR offsets of the users, none of whom is empty.
          items: Item indices, distinct within each user.
          ridge: Penalty strength, >= 0.
        """
        sums = np.add.reduceat(self._items[items] - self._mean, indptr[:-1], axis=0)
        scale = self._values + ridge * self._values.mean()
        # Directions without variance carry no information and, without a ridge, have no inverse.
        smallest = self._values.max() * len(self._values) * np.finfo(np.float64).eps
        kept = scale > smallest
        inverse = np.where(kept, 1 / np.where(kept, scale, 1), 0)
        return (sums @ self._axes * inverse) @ self._axes.T
