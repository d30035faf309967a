"""Advice on a finished search: what limited it, and what to try next."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from crl_jax.train import Selection

from .._program import flag

_LATE = 0.95
"""Share of the epochs after which a best score counts as limited by them."""
_FEW_USERS = 100
"""Number of validation users below which the scores of points are mostly noise."""


def advise_on_search(
    axes: Mapping[str, Sequence[float]],
    points: Sequence[Mapping[str, float]],
    choice: Selection,
    max_epochs: int | None,
    n_valid_users: int,
) -> Iterator[str]:
    """Yields a line for each limit of a search that its result has reached.

    Args:
      axes: Values of the sweep, by name; empty if only the number of epochs was searched.
      points: The points of the sweep.
      choice: The selected point and its number of epochs.
      max_epochs: Maximum number of epochs; None if the search prefers complete trainings.
      n_valid_users: Number of users with validation interactions.
    """
    for name, values in axes.items():
        best, ordered = points[choice.point][name], sorted(values)
        if len(ordered) > 1 and best in (ordered[0], ordered[-1]):
            end, others = ("smallest", "smaller") if best == ordered[0] else ("largest", "larger")
            yield (
                f"The best {flag(name)}, {best:g}, is the {end} of the sweep: try {others} values, "
                "if there are valid ones."
            )
    if max_epochs is not None and choice.epochs >= _LATE * max_epochs:
        yield (
            f"The best validation score came after {choice.epochs} of at most {max_epochs} epochs: "
            "raise --epochs, or --lr."
        )
    finite = np.isfinite(choice.scores).sum()
    if finite > 1 and n_valid_users < _FEW_USERS:
        yield (
            f"The validation part has only {n_valid_users} users, too few to compare {finite} "
            "points: raise --valid-fraction, or --search-seeds."
        )
