"""EASE: ridge regression of each item on all others, or on its neighbours, in closed form."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float, Float32
from scipy import linalg, sparse

from .._hyperparams import Range
from ._baseline import Arrays, Baseline, Histories, Scorer, Vectors, dense
from ._neighbours import ItemKNN, SparseItemModel

MAX_SIDE = 32_768
"""Greatest side of the inverted matrix, which takes 4 GB in float32."""
_MAX_PAIRS = 2**31
"""Greatest number of pairs of items that users have both: 16 GB at most, often a tenth."""
_STRIP = 512
"""Number of rows that are mirrored or summed at a time."""
_EXACT_SIDE = 8_192
"""Greatest side that is inverted in float64."""
_LEAST_L2 = 1e-3
"""Least penalty by which the differences from 1 of the form by users may be divided in float32."""


@dataclass(frozen=True)
class EASE(Baseline):
    r"""Linear item model without self-similarity, in closed form.

    .. math::
        s_u = x_u B, \qquad \min_B \|X - XB\|_F^2 + \lambda \|B\|_F^2
        \ \text{s.t.}\ \operatorname{diag}(B) = 0 ,

    solved by :math:`B_{ij} = -P_{ij} / P_{jj}` for :math:`i \ne j`, with
    :math:`P = (X^\top X + \lambda I)^{-1}`.

    With fewer users than items, the inverse is that of the users' matrix, by
    :math:`P = (I - X^\top (X X^\top + \lambda I)^{-1} X) / \lambda`, and B is never formed.

    Time: :math:`O(m^3)`, memory: :math:`O(m^2)`, with m the smaller number of users and items;
    measured on one core: 5 s and 0.5 GB for m = 6,000.

    Attributes:
      l2: Penalty λ.

    Raises:
      ValueError: When fitted, if there are more than 32,768 users and items.

    References:
      Steck, `Embarrassingly Shallow Autoencoders for Sparse Data
      <https://arxiv.org/abs/1905.03375>`_, 2019.
    """

    l2: Annotated[float, Range(0.0, low_open=True, high_open=True)] = 300.0

    def arrays(self, rows: Histories) -> Arrays:
        """See :meth:`Baseline.arrays`."""
        shape: Any = rows.shape
        n_users, n_items = shape
        if min(n_users, n_items) > MAX_SIDE:
            raise ValueError(
                f"`train` must have at most {MAX_SIDE:,} users or items for EASE, got "
                f"{n_users:,} and {n_items:,}: use SparseEASE or RP3beta, or keep the items "
                "with many interactions (`data.k_core`)."
            )
        if n_items > n_users and (self.l2 >= _LEAST_L2 or n_items > MAX_SIDE):
            return {"inverse": _inverse(rows @ rows.T, self.l2).astype(np.float32, copy=False)}
        weights = _inverse(rows.T @ rows, self.l2)
        weights /= -np.diag(weights)
        np.fill_diagonal(weights, 0)
        return {"weights": weights.astype(np.float32, copy=False)}

    def scorer(self, rows: Histories, arrays: Arrays) -> Scorer:
        """See :meth:`Baseline.scorer`."""
        if "weights" in arrays:
            weights = arrays["weights"]
            return lambda histories: dense(histories @ weights)
        return _user_gram_scorer(rows, arrays["inverse"], self.l2)

    def vectors(self, rows: Histories, arrays: Arrays) -> Vectors:
        """See :meth:`Baseline.vectors`; of as many dimensions as there are users or items."""
        if "weights" in arrays:
            return rows.toarray(), np.ascontiguousarray(arrays["weights"].T)
        # Without B, each user is a dimension.
        scores = self.scorer(rows, arrays)(rows)
        return np.eye(len(scores), dtype=np.float32), np.ascontiguousarray(scores.T)


@dataclass(frozen=True)
class SparseEASE(SparseItemModel):
    r"""EASE of large catalogues: ridge regression of each item on its K nearest neighbours.

    .. math::
        s_u = x_u B, \qquad \min_B \|X - XB\|_F^2 + \lambda \|B\|_F^2
        \ \text{s.t.}\ B_{ij} = 0 \text{ unless } i \in N_K(j) ,

    with the neighbours :math:`N_K(j)` of :class:`ItemKNN`. Equals :class:`EASE` if all items
    are neighbours of each other.

    Time: O(K³) per item; memory: an entry for each pair of items that a user has both; measured on
    one core: 99 s and 1.2 GB for 810,128 interactions with 40,981 items (Gowalla).

    Attributes:
      l2: Penalty λ.
      n_neighbours: Number K of neighbours.

    Raises:
      ValueError: When fitted, if users have more than 2³¹ pairs of items.

    References:
      Ning and Karypis, `SLIM: Sparse Linear Methods for Top-N Recommender Systems
      <https://doi.org/10.1109/ICDM.2011.134>`_, 2011 (as fsSLIM, which selects by cosines, with an
      L1 penalty and without negative weights).
    """

    l2: Annotated[float, Range(0.0, low_open=True, high_open=True)] = 300.0
    n_neighbours: Annotated[int, Range(1)] = 200

    def weights(self, rows: Histories) -> sparse.csr_array:
        """Returns the matrix, float32 ``[n_items, n_items]``; rows are items of the history."""
        n_items = np.shape(rows)[1]
        n_pairs = min(int((np.diff(rows.indptr).astype(np.int64) ** 2).sum()), n_items**2)
        if n_pairs > _MAX_PAIRS:
            raise ValueError(
                f"`train` must have at most {_MAX_PAIRS:,} pairs of items of a user for "
                f"SparseEASE, got {n_pairs:,}: use ItemKNN or IALS, or keep the items with many "
                "interactions (`data.k_core`)."
            )
        near = ItemKNN(self.n_neighbours).weights(rows).T.tocsr()
        gram: Any = (rows.T @ rows).tocsr()
        for item, (start, stop) in enumerate(pairwise(near.indptr)):
            own = np.concatenate([[item], near.indices[start:stop]])
            part = gram[own[:, None], own].toarray().astype(np.float64)
            part[np.diag_indices_from(part)] += self.l2
            near.data[start:stop] = np.linalg.solve(part[1:, 1:], part[1:, 0])
        return near.T.tocsr()


def _user_gram_scorer(
    rows: Histories, inverse: Float32[np.ndarray, "side side"], l2: float
) -> Scorer:
    """Returns the scores by the matrix of the users."""
    by_item: Any = rows.T.tocsr()
    strips = (by_item[start : start + _STRIP] for start in range(0, by_item.shape[0], _STRIP))
    # diag(Xᵀ K X): the sum over pairs of users of an item.
    leverage = np.concatenate([(strip @ inverse * strip.toarray()).sum(axis=1) for strip in strips])
    diagonal = (1 - leverage) / l2

    def scores(histories: Histories) -> Float32[np.ndarray, "n n_items"]:
        x = histories.toarray()
        smoothed = dense((histories @ by_item) @ inverse) @ rows
        return dense(x - (x - smoothed) / l2 / diagonal)

    return scores


def _inverse(gram: Any, l2: float) -> Float[np.ndarray, "side side"]:
    """Inverts a sparse Gram matrix plus a multiple of the identity, in place."""
    dtype = np.float64 if gram.shape[0] <= _EXACT_SIDE else np.float32
    matrix = gram.astype(dtype).toarray()
    matrix[np.diag_indices_from(matrix)] += l2
    factor, inverse = linalg.lapack.get_lapack_funcs(("potrf", "potri"), (matrix,))
    # The transpose is in Fortran's order, which LAPACK overwrites without a copy.
    cholesky, _ = factor(matrix.T, lower=False, overwrite_a=True, clean=False)
    upper, _ = inverse(cholesky, lower=False, overwrite_c=True)
    # The lower triangle in strips, without a second matrix or its indices.
    for start in range(0, len(upper), _STRIP):
        strip = slice(start, start + _STRIP)
        upper[strip, :start] = upper[:start, strip].T
        square = upper[strip, strip]
        below = np.tril_indices_from(square, -1)
        square[below] = square.T[below]
    return upper.T  # in C order: a sparse factor copies a matrix in Fortran's order
