"""Rating sets of TensorFlow Datasets, by name."""

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from . import _ids
from ._columns import Found, Requested, find_columns
from ._delimited import parse_ratings, parse_times
from ._errors import DataError
from ._records import Collector, Records


def read_tfds(name: str, requested: Requested) -> Records:
    """Reads the split "train" (MovieLens has no other) of a TensorFlow dataset.

    Args:
      name: As ``tensorflow_datasets.load`` takes it, such as ``movielens/100k-ratings``.
      requested: Feature names; by default ``user_id``, ``movie_id`` and the like.

    Raises:
      ImportError: If TensorFlow Datasets is not installed.
      DataError: If a feature is absent, an id is invalid or a number is not finite.
    """
    origin = f"tfds:{name}"
    features: tuple[str, ...] = ()
    columns: tuple[int | None, ...] = ()
    fields: list[list[str]] = [[], [], [], []]
    for example in _examples(name):
        if not features:
            features = tuple(example)
            columns = find_columns(features, requested, origin)
        for field, place in zip(fields, columns, strict=True):
            if place is not None:
                field.append(_text(example[features[place]]))

    collector = Collector()
    try:
        collector.users.add(fields[0])
        collector.items.add(fields[1])
        collector.add_numbers(
            parse_ratings(fields[2]) if fields[2] else None,
            parse_times(fields[3]) if fields[3] else None,
        )
    except _ids.InvalidId as error:
        raise DataError(f"{origin}: {error}.") from None
    except ValueError:
        raise DataError(f"{origin}: expected finite ratings and timestamps.") from None
    return collector.records(origin)


def tfds_columns(name: str, requested: Requested) -> tuple[list[str], Found]:
    """The names of all features, and which of them are read."""
    names = list(next(_examples(name), {}))
    return names, find_columns(names, requested, f"tfds:{name}")


def _examples(name: str) -> Iterator[dict[str, Any]]:
    try:
        tfds = importlib.import_module("tensorflow_datasets")
    except ImportError as error:
        raise ImportError(
            f"tfds:{name} needs TensorFlow Datasets: pip install 'crl_jax[tfds]'"
        ) from error
    yield from tfds.as_numpy(tfds.load(name, split="train"))


def _text(value: object) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else str(np.asarray(value).item())
