"""Side features of users and items: raw columns by id, and their encoding as arrays."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float64, Int64, Shaped
from numpy.typing import ArrayLike

from .._checks import check_choice, check_count, check_shape
from .._pytree import STATIC, pytree_dataclass
from . import _ids
from ._errors import DataError, shorten, warn_if

Combine = Literal["sum", "mean"]
"""Combination of the categories of one bag."""
Bag = tuple[str, ...]
_REAL = (int, float, np.integer, np.floating, np.bool_)


@pytree_dataclass(eq=False)
class Features:
    """Encoded side features of n users or items; a pytree.

    Attributes:
      dense: Standardised numbers, float32 ``[n, n_dense]``; 0 for missing ones.
      categories: Categories of the bags of all columns, int32 ``[n, width]`` in
        ``[0, n_categories)``; -1 for padding.
      weights: Weight of each category, float32 ``[n, width]``: 1 for sums, 1 / (size of the bag)
        for means.
      n_categories: Number of categories of all columns. Static.
    """

    dense: Any
    categories: Any
    weights: Any
    n_categories: int = field(metadata=STATIC)

    @property
    def n_dense(self) -> int:
        """Number of dense features."""
        return self.dense.shape[1]

    def __len__(self) -> int:
        return len(self.dense)


@dataclass(frozen=True, eq=False, repr=False)
class FeatureTable:
    """Raw side features of users or items by id, on the host.

    Construct it by :meth:`from_columns` or :func:`read_features`.

    Attributes:
      ids: Distinct original ids ``[n]``: int64 if every id is an integer, else text.
      numbers: Numeric columns by name, float64 ``[n]``; NaN for missing values.
      bags: Categorical columns by name: a tuple of categories for each id, empty if missing.
      origin: Source, for messages.
    """

    ids: Shaped[np.ndarray, " n"]
    numbers: Mapping[str, Float64[np.ndarray, " n"]]
    bags: Mapping[str, Sequence[Bag]]
    origin: str

    @classmethod
    def from_columns(
        cls, ids: ArrayLike, columns: Mapping[str, Any], *, origin: str = "`columns`"
    ) -> "FeatureTable":
        """Creates a table from columns in memory.

        Args:
          ids: Original ids ``[n]``, integers or text.
          columns: Columns by name. Numbers ``[n]`` are numeric, text is one category per id, and
            lists of text are several per id. None, NaN and ``""`` are missing values.
          origin: Source, for messages.

        Raises:
          ValueError: If an id is repeated, or a column has another length or type, or a number is
            infinite.

        >>> films = FeatureTable.from_columns(
        ...     [7, 3], {"year": [1995, 2001], "genre": [["comedy", "drama"], ["drama"]]}
        ... )
        >>> films
        FeatureTable(2 ids; numbers: year; bags: genre)
        """
        try:
            row_ids = _ids.encode_distinct(ids, "ids")
        except ValueError as error:
            raise DataError(f"{origin}: {error}") from None
        numbers: dict[str, np.ndarray] = {}
        bags: dict[str, list[Bag]] = {}
        if not isinstance(columns, Mapping):
            raise DataError(f"{origin}: expected columns by name, got {type(columns).__name__}.")
        for name, values in columns.items():
            if isinstance(values, str) or len(values) != len(row_ids):
                got = repr(shorten(values)) if isinstance(values, str) else str(len(values))
                raise DataError(f"{origin}: expected {len(row_ids)} values of {name!r}, got {got}.")
            if (column := _as_numbers(values)) is not None:
                check_shape(name, column, (len(row_ids),))
                if np.isinf(column).any():
                    raise DataError(f"{origin}: expected finite numbers of {name!r}, got infinity.")
                numbers[name] = column
            else:
                bags[name] = [_as_bag(origin, name, value) for value in values]
        return cls(row_ids, numbers, bags, origin)

    def rows(self, ids: Any) -> Int64[np.ndarray, " n_ids"]:
        """Returns the row of each id; 196 and "196" are the same id.

        Raises:
          DataError: If an id has no row.
        """
        wanted = np.asarray(ids).ravel().tolist()
        indices = [self._row_by_id.get(str(name), -1) for name in wanted]
        rows = np.array(indices, np.int64)
        if missing := int(np.sum(rows < 0)):
            first = wanted[int(np.argmax(rows < 0))]
            examples = ", ".join(str(name) for name in self.ids[:3].tolist())
            raise DataError(
                f"{self.origin}: expected a row for each of {len(wanted)} ids, got none for "
                f"{missing} of them, such as {first!r}; the first ids of the table are {examples}."
            )
        return rows

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        kinds = {"numbers": self.numbers, "bags": self.bags}
        listed = [f"; {kind}: {', '.join(names)}" for kind, names in kinds.items() if names]
        return f"FeatureTable({len(self)} ids{''.join(listed)})"

    @cached_property
    def _row_by_id(self) -> dict[str, int]:
        return {str(name): row for row, name in enumerate(self.ids.tolist())}


@dataclass(frozen=True)
class NumberColumn:
    """Numeric column and its statistics: ``(x - mean) / deviation`` is the dense feature."""

    name: str
    mean: float
    deviation: float


@dataclass(frozen=True)
class BagColumn:
    """Categorical column and its categories, in the order of their embeddings."""

    name: str
    vocabulary: tuple[str, ...]


@dataclass(frozen=True)
class FeatureSchema:
    """Encoding of a :class:`FeatureTable` with the statistics of training rows.

    Construct it by :meth:`fit` or :meth:`from_dict`.

    Attributes:
      numbers: Numeric columns.
      bags: Categorical columns.
      combine: Combination of the categories of a bag: ``"sum"`` or ``"mean"``.

    >>> films = FeatureTable.from_columns(
    ...     [7, 3, 5], {"year": [1990, 2000, 2020], "genre": [["comedy", "drama"], ["drama"], []]}
    ... )
    >>> schema = FeatureSchema.fit(films, [7, 3], min_count=1)  # 5 is not a training item
    >>> features = schema.transform(films, [3, 5])
    >>> print(features.dense.ravel(), features.categories.ravel())
    [1. 5.] [ 1 -1]
    """

    numbers: tuple[NumberColumn, ...]
    bags: tuple[BagColumn, ...]
    combine: Combine = "mean"

    def __post_init__(self) -> None:
        check_choice("combine", self.combine, get_args(Combine))

    @classmethod
    def fit(
        cls, table: FeatureTable, ids: Any = None, *, min_count: int = 2, combine: Combine = "mean"
    ) -> "FeatureSchema":
        """Computes the means, deviations and vocabularies of training rows.

        Args:
          table: Raw features.
          ids: Ids of the training rows; by default all rows.
          min_count: Number of training rows that a category must occur in; others are omitted, as
            their embeddings would be ids in disguise. At least 1.
          combine: See the attributes.

        Returns:
          The schema, without columns that are constant or entirely missing. Numbers whose deviation
          is too small for float64 are constant.

        Raises:
          ValueError: If an argument is out of range, an id has no row, or no feature remains.
        """
        check_count("min_count", min_count)
        rows = np.arange(len(table)) if ids is None else table.rows(ids)
        numbers = []
        for name, column in table.numbers.items():
            values = column[rows]
            values = values[~np.isnan(values)]
            if not len(values):
                continue
            # Squares of large or tiny numbers leave float64; division by a power of two is exact.
            _, exponent = np.frexp(np.abs(values).max())
            unit = np.ldexp(values, 1 - exponent)
            mean, deviation = (float(np.ldexp(f(unit), exponent - 1)) for f in (np.mean, np.std))
            if deviation > 0:
                numbers.append(NumberColumn(name, mean, deviation))
        bags = []
        for name, column in table.bags.items():
            counts = Counter(x for row in rows.tolist() for x in set(column[row]))
            vocabulary = sorted(x for x, count in counts.items() if count >= min_count)
            if vocabulary:
                bags.append(BagColumn(name, tuple(vocabulary)))
        if not numbers and not bags:
            raise DataError(
                f"{table.origin}: expected a number that varies or a category of at least "
                f"`min_count` = {min_count} of {len(rows)} rows, got none."
            )
        return cls(tuple(numbers), tuple(bags), combine)

    @property
    def n_dense(self) -> int:
        """Number of dense features."""
        return len(self.numbers)

    @property
    def n_categories(self) -> int:
        """Number of categories of all columns."""
        return sum(len(column.vocabulary) for column in self.bags)

    def transform(self, table: FeatureTable, ids: Any = None) -> Features:
        """Encodes rows of a table.

        A missing number becomes 0, the mean. Repeated categories of a bag count once, and
        categories outside the vocabulary are omitted; rows that have no feature left are counted
        in a :class:`DataWarning`.

        Args:
          table: Raw features with the columns of the schema.
          ids: Ids of the rows, in the order of the result; by default all rows.

        Raises:
          DataError: If a column is missing, an id has no row, or a standardised number exceeds
            float32.
        """
        rows = np.arange(len(table)) if ids is None else table.rows(ids)
        for kind, columns in (("numbers", self.numbers), ("bags", self.bags)):
            for column in columns:
                if column.name not in getattr(table, kind):
                    available = [*table.numbers, *table.bags]
                    raise DataError(
                        f"{table.origin}: expected {column.name!r} among the {kind}, "
                        f"got the columns {available}."
                    )
        dense = np.zeros((len(rows), self.n_dense), np.float32)
        for index, column in enumerate(self.numbers):
            raw = table.numbers[column.name][rows]
            with np.errstate(over="ignore"):  # reported as infinite
                dense[:, index] = (raw - column.mean) / column.deviation
            if (is_infinite := np.isinf(dense[:, index])).any():
                row = int(np.argmax(is_infinite))
                raise DataError(
                    f"{table.origin}: expected {column.name!r} near its mean {column.mean:g} in "
                    f"training (deviation {column.deviation:g}), got {raw[row]:g} for the id "
                    f"{table.ids[rows[row]]}."
                )
        is_missing = np.isnan(dense)
        codes: list[list[int]] = [[] for _ in rows]
        weights: list[list[float]] = [[] for _ in rows]
        start = 0
        for column in self.bags:
            code_by_category = {name: start + code for code, name in enumerate(column.vocabulary)}
            for index, row in enumerate(rows.tolist()):
                bag = dict.fromkeys(table.bags[column.name][row])
                own = [code_by_category[name] for name in bag if name in code_by_category]
                codes[index] += own
                size = len(own) if self.combine == "mean" else 1
                weights[index] += [1 / size for _ in own]
            start += len(code_by_category)
        sizes = np.array([len(own) for own in codes], np.int64)
        width = int(sizes.max(initial=0))
        n_empty = int(np.sum((sizes == 0) & is_missing.all(axis=1)))  # also without numbers
        warn_if(n_empty, "{n} rows have no known feature", origin=table.origin)
        filled = np.arange(width) < sizes[:, None]
        categories = np.full((len(rows), width), -1, np.int32)
        scale = np.zeros((len(rows), width), np.float32)
        categories[filled] = [code for own in codes for code in own]
        scale[filled] = [weight for own in weights for weight in own]
        return Features(np.where(is_missing, 0, dense), categories, scale, self.n_categories)

    def to_dict(self) -> dict[str, Any]:
        """Returns the schema as plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "FeatureSchema":
        """Creates the schema from the result of :meth:`to_dict`.

        Raises:
          ValueError, TypeError, KeyError: If ``stored`` is another object.
        """
        numbers = tuple(NumberColumn(**column) for column in stored["numbers"])
        for column in numbers:
            if not (math.isfinite(column.mean) and 0 < column.deviation < math.inf):
                raise ValueError(
                    f"`stored` must have finite means and positive deviations, got {column}."
                )
        bags = tuple(BagColumn(x["name"], tuple(x["vocabulary"])) for x in stored["bags"])
        if any(isinstance(x["vocabulary"], str) for x in stored["bags"]):
            raise ValueError("`stored` must have lists of categories, got text.")
        return cls(numbers, bags, stored["combine"])


def _as_numbers(values: Any) -> np.ndarray | None:
    """Returns float64, NaN for missing values; None if another value is not a real number."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iufb":
        if not all(x is None or isinstance(x, _REAL) for x in values):
            return None
        values = [np.nan if x is None else x for x in values]
    try:
        return np.asarray(values, np.float64)
    except OverflowError:  # an integer beyond float64
        return np.full(len(values), np.inf)


def _as_bag(origin: str, name: str, value: Any) -> Bag:
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return ()
    if isinstance(value, str):
        return (value,) * (value != "")
    bag: tuple[Any, ...] = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(category, str) for category in bag):
        raise DataError(
            f"{origin}: expected numbers, text or lists of text as {name!r}, got {shorten(value)}."
        )
    return bag
