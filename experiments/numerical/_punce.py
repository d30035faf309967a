"""puNCE beside InfoNCE and SupCon, on digits of which a few even ones are labelled."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from crl_jax import augment, data, metrics, models, tasks, train

from ..studies.outcomes import judge
from ..studies.tables import holm

SHARES = (0.01, 0.1, 0.5)
"""How many of the even digits are labelled."""
METHODS = {
    "info_nce": "InfoNCE, no labels",
    "supcon": "SupCon, unlabelled: each a class",
    "supcon_negative": "SupCon, unlabelled: one class",
    "punce_half": "puNCE, told π / 2",
    "punce": "puNCE, told π",
    "punce_more": "puNCE, told 1.5 π",
}
"""In the order of the figure. SupCon with a class for each unlabelled image is puNCE told 0."""
JUDGED = ("linear", "pu_auc")
"""The test accuracy of a linear classifier that is fitted with all labels; and how well one ranks
test images that is fitted to tell the labelled from the unlabelled."""
_TOLD = {"supcon": 0.0, "punce_half": 0.5, "punce": 1.0, "punce_more": 1.5}
_FEATURES = 32
_NETWORK = models.Network(
    models.BackboneWithHead(
        models.Projection((128, _FEATURES), n_in=64), models.Projection((32, 32))
    )
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FlatViews:
    """Views of images, pixels in a row."""

    views: augment.ImageAugmentation

    def __call__(self, key: Key[Array, ""], image: Array) -> Float[Array, "pixels"]:
        return self.views(key, image).ravel()

    def plain(self, images: Array) -> Float[Array, "*batch pixels"]:
        """As evaluation sees them."""
        seen = self.views.plain(images)
        return seen.reshape(*seen.shape[:-3], -1)


class Digits(NamedTuple):
    """Scikit-learn's digits; the even ones are positive.

    Attributes:
      views: How views are made.
      images: Those that are learned from.
      even: Which of them are.
      test_images: Those that are judged by.
      test_even: Which of these are.
    """

    views: FlatViews
    images: Array
    even: np.ndarray
    test_images: Array
    test_even: np.ndarray


def load() -> Digits:
    """The digits, four fifths of them to learn from."""
    split = data.load_images("digits")
    pixels = split.train.images / 255
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
    """Which images are labelled: a share of the even ones, at least one; more hold all of fewer."""
    even = np.random.default_rng(seed).permutation(np.flatnonzero(digits.even))
    labelled = np.zeros(len(digits.even), bool)
    labelled[even[: max(1, round(share * len(even)))]] = True
    return labelled


def true_prior(digits: Digits, labelled: np.ndarray) -> float:
    """The share of even digits among the unlabelled."""
    return float(digits.even[~labelled].mean())


def task_of(method: str, digits: Digits, labelled: np.ndarray) -> tuple[Any, np.ndarray]:
    """What is trained, and the labels that it sees."""
    temperature = {"temperature": 0.3}
    if method == "supcon_negative":
        task = tasks.SupCon(_NETWORK, digits.views, temperature)
        return task, labelled.astype(np.int32)
    # One program for all: without labels puNCE is InfoNCE, and told 0 it is SupCon.
    prior = {"tau_plus": _TOLD.get(method, 0.0) * true_prior(digits, labelled)}
    seen = labelled & (method != "info_nce")
    task = tasks.PuNCE(_NETWORK, digits.views, temperature | prior)
    return task, seen.astype(np.int32) - 1


def features_of(
    task: Any, labels: np.ndarray, digits: Digits, seed: int, epochs: int
) -> tuple[Array, Array]:
    """Features of the images after the training, and of the test images."""
    fitted = train.fit(
        task, train.Optimizer(1e-2),
        train.ArrayBatches(tasks.LabelledExamples(digits.images, jnp.asarray(labels, jnp.int32))),
        train.TrainConfig(128), epochs=epochs, seeds=seed, eval_every=epochs,
    )  # fmt: skip
    model_state = jax.tree.map(lambda leaf: leaf[0], fitted.state.model_state)
    seen, unseen = (
        task.represent(fitted.run(), model_state, images)
        for images in (digits.images, digits.test_images)
    )
    return seen, unseen


def judged(features: tuple[Array, Array], digits: Digits, labelled: np.ndarray) -> dict[str, float]:
    """What :data:`JUDGED` says of features."""
    seen, unseen = features
    even, test_even, known = (
        jnp.asarray(x, jnp.int32) for x in (digits.even, digits.test_even, labelled)
    )
    probe = metrics.linear_probe(seen, even, unseen, test_even, n_classes=2, key=jax.random.key(0))
    of_known = metrics.ridge_probe(seen, known, unseen, test_even, n_classes=2, l2=0.1)
    slopes = np.asarray(of_known.kernel, np.float64)
    scores = np.asarray(unseen, np.float64) @ (slopes[:, 1] - slopes[:, 0])
    return {"linear": float(probe.accuracy), "pu_auc": judge(scores, digits.test_even)[0]}


def compare(seeds: int, epochs: int, on_stage: Callable[[str], None]) -> list[dict[str, Any]]:
    """Trains each method, with each share of labels and each seed.

    A seed draws the labelled, the initial values, the batches and the views, alike for all methods.

    Returns:
      For each of them a dictionary of ``share``, ``method``, ``seed``, ``labelled``, how many are,
      ``told``, the prior that puNCE is told, and :data:`JUDGED`.
    """
    digits, rows = load(), []
    for seed in range(seeds):
        unlabelled = None
        for share in SHARES:
            labelled = draw_labelled(digits, share, seed)
            for method in METHODS:
                on_stage(f"puNCE: seed {seed}, {share:.0%} labelled, {METHODS[method]}")
                if method == "info_nce" and unlabelled is not None:
                    features = unlabelled  # no label was seen: they are the same
                else:
                    task, labels = task_of(method, digits, labelled)
                    features = features_of(task, labels, digits, seed, epochs)
                if method == "info_nce":
                    unlabelled = features
                told = _TOLD.get(method, math.nan) * true_prior(digits, labelled)
                rows.append(
                    {"share": share, "method": method, "seed": seed,
                     "labelled": int(labelled.sum()), "told": told,
                     **judged(features, digits, labelled)}
                )  # fmt: skip
    return rows


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over seeds, and puNCE told the true prior against each other method.

    Returns:
      For each measure, share and method a dictionary: ``mean`` and ``deviation`` over seeds;
      ``punce_ahead``, by how much puNCE is better, with its ``standard_error`` in pairs of seeds;
      and ``p``, of a paired t-test on both sides, by Holm's method for all that the measure tests.
    """
    from scipy import stats  # takes long to import

    found = []
    for measure in JUDGED:
        of_measure = []
        for share in SHARES:
            values = {
                name: np.array(
                    [r[measure] for r in rows if (r["share"], r["method"]) == (share, name)]
                )
                for name in METHODS
            }
            for name, own in values.items():
                ahead = values["punce"] - own
                p = math.nan
                if len(own) > 1 and np.ptp(ahead) > 0:
                    p = float(stats.ttest_rel(values["punce"], own).pvalue)
                of_measure.append(
                    {"measure": measure, "share": share, "method": name,
                     "mean": own.mean(), "deviation": _deviation(own),
                     "punce_ahead": ahead.mean(),
                     "standard_error": _deviation(ahead) / math.sqrt(len(ahead)),
                     "p": p}
                )  # fmt: skip
        for row, p in zip(of_measure, holm([row["p"] for row in of_measure]), strict=True):
            found.append({**row, "p": p})
    return found


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else math.nan
