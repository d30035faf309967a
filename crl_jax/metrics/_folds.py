"""Cross-validated support vector machines on representations."""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from .._checks import check_count, check_range, check_shape
from .._optional import import_optional
from .._threads import thread_map


class CrossValidationResult(NamedTuple):
    """Result of :func:`cross_validated_svm`.

    Attributes:
      accuracy: Mean test accuracy over the folds.
      deviation: Standard deviation over the folds.
      accuracies: Test accuracy of each fold, ``[folds]``.
      c_values: Selected C of each fold, ``[folds]``.
    """

    accuracy: float
    deviation: float
    accuracies: Float[np.ndarray, " folds"]
    c_values: Float[np.ndarray, " folds"]


def cross_validated_svm(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    folds: int | ArrayLike = 10,
    seed: int = 0,
    kernel: Literal["rbf", "linear"] = "rbf",
    c_values: Sequence[float] = (1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0),
    inner_folds: int = 5,
    standardize: bool = False,
) -> CrossValidationResult:
    """Evaluates representations by the cross-validated accuracy of a support vector machine.

    In each fold, C is selected by nested cross-validation on the training folds, ties to the
    smallest, so that the test fold selects nothing. Folds run in parallel threads.

    The defaults follow the published code of InfoGraph and GraphCL: ten stratified folds, an RBF
    kernel of width ``1 / (dim * variance)``, raw features and this selection of C. That code
    evaluates after several epochs of training; reporting the best of them selects the epoch on the
    test folds. Evaluate after the last epoch, or select the epoch on other data.

    Args:
      features: Features, ``[n, dim]``.
      labels: Integer classes, ``[n]``.
      folds: Number of stratified folds, >= 2; or the fold index of each example, ``[n]``, with -1
        for examples that are always in the training set, such as ``Graphs.folds``.
      seed: Seed of the folds.
      kernel: ``"rbf"``, or ``"linear"``, which is faster for many examples.
      c_values: Candidates for C, > 0.
      inner_folds: Number of folds of the nested cross-validation, >= 2.
      standardize: Whether to standardise features by the training folds.

    Raises:
      ValueError: If an argument is out of range, or a class has fewer examples than folds.
      ImportError: If scikit-learn is not installed.

    References:
      Sun et al., `InfoGraph <https://arxiv.org/abs/1908.01000>`_, 2020, section 5.1; You et al.,
      `Graph Contrastive Learning with Augmentations <https://arxiv.org/abs/2010.13902>`_, 2020,
      and its code ``unsupervised_TU/evaluate_embedding.py``.

    >>> x = np.random.default_rng(0).normal(size=(60, 3))
    >>> result = cross_validated_svm(x, x[:, 0] > 0, folds=3)
    >>> result.accuracy > 0.8, result.accuracies.shape
    (True, (3,))
    """
    x, y = np.asarray(features, np.float64), np.asarray(labels)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"`features` must be finite numbers [n, dim], got shape {x.shape}.")
    check_shape("labels", y, x.shape[:1])
    check_count("inner_folds", inner_folds, 2)
    check_range("c_values", tuple(c_values), 0, np.inf, low_open=True, high_open=True)
    if kernel not in ("rbf", "linear"):
        raise ValueError(f"`kernel` must be rbf or linear, got {kernel!r}.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from its imports
        import_optional("sklearn", "cross_validated_svm needs scikit-learn", "experiments")
        from sklearn import model_selection, pipeline, preprocessing, svm
    classifier = svm.SVC(kernel="rbf")
    name = "svc__C"
    if kernel == "linear":
        # The primal problem is smooth and convex, and converges quickly.
        classifier = svm.LinearSVC(dual=False)  # pyright: ignore[reportArgumentType]
        name = "linearsvc__C"
    steps = [preprocessing.StandardScaler()] if standardize else []
    model = pipeline.make_pipeline(*steps, classifier)
    # Sorted: GridSearchCV breaks ties by the first candidate.
    search = {name: sorted(map(float, c_values))}
    inner = model_selection.StratifiedKFold(inner_folds)
    kfold = partial(model_selection.StratifiedKFold, shuffle=True, random_state=seed)
    splits = _splits(kfold, y, folds, inner_folds)

    def evaluate(split: tuple[np.ndarray, np.ndarray]) -> tuple[float, float]:
        train, test = split
        tuned: Any = model_selection.GridSearchCV(model, search, cv=inner)
        tuned.fit(x[train], y[train])
        return tuned.score(x[test], y[test]), tuned.best_params_[name]

    results = list(thread_map(evaluate, splits))
    accuracies, chosen = np.array(results).T
    return CrossValidationResult(
        float(accuracies.mean()), float(accuracies.std()), accuracies, chosen
    )


def _splits(
    kfold: Callable[..., Any], y: np.ndarray, folds: int | ArrayLike, inner: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns training and test indices of each fold."""
    classes, counts = np.unique(y, return_counts=True)
    if isinstance(folds, (int, np.integer)):
        check_count("folds", folds, 2)
        if counts.min() < folds:
            rare = classes[np.argmin(counts)]
            raise ValueError(
                f"`folds` must be at most {counts.min()}, the size of class {rare}, got {folds}."
            )
        splits = list(kfold(folds).split(y, y))
    else:
        fold_indices = np.asarray(folds)
        check_shape("folds", fold_indices, y.shape)
        names = np.unique(fold_indices[fold_indices >= 0])
        if len(names) < 2:
            raise ValueError(f"`folds` must name two folds or more, got {len(names)}.")
        splits = [
            (np.flatnonzero(fold_indices != i), np.flatnonzero(fold_indices == i)) for i in names
        ]
    for fold, (train, _) in enumerate(splits):
        seen, class_counts = np.unique(y[train], return_counts=True)
        if len(seen) < 2 or class_counts.min() < inner:
            raise ValueError(
                f"`labels` must have two classes or more outside of fold {fold}, with at least "
                f"`inner_folds` = {inner} examples each, got "
                f"{dict(zip(seen.tolist(), class_counts.tolist(), strict=True))}."
            )
    return splits
