"""Blends of the best models of a search: which of them, decided on validation data."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from crl_jax import metrics, models

from .._processes import broadcast_from_first
from .._study import Member, OnStage, SearchResult
from ._config import Config
from ._problem import Problem
from ._ranking import VALIDATION_K
from .fitted import TRAINED
from .start import AUTO, may_change_encoder

_CLOSE = 0.05
"""Relative difference in validation scores to the best within which models are in a blend at first.
"""


def check_blend(config: Config) -> None:
    """Checks that a blend has models of several kinds, which are vectors of known items."""
    n = config.protocol.blend
    if config.objective.loss != AUTO:
        raise ValueError(
            f"--blend {n} sums models of several losses, got --loss {config.objective.loss}: add "
            f"--loss {AUTO}, or omit it."
        )
    if config.encoding.encoder == "features":
        raise ValueError(
            f"--blend {n} needs one vector per user and item, which --encoder features does not "
            "have for new ones: omit it."
        )


def select_blend(
    searched: SearchResult, fitted: Sequence[Member], config: Config, problem: Problem,
    on_stage: OnStage,
) -> SearchResult:  # fmt: skip
    """Returns a search with the blend that validation data decide on.

    Candidates are the good models of the search and fitted ones. The blend starts from the models
    of the search whose scores are close to the best, see :func:`choose`.

    Args:
      searched: The search; its blend has its candidates with their vectors, by descending score.
      fitted: Further candidates with their vectors, which are fitted in closed form.
      config: The configuration of the command.
      problem: The data.
      on_stage: See :data:`experiments._study.OnStage`.
    """
    candidates, scores = [*searched.blend, *fitted], searched.choice.scores
    min_score = (1 - _CLOSE) * max((scores[member.point] for member in searched.blend), default=0.0)
    n_close = min(sum(scores[m.point] >= min_score for m in searched.blend), config.protocol.blend)
    if len(candidates) < 2 or not n_close:
        return replace(searched, blend=())
    on_stage("blend: validation")
    layout = problem.valid_layout
    tables = [member.tables for member in candidates]

    def score(chosen: np.ndarray) -> np.ndarray:
        # Weights of zero instead of fewer models: all are evaluated by one program.
        blend = models.blend(tables, chosen.astype(float).tolist())
        values = metrics.evaluate(models.inner_scores, blend, layout, ks=VALIDATION_K)
        return np.asarray(values[f"ndcg@{VALIDATION_K}"], np.float64)

    start = [i < n_close for i in range(len(candidates))]
    is_any = may_change_encoder(config)  # otherwise, a model with the named encoder remains
    is_own = [is_any or i < len(searched.blend) for i in range(len(candidates))]
    chosen, values = choose(score, start, is_own, config.protocol.blend)
    members = [
        member
        for member, is_in in zip(candidates, chosen, strict=True)
        if broadcast_from_first(is_in)
    ]
    return _with_blend(searched, members, float(values.mean()))


def _with_blend(searched: SearchResult, members: Sequence[Member], score: float) -> SearchResult:
    """Returns the search with the blend of these models, or the only one selected."""
    # A fitted model has no configuration of a training, with which the others could be saved.
    first = next((m for m in members if m.config.encoding.model == TRAINED), members[0])
    own = float(searched.choice.scores[first.point])
    choice = replace(searched.choice, point=first.point, epochs=first.epochs, score=own)
    if len(members) == 1:
        return replace(searched, choice=choice, config=first.config, blend=())
    encoding = replace(first.config.encoding, serve_similarity="inner")
    return replace(
        searched,
        choice=choice,
        config=replace(first.config, encoding=encoding),
        blend=tuple(
            m._replace(tables=None) for m in (first, *(m for m in members if m is not first))
        ),
        blend_score=score,
    )


def choose(
    score_fn: Callable[[np.ndarray], np.ndarray],
    start: Sequence[bool],
    is_own: Sequence[bool],
    max_models: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Adds and removes models while the mean score rises by more than its standard error.

    Each step takes the change of one model that raises the mean score most. The scores of few users
    are too noisy to choose among all subsets, while the mean of alike models rarely does harm: see
    the one-standard-error rule of Breiman et al., Classification and Regression Trees, 1984.

    Args:
      score_fn: Returns the score of each user for a choice of models, booleans ``[n]``.
      start: The choice to start from.
      is_own: The models of which one remains in the choice.
      max_models: Maximum number of models.

    Returns:
      The choice, booleans ``[n]``, and its scores.
    """
    chosen = np.array(start)
    scores = score_fn(chosen)
    while len(scores) > 1:  # a standard error needs two users
        best_gain, best = 0.0, None
        for i in range(len(chosen)):
            changed = chosen.copy()
            changed[i] = not changed[i]
            if changed.sum() > max_models or not changed[np.asarray(is_own)].any():
                continue
            changed_scores = score_fn(changed)
            gain = float((changed_scores - scores).mean())
            error = float((changed_scores - scores).std(ddof=1)) / np.sqrt(len(scores))
            if gain > error and gain > best_gain:
                best_gain, best = gain, (changed, changed_scores)
        if best is None:
            break
        chosen, scores = best
    return chosen, scores


def describe_blend(searched: SearchResult) -> str:
    """Returns a line about the models that are blended, with their validation scores."""
    descriptions = []
    for member in searched.blend:
        values = searched.points[member.point].items()
        settings = " ".join(f"{n}={x:g}" if isinstance(x, float) else f"{n}={x}" for n, x in values)
        descriptions.append(f"{settings} ({searched.choice.scores[member.point]:.4f})")
    return (
        f"blended, each standardised by user: {'; '.join(descriptions)}; together "
        f"{searched.blend_score:.4f}"
    )
