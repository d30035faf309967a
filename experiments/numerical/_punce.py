"""Comparison of puNCE with InfoNCE and SupCon, on digits with a few labelled even ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from rich.console import Console
from rich.table import Table

from crl_jax import augment, data, metrics, models, tasks, train

from .._panels import make_panels, save, write
from ..reproduce.outcomes import holm, roc_curve

SHARES = (0.01, 0.1, 0.5)
"""Shares of the even digits that are labelled."""
METHODS = {
    "info_nce": "InfoNCE, no labels",
    "supcon": "SupCon, unlabelled: each a class",
    "supcon_negative": "SupCon, unlabelled: one class",
    "punce_half": "puNCE, prior π / 2",
    "punce": "puNCE, prior π",
    "punce_more": "puNCE, prior 1.5 π",
}
"""In the order of the figure. SupCon with a class per unlabelled image is puNCE with prior 0."""
_STYLES: dict[str, dict[str, Any]] = {
    "info_nce": dict(color="black", marker="x", linestyle=":"),
    "supcon": dict(color="#0072B2", marker="^", linestyle="--"),
    "supcon_negative": dict(color="#D55E00", marker="s", linestyle="-."),
    "punce_half": dict(color="#CC79A7", marker="v", linestyle=(0, (5, 1, 1, 1))),
    "punce": dict(color="#009E73", marker="o", linestyle="-"),
    "punce_more": dict(color="#E69F00", marker="D", linestyle=(0, (3, 2))),
}
MEASURES = ("linear", "pu_auc")
"""The test accuracy of a linear classifier fitted with all labels; and the AUC on test images of a
linear classifier fitted to separate labelled from unlabelled images."""
_PRIOR_FACTORS = {"supcon": 0.0, "punce_half": 0.5, "punce": 1.0, "punce_more": 1.5}
_FEATURES = 32
_NETWORK = models.Network(
    models.BackboneWithHead(
        models.Projection((128, _FEATURES), n_in=64), models.Projection((32, 32))
    )
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FlatViews:
    """Views of images, flattened to vectors of pixels."""

    views: augment.ImageAugmentation

    def __call__(self, key: Key[Array, ""], image: Array) -> Float[Array, "pixels"]:
        return self.views(key, image).ravel()

    def plain(self, images: Array) -> Float[Array, "*batch pixels"]:
        """Returns the flattened images without augmentation, as for evaluation."""
        pixels = self.views.plain(images)
        return pixels.reshape(*pixels.shape[:-3], -1)


class Digits(NamedTuple):
    """Scikit-learn's digits, with even digits as positives.

    Attributes:
      views: Augmentation that generates the views.
      images: Training images.
      even: Whether each training image is an even digit.
      test_images: Test images.
      test_even: Whether each test image is an even digit.
    """

    views: FlatViews
    images: Array
    even: np.ndarray
    test_images: Array
    test_even: np.ndarray


def load() -> Digits:
    """Loads the digits, four fifths of them for training."""
    split = data.load_images("digits")
    pixels = np.asarray(split.train.images) / 255
    views = augment.ImageAugmentation(
        size=8, blur_kernel=1, scale=(0.5, 1.0), flip_rate=0.0, jitter=(0.4, 0.4, 0.0, 0.0),
        grey_rate=0.0, mean=float(pixels.mean()), std=float(pixels.std()),
    )  # fmt: skip
    return Digits(
        FlatViews(views),
        jnp.asarray(split.train.images), split.train.labels % 2 == 0,
        jnp.asarray(split.test.images), split.test.labels % 2 == 0,
    )  # fmt: skip


def draw_labelled(digits: Digits, share: float, seed: int) -> np.ndarray:
    """Returns a mask of labelled images: a share of the even digits, at least one.

    For the same seed, a larger share includes all images of a smaller one.
    """
    even = np.random.default_rng(seed).permutation(np.flatnonzero(digits.even))
    labelled = np.zeros(len(digits.even), bool)
    labelled[even[: max(1, round(share * len(even)))]] = True
    return labelled


def true_prior(digits: Digits, labelled: np.ndarray) -> float:
    """Returns the share of even digits among the unlabelled images."""
    return float(digits.even[~labelled].mean())


def make_task(method: str, digits: Digits, labelled: np.ndarray) -> tuple[Any, np.ndarray]:
    """Returns the task, and the labels that it uses."""
    temperature = {"temperature": 0.3}
    if method == "supcon_negative":
        task = tasks.SupCon(_NETWORK, digits.views, temperature)
        return task, labelled.astype(np.int32)
    # All share one program: puNCE is InfoNCE without labels, and SupCon with prior 0.
    prior = {"tau_plus": _PRIOR_FACTORS.get(method, 0.0) * true_prior(digits, labelled)}
    used_labels = labelled & (method != "info_nce")
    task = tasks.PuNCE(_NETWORK, digits.views, temperature | prior)
    return task, used_labels.astype(np.int32) - 1


def learn_features(
    task: Any, labels: np.ndarray, digits: Digits, seed: int, epochs: int
) -> tuple[Array, Array]:
    """Returns the features of the training images and of the test images after training."""
    fitted = train.fit(
        task, train.Optimizer(1e-2),
        train.ArrayBatches(tasks.LabelledExamples(digits.images, jnp.asarray(labels, jnp.int32))),
        train.TrainConfig(128), epochs=epochs, seeds=seed, eval_every=epochs,
    )  # fmt: skip
    model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    seen, unseen = (
        task.represent(fitted.get_params(), model_state, images)
        for images in (digits.images, digits.test_images)
    )
    return seen, unseen


def evaluate(
    features: tuple[Array, Array], digits: Digits, labelled: np.ndarray
) -> dict[str, float]:
    """Evaluates the measures in :data:`MEASURES` on features."""
    seen, unseen = features
    even, test_even, known = (
        jnp.asarray(x, jnp.int32) for x in (digits.even, digits.test_even, labelled)
    )
    probe = metrics.linear_probe(seen, even, unseen, test_even, n_classes=2, key=jax.random.key(0))
    label_probe = metrics.ridge_probe(seen, known, unseen, test_even, n_classes=2, l2=0.1)
    slopes = np.asarray(label_probe.kernel, np.float64)
    scores = np.asarray(unseen, np.float64) @ (slopes[:, 1] - slopes[:, 0])
    return {"linear": float(probe.accuracy), "pu_auc": roc_curve(scores, digits.test_even)[0]}


def compare(seeds: int, epochs: int, on_stage: Callable[[str], None]) -> list[dict[str, Any]]:
    """Trains each method, with each share of labels and each seed.

    The seed determines the labelled images, the initial values, the batches and the views, which
    are the same for all methods.

    Returns:
      A dictionary for each training, with ``share``, ``method``, ``seed``, ``labelled``, the number
      of labelled images, ``assumed_prior``, the class prior used by puNCE, and :data:`MEASURES`.
    """
    digits, rows = load(), []
    for seed in range(seeds):
        features: dict[str, tuple[Array, Array]] = {}
        for share in SHARES:
            labelled = draw_labelled(digits, share, seed)
            for method in METHODS:
                on_stage(f"puNCE: seed {seed}, {share:.0%} labelled, {METHODS[method]}")
                if method != "info_nce" or method not in features:  # it uses no labels
                    task, labels = make_task(method, digits, labelled)
                    features[method] = learn_features(task, labels, digits, seed, epochs)
                prior = _PRIOR_FACTORS.get(method, math.nan) * true_prior(digits, labelled)
                rows.append(
                    {"share": share, "method": method, "seed": seed,
                     "labelled": int(labelled.sum()), "assumed_prior": prior,
                     **evaluate(features[method], digits, labelled)}
                )  # fmt: skip
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns means over seeds, and comparisons of puNCE with the true prior to each method.

    Returns:
      For each measure, share and method a dictionary: ``mean`` and ``deviation`` over seeds;
      ``punce_ahead``, the mean advantage of puNCE, with its paired ``standard_error`` over seeds;
      and ``p``, of a two-sided paired t-test, Holm-adjusted over all tests of the measure.
    """
    from scipy import stats  # slow to import

    results = []
    for measure in MEASURES:
        measure_rows = []
        for share in SHARES:
            values = {
                name: np.array(
                    [r[measure] for r in rows if (r["share"], r["method"]) == (share, name)]
                )
                for name in METHODS
            }
            for name, metric_values in values.items():
                differences = values["punce"] - metric_values
                p = math.nan
                if len(metric_values) > 1 and np.ptp(differences) > 0:
                    p = float(stats.ttest_rel(values["punce"], metric_values).pvalue)
                measure_rows.append(
                    {"measure": measure, "share": share, "method": name,
                     "mean": metric_values.mean(), "deviation": _deviation(metric_values),
                     "punce_ahead": differences.mean(),
                     "standard_error": _deviation(differences) / math.sqrt(len(differences)),
                     "p": p}
                )  # fmt: skip
        for row, p in zip(measure_rows, holm([row["p"] for row in measure_rows]), strict=True):
            results.append({**row, "p": p})
    return results


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan


def draw(folder: Path, rows: list[dict[str, Any]], summary: list[dict[str, Any]]) -> None:
    """Compares puNCE with InfoNCE and SupCon, by the share of labelled positives."""
    titles = {
        "linear": "accuracy, linear, fitted with all labels",
        "pu_auc": "AUC of labelled against unlabelled, linear",
    }
    figure, panels = make_panels(1, 2, (11.5, 4.6))
    positions = np.arange(len(SHARES))
    for axes, (measure, title) in zip(panels, titles.items()):
        for i, (name, label) in enumerate(METHODS.items()):
            method_rows = [
                row for row in summary if (row["measure"], row["method"]) == (measure, name)
            ]
            x = positions + 0.08 * (i - (len(METHODS) - 1) / 2)  # so that error bars do not overlap
            mean, deviation = (
                [row[column] for row in method_rows] for column in ("mean", "deviation")
            )
            axes.errorbar(
                x, mean, np.nan_to_num(deviation), label=label, capsize=2, markersize=5,
                linewidth=1.2, **_STYLES[name],
            )  # fmt: skip
        axes.set_xticks(positions, [f"{share:.0%}" for share in SHARES])
        axes.set(xlabel="share of the even digits that is labelled", title=title)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3,
                  fontsize=9)  # fmt: skip
    title = "Digits, even against odd: mean and deviation over seeds"
    save(figure, folder / "punce", title, list(rows[0]), map(dict.values, rows))
    write(folder / "punce_paired.csv", list(summary[0]), map(dict.values, summary))


def report(console: Console, summary: list[dict[str, Any]], seeds: int) -> None:
    """Prints the results of puNCE and the other methods on digits."""
    table = Table(
        title=f"Digits, even against odd: mean ± deviation of {seeds} seeds, and p of "
        "the difference to puNCE with prior π"
    )
    table.add_column("method")
    for measure in MEASURES:
        for share in SHARES:
            table.add_column(f"{measure}, {share:.0%}", justify="right")
    for name, label in METHODS.items():
        cells = []
        for row in summary:
            if row["method"] == name:
                p = "" if math.isnan(row["p"]) else f"\np = {row['p']:.2g}"
                cells.append(f"{row['mean']:.3f} ± {row['deviation']:.3f}{p}")
        table.add_row(label, *cells)
    console.print(table)
