"""Successive halving: short trainings of many candidates, longer trainings of the best."""

import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .._checks import check_count, check_range
from ._fit import FitResult, TrainingDiverged
from ._sweep import select_best


class RungResult(NamedTuple):
    """Candidates that were trained together.

    Attributes:
      rung: Index of the rung, from 0; all trainings of a rung have the same number of epochs.
      candidates: Indices of the candidates.
      scores: Best validation score of each; NaN for diverged ones.
      best_epochs: Epochs of these scores; 0 for diverged ones.
      seconds: Time of the training.
    """

    rung: int
    candidates: tuple[int, ...]
    scores: tuple[float, ...]
    best_epochs: tuple[int, ...]
    seconds: float


@dataclass(frozen=True)
class HalvingResult:
    """Result of :func:`successive_halving`.

    Attributes:
      best: Index of the candidate with the best score in the last rung; None if all diverged.
      best_epoch: Number of epochs with its best score.
      score: This score.
      trained: All trainings, in order.
    """

    best: int | None
    best_epoch: int
    score: float
    trained: tuple[RungResult, ...]

    @property
    def seconds(self) -> float:
        """Time of all trainings."""
        return sum(each.seconds for each in self.trained)

    def last(self, candidate: int) -> tuple[int, float, int] | None:
        """Rung, score and best epoch of the last training of a candidate; None if there is none."""
        for each in reversed(self.trained):
            if candidate in each.candidates:
                i = each.candidates.index(candidate)
                return each.rung, each.scores[i], each.best_epochs[i]
        return None


def train_candidates(
    fit: Callable[[], FitResult],
    rung: int,
    candidates: tuple[int, ...],
    n_seeds: int = 1,
    *,
    tolerance: float = 0.0,
) -> tuple[RungResult, FitResult | None]:
    """Trains candidates together, and scores them by :func:`select_best`.

    Args:
      fit: Trains the candidates in order, each with its seeds, on validation data.
      rung: Index of the rung.
      candidates: Indices of the candidates.
      n_seeds: Number of seeds per candidate.
      tolerance: See :func:`select_best`.

    Returns:
      The scores, and the result of ``fit``; None if all runs diverged.
    """
    began = time.monotonic()
    try:
        fitted = fit()
        choice = select_best(fitted, n_seeds, tolerance=tolerance)
        scores, epochs = choice.scores.tolist(), choice.best_epochs.tolist()
    except TrainingDiverged:
        fitted, scores, epochs = None, [np.nan] * len(candidates), [0] * len(candidates)
    seconds = time.monotonic() - began
    if fitted is not None:  # history also counts the time before an interruption
        seconds = max(seconds, fitted.history[-1]["seconds"])
    return RungResult(rung, candidates, tuple(scores), tuple(epochs), seconds), fitted


def successive_halving(
    train_fn: Callable[[int, tuple[int, ...]], RungResult],
    groups: Sequence[Sequence[int]],
    epochs: Sequence[int],
    *,
    labels: Sequence[Hashable] | None = None,
    minutes: float | None = None,
    keep: int | None = None,
    done: Sequence[RungResult] = (),
    on_trained: Callable[[RungResult], None] = lambda _: None,
) -> HalvingResult:
    r"""Trains all candidates for few epochs, and the best for more, rung by rung.

    Rung r + 1 keeps the best :math:`\lfloor n_r e_r / e_{r+1} \rceil` of the :math:`n_r`
    candidates of rung r, at least one of each label, so that each rung takes about the same time;
    ``keep`` sets another number. Each rung trains from the start, with a learning-rate schedule of
    its length: the last rung is a complete training.

    The decisions depend on the results and their ``seconds`` alone. Passing the trainings of an
    interrupted search as ``done`` therefore continues it as if it had not been interrupted.

    Args:
      train_fn: ``train_fn(rung, candidates)`` trains candidates of one group together, for
        ``epochs[rung]`` epochs.
      groups: Candidates that can be trained together, indices from 0. With ``minutes``, the first
        rung trains the groups in this order, for as long as its share of the time lasts.
      epochs: Number of epochs of each rung, ascending.
      labels: Label of each candidate, such as its loss. Each rung keeps the best candidate of each
        label, as far as the time allows, since short trainings may favour one of them.
      minutes: Time to spend, in minutes; None for no limit. Trainings are not interrupted, and each
        rung trains one candidate at least, so that a search may take longer.
      keep: Maximum number of candidates after the first rung; None for no limit except the time.
        The best of each label are kept in any case.
      done: Trainings of an interrupted search with equal arguments.
      on_trained: Called with each new training.

    Raises:
      ValueError: If an argument is out of range, or there is no candidate.

    References:
      Jamieson and Talwalkar, `Non-stochastic Best Arm Identification and Hyperparameter
      Optimization <https://arxiv.org/abs/1502.07943>`_, 2016.

    >>> quality = [0.1, 0.4, 0.2, 0.3]
    >>> def train_fn(rung, candidates):
    ...     scores = tuple(quality[i] for i in candidates)
    ...     return RungResult(rung, candidates, scores, (1,) * len(candidates), 1.0)
    >>> result = successive_halving(train_fn, [(0, 1), (2, 3)], epochs=(5, 10))
    >>> result.best, [each.candidates for each in result.trained]
    (1, [(0, 1), (2, 3), (1,), (3,)])
    """
    _check(groups, epochs, labels, minutes)
    if keep is not None:
        check_count("keep", keep)
    limit = np.inf if minutes is None else 60 * minutes
    replayed, trained, spent = iter(done), [], 0.0

    def train(rung: int, candidates: tuple[int, ...]) -> RungResult:
        nonlocal spent
        result = next(replayed, None)
        if result is None:
            result = train_fn(rung, candidates)
            on_trained(result)
        elif (result.rung, result.candidates) != (rung, candidates):
            raise ValueError(
                f"`done` must be of a search with equal arguments: expected rung {rung} of "
                f"{candidates}, got {result.rung} of {result.candidates}."
            )
        trained.append(result)
        spent += result.seconds
        return result

    survivors = {candidate for group in groups for candidate in group}
    ranked: list[tuple[float, int, int]] = []
    for rung, n_epochs in enumerate(epochs):
        # Equal shares of the remaining time for the remaining rungs.
        share, began, scores = (limit - spent) / (len(epochs) - rung), spent, []
        for group in groups:
            chosen = tuple(candidate for candidate in group if candidate in survivors)
            if not chosen or (scores and spent - began >= share):
                continue
            result = train(rung, chosen)
            scores += zip(result.scores, chosen, result.best_epochs, strict=True)
        # The earlier candidate wins ties.
        finite = [each for each in scores if np.isfinite(each[0])]
        ranked = sorted(finite, key=lambda each: (-each[0], each[1]))
        if not ranked:
            return HalvingResult(None, 0, np.nan, tuple(trained))
        if rung + 1 < len(epochs):
            ratio = n_epochs / epochs[rung + 1]
            cost = (spent - began) / len(scores) / ratio  # seconds of a candidate in the next rung
            share = (limit - spent) / (len(epochs) - rung - 1)
            affordable = share / cost if cost else np.inf
            order = _put_best_per_label_first([candidate for _, candidate, _ in ranked], labels)
            n_labels = 1 if labels is None else len({labels[i] for i in order})
            target = round(len(scores) * ratio) if keep is None else keep
            n_survivors = min(max(target, n_labels), affordable)
            survivors = {*order[: max(1, int(n_survivors))]}
    score, best, epoch = ranked[0]
    return HalvingResult(best, epoch, score, tuple(trained))


def _put_best_per_label_first(ranked: list[int], labels: Sequence[Hashable] | None) -> list[int]:
    """Reorders candidates so that the best of each label precede the others."""
    if labels is None:
        return ranked
    best: dict[Hashable, int] = {}
    for candidate in ranked:
        best.setdefault(labels[candidate], candidate)
    first = [*best.values()]
    return first + [candidate for candidate in ranked if candidate not in first]


def _check(
    groups: Sequence[Sequence[int]],
    epochs: Sequence[int],
    labels: Sequence[Hashable] | None,
    minutes: float | None,
) -> None:
    candidates = sorted(candidate for group in groups for candidate in group)
    if not candidates or candidates != list(range(len(candidates))):
        raise ValueError(f"`groups` must hold each index from 0 once, got {groups}.")
    if labels is not None and len(labels) != len(candidates):
        raise ValueError(
            f"`labels` must have one for each of {len(candidates)} candidates, got {len(labels)}."
        )
    for n_epochs in epochs:
        check_count("epochs", n_epochs)
    if not epochs or list(epochs) != sorted(set(epochs)):
        raise ValueError(f"`epochs` must be ascending, got {epochs}.")
    if minutes is not None:
        check_range("minutes", minutes, 0.0, np.inf, low_open=True, high_open=True)
