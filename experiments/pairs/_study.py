"""What ``python -m experiments.pairs`` trains and judges, see :mod:`experiments._study`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import train

from .. import _truth as truth
from .._bert import layers
from .._learned import Learned
from .._registry import filled, settle
from .._rundir import write_arrays
from .._study import Judged, OnStage, Run, Study, fit_run
from ..images import _views as views
from ..images.encoders import ENCODERS
from ..view_losses import UNKNOWN_SHARE, fill_loss, in_words
from . import _training as training
from ._config import FLAGS, SCHEMA, Config, anchor
from ._judge import KS, Found, judge
from ._problem import Problem, load_problem
from ._saved import save_towers
from ._settled import as_loaded, refuse_groups, settled_entries, settled_text, settled_training
from .losses import LOSSES
from .recipes import RECIPES

EMBEDDINGS, RETRIEVAL = "embeddings.npz", "retrieval.png"
_DESCRIPTION = """Learn to find images by texts and texts by images, with two networks and a
contrastive loss (CLIP, SigLIP), and judge them by what they find among images and texts that
nothing was learned from.

  {program}                                   digits, with texts of their names
  {program} --data FOLDER --loss siglip       your own images with texts
  {program} --recipe NAME [flags]             settings that two cores can do:
      {recipes}
  {program} embed --run DIR --images FOLDER   images, or --texts FILE, in the space of a run
      (embed --help for more)
"""


def _names() -> dict[str, str]:
    named = {}
    for way, words in (("text_to_image", "text → image"), ("image_to_text", "image → text")):
        named |= {f"{way}_recall@{k}": f"recall@{k}, {words}" for k in KS}
        named[f"{way}_rank"] = f"median rank, {words}"
    return named


NAMES = _names() | {
    "chance_recall@1": "recall@1 by chance",
    "chance_recall@10": "recall@10 by chance",
    "zero_shot": "accuracy of classes told by texts",
    "alignment": "alignment of pairs",
    "image_uniformity": "uniformity of images",
    "text_uniformity": "uniformity of texts",
    **truth.NAMES,
}
"""The test metrics in words."""
_CURVES = {
    "loss": "loss",
    "valid_recall@10": "recall@10 on the validation part",
    "valid_recall@1": "recall@1 on the validation part",
    "temperature": "temperature",
    "bias": "bias",
    "auc": "AUC of the scores, by groups",
    "alpha": "α of the loss",
}


class Pairs(Study[Config, Problem]):
    """Two networks, of images and of texts, into one space."""

    schema, flags, recipes, description = SCHEMA, FLAGS, RECIPES, _DESCRIPTION
    unit, scores, score = "images", ("valid_recall@10", "valid_recall@1"), "recall@10"
    names, curves = NAMES, _CURVES

    def title(self, config: Config) -> str:
        """See :meth:`Study.title`."""
        return config.objective.loss

    def settle(self, config: Config) -> None:
        """See :meth:`Study.settle`."""
        settled_entries(config)
        settled_training(config.training, config.objective.loss)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, settled_text(config.text), on_stage)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        of_loss, of_encoder = settled_entries(config)
        share = problem.equal_share
        tau_plus = UNKNOWN_SHARE if share is None else share
        anchored = anchor(config)
        config = replace(
            anchored,
            views=views.settle_views(config.views, problem.train.captioned.images),
            objective=fill_loss(config.objective, of_loss, swept, tau_plus=tau_plus),
            encoding=filled(config.encoding, of_encoder, swept),
            text=as_loaded(anchored.text, problem.encoder),
            training=settled_training(config.training, config.objective.loss),
        )
        if not problem.grouped:
            refuse_groups(config)
        n = len(problem.train.captioned)
        if n < config.training.batch_size:
            raise ValueError(
                f"--batch-size must be at most the {n} images of the training part, "
                f"got {config.training.batch_size}."
            )
        axes = SCHEMA.sweep(config.protocol.sweep, config)
        training.trace_step(config, problem, {name: v[0] for name, v in axes.items()})
        return config

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """See :meth:`Study.count`."""
        return len(problem.train.captioned)

    def in_words(self, config: Config) -> str:
        """See :meth:`Study.in_words`."""
        swept = tuple(SCHEMA.sweep(config.protocol.sweep, config))
        said = [in_words(config.objective, swept, LOSSES)]
        if "temperature" not in swept:
            kept = "from " if config.training.learn_temperature else ""
            said.append(f"temperature {kept}{config.training.temperature:g}")
        width = settle("encoder", config.encoding, ENCODERS)["width"]
        said.append(f"{config.encoding.encoder} of width {width}")
        text = config.text
        if text.weights is None:
            assert text.text_n_layers is not None
            said.append(f"BERT of {layers(text.text_n_layers)}, width {text.text_width}")
        else:
            said.append(f"BERT of {Path(text.weights).name}")
        return ", ".join(said)

    def describe(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe`."""
        parts = problem.train.captioned, problem.valid.captioned, problem.test.captioned
        height, width, channels = parts[0].images.shape[1:]
        images, texts = (
            " / ".join(f"{n:,}" for n in counts)
            for counts in (map(len, parts), (len(part.texts) for part in parts))
        )
        yield (
            f"{images} images of {height} × {width} × {channels} and {texts} texts to learn from, "
            "validate and test by"
        )
        words, length = problem.encoder.words, problem.encoder.length
        lengths = words.lengths(parts[0].texts)
        yield (
            f"{len(words):,} pieces of words; texts of {lengths.mean():.1f} tokens, of which "
            f"{np.mean(lengths > length):.1%} lose what comes after {length}"
        )
        if (share := problem.equal_share) is not None:
            yield f"{share:.2%} of the pairs of training images are equal, by their groups"
        yield views.in_words(config.views)

    def fit(
        self, config: Config, problem: Problem, run: Run, checkpoints: Path,
        on_entry: Callable[[dict[str, Any]], None],
    ) -> train.FitResult:  # fmt: skip
        """See :meth:`Study.fit`."""
        return fit_run(
            training.task_of(config, problem, run.numbers),
            jax.tree.map(jnp.asarray, training.examples_of(problem.train)),
            training.recall_on(problem.valid),
            config, run, checkpoints, on_entry,
        )  # fmt: skip

    def learned(self, config: Config, problem: Problem, run: Run, fitted: train.FitResult) -> Found:
        """See :meth:`Study.learned`."""
        task = training.task_of(config, problem, run.numbers)
        return Found.of(Learned.of(task, fitted), problem)

    def judge(
        self, config: Config, problem: Problem, learned: Found, seed: int, on_stage: OnStage
    ) -> Judged:
        """What images and texts find; the cases are reciprocal ranks."""
        return Judged(*judge(learned, problem, LOSSES[config.objective.loss]))

    def keep(self, learned: Found, folder: Path) -> None:
        """Both networks; embeddings of the test part, and which image and text belong together."""
        save_towers(folder, learned)
        test = learned.test
        write_arrays(
            folder / EMBEDDINGS,
            images=np.asarray(learned.images), texts=np.asarray(learned.texts),
            image_of_text=test.image_of_text, image_groups=test.image_groups,
            captions=np.array(test.texts),
        )  # fmt: skip

    def draw(
        self, config: Config, problem: Problem, learned: Found, judged: Judged, title: str,
        folder: Path,
    ) -> None:  # fmt: skip
        """What some texts find."""
        from ._plots import draw_retrieval  # Matplotlib takes long to import

        draw_retrieval(folder / RETRIEVAL, learned, title)
