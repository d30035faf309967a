"""Support vector machines on representations, judged by cross-validation."""

import importlib
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._checks import check_count, check_range, check_shape
from .._threads import thread_map


class CrossValidationResult(NamedTuple):
    """What a classifier makes of representations, on examples that it was not fitted to.

    Attributes:
      accuracy: The mean over the folds.
      deviation: Their standard deviation.
      accuracies: Of each fold, ``[folds]``.
      strengths: The C that was chosen in each fold, ``[folds]``.
    """

    accuracy: float
    deviation: float
    accuracies: Float[np.ndarray, " folds"]
    strengths: Float[np.ndarray, " folds"]


def cross_validated_svm(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    folds: int | ArrayLike = 10,
    seed: int = 0,
    kernel: Literal["rbf", "linear"] = "rbf",
    strengths: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0),
    inner_folds: int = 5,
    standardize: bool = False,
) -> CrossValidationResult:
    """Accuracy of a support vector machine in each fold, fitted to all others.

    In each fold the C is the one with the best mean accuracy in a cross-validation of what the
    machine is fitted to; of equal ones the smallest. So the fold that judges chooses nothing. Folds
    share the cores of the machine.

    The defaults are those of the published code of InfoGraph and GraphCL: ten stratified folds, a
    radial kernel of width ``1 / (dim * variance)``, features as they are, and this choice of C.
    That code judges after several epochs of training. Who then takes the best of them has chosen on
    these very folds: judge after the last epoch, or choose the epoch on other data.

    Args:
      features: Of each example, ``[n, dim]``.
      labels: Their classes, whole numbers ``[n]``.
      folds: How many stratified folds are drawn, >= 2; or the fold of each example, ``[n]``, with
        -1 for one that is always trained on, such as ``Graphs.folds``.
      seed: Draws the folds.
      kernel: ``"rbf"``, or ``"linear"``, which takes less time where there are many examples.
      strengths: The C to choose from, > 0.
      inner_folds: Folds of the choice, >= 2.
      standardize: Whether features have mean 0 and variance 1 in what the machine is fitted to.

    Raises:
      ValueError: If an argument is out of range, or a class has fewer examples than folds.
      ImportError: If scikit-learn is not installed.

    References:
      Sun et al., `InfoGraph <https://arxiv.org/abs/1908.01000>`_, 2020, section 5.1; You et al.,
      `Graph Contrastive Learning with Augmentations <https://arxiv.org/abs/2010.13902>`_, 2020,
      and its code ``unsupervised_TU/evaluate_embedding.py``.

    >>> x = np.random.default_rng(0).normal(size=(60, 3))
    >>> found = cross_validated_svm(x, x[:, 0] > 0, folds=3)
    >>> found.accuracy > 0.8, found.accuracies.shape
    (True, (3,))
    """
    x, y = np.asarray(features, np.float64), np.asarray(labels)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"`features` must be finite numbers [n, dim], got shape {x.shape}.")
    check_shape("labels", y, x.shape[:1])
    check_count("inner_folds", inner_folds, 2)
    check_range("strengths", tuple(strengths), 0, np.inf, low_open=True, high_open=True)
    if kernel not in ("rbf", "linear"):
        raise ValueError(f"`kernel` must be rbf or linear, got {kernel!r}.")
    learn = _sklearn()
    classifier = learn["svm"].SVC(kernel="rbf")
    name = "svc__C"
    if kernel == "linear":
        # In this form the problem is convex and smooth, and solved to the end in little time.
        classifier = learn["svm"].LinearSVC(dual=False)
        name = "linearsvc__C"
    steps = [learn["preprocessing"].StandardScaler()] if standardize else []
    model = learn["pipeline"].make_pipeline(*steps, classifier)
    # Of equal ones the first is taken.
    search = {name: sorted(map(float, strengths))}
    inner = learn["model_selection"].StratifiedKFold(inner_folds)

    def judge(part: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
        train, test = part
        tuned = learn["model_selection"].GridSearchCV(model, search, cv=inner)
        tuned.fit(x[train], y[train])
        return tuned.score(x[test], y[test]), tuned.best_params_[name]

    found = list(thread_map(judge, _parts(learn, y, folds, seed, inner_folds)))
    accuracies, chosen = np.array(found).T
    return CrossValidationResult(
        float(accuracies.mean()), float(accuracies.std()), accuracies, chosen
    )


def _parts(
    learn: dict[str, Any], y: np.ndarray, folds: int | ArrayLike, seed: int, inner: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Places to fit to and to judge by, for each fold."""
    classes, counts = np.unique(y, return_counts=True)
    if isinstance(folds, (int, np.integer)):
        check_count("folds", folds, 2)
        if counts.min() < folds:
            rare = classes[np.argmin(counts)]
            raise ValueError(f"`folds` must be at most {counts.min()}, the size of class {rare}.")
        cut = learn["model_selection"].StratifiedKFold(folds, shuffle=True, random_state=seed)
        parts = list(cut.split(y, y))
    else:
        own = np.asarray(folds)
        check_shape("folds", own, y.shape)
        names = np.unique(own[own >= 0])
        if len(names) < 2:
            raise ValueError(f"`folds` must name two folds or more, got {len(names)}.")
        parts = [(np.flatnonzero(own != fold), np.flatnonzero(own == fold)) for fold in names]
    for place, (train, _) in enumerate(parts):
        seen, left = np.unique(y[train], return_counts=True)
        if len(seen) < 2 or left.min() < inner:
            raise ValueError(
                f"`inner_folds` = {inner} needs two classes with as many examples each outside of "
                f"fold {place}, got {dict(zip(seen.tolist(), left.tolist(), strict=True))}."
            )
    return parts


def _sklearn() -> dict[str, Any]:
    names = ("svm", "preprocessing", "pipeline", "model_selection")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of what it imports
            return {name: importlib.import_module(f"sklearn.{name}") for name in names}
    except ImportError as error:
        raise ImportError(
            "a support vector machine needs scikit-learn: pip install 'crl_jax[experiments]'"
        ) from error
