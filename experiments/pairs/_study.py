"""Study of ``python -m experiments.pairs``, see :mod:`experiments._study`."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import tasks, train

from .. import _truth as truth
from .._bert import Encoder, layers, resolve_bert
from .._registry import resolve_flags
from .._rundir import write_arrays
from .._schema import absolute
from .._study import Evaluation, OnStage, Run
from .._task_study import TaskStudy
from ..backbones import IMAGE_ENCODERS, check_view_size
from ..configs import flickr8k, pictograms
from ..images import _views as views
from ..images._views import make_views
from ..view_losses import PAIR_LOSSES, UNKNOWN_SHARE, check_tile, describe_loss, loss_arguments
from ._config import SCHEMA, TEXT, Config, TextOptions, TrainOptions
from ._embed import make_networks, save_towers
from ._evaluate import KS, EmbeddedTestPart, evaluate_pairs, measure_recall
from ._problem import Problem, draw_caption, load_problem

RECIPES: dict[str, Config] = {**flickr8k.CONFIGS, **pictograms.CONFIGS}
_VALID = 5000
"""Maximum number of validation images whose recall is reported."""
_TEXT_LAYERS = 2
"""Number of layers of a text encoder trained from scratch."""
EMBEDDINGS, RETRIEVAL = "embeddings.npz", "retrieval.png"
_DESCRIPTION = """Learn to find images by texts and texts by images, with two networks and a
contrastive loss (CLIP, SigLIP), and evaluate their retrieval on a test part.

  {program}                                   digits, with texts of their names
  {program} --data FOLDER --loss siglip       your own images with texts
  {program} --recipe NAME [flags]             settings for two processor cores:
      {recipes}
  {program} --config FILE [flags]             a configuration in JSON, TOML or YAML
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
    "zero_shot": "accuracy of classes by the nearest text",
    "alignment": "alignment of pairs",
    "image_uniformity": "uniformity of images",
    "text_uniformity": "uniformity of texts",
    **truth.NAMES,
}
"""Display names of the test metrics."""
_CURVES = {
    "loss": "loss",
    "valid_recall@10": "recall@10 on the validation part",
    "valid_recall@1": "recall@1 on the validation part",
    "temperature": "temperature",
    "bias": "bias",
    "auc": "AUC of the scores, by groups",
    "alpha": "α of the loss",
}


class Pairs(TaskStudy[Config, Problem]):
    """Image and text networks with a shared embedding space."""

    schema, recipes, description = SCHEMA, RECIPES, _DESCRIPTION
    unit, scores, score = "images", ("valid_recall@10", "valid_recall@1"), "recall@10"
    names, curves = NAMES, _CURVES

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        super().check(config)
        _resolve_training(config.training, config.objective.loss)
        has_states = PAIR_LOSSES[loss := config.objective.loss].has_states
        check_tile(config, PAIR_LOSSES, f"--loss {loss}" if has_states else None)

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        on_disk = config.training.batches == "disk"
        return load_problem(config.source, _resolve_text(config.text), on_stage, on_disk)

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        share = problem.equal_share
        resolved_views = views.resolve_views(config.views, problem.train.captioned.images)
        check_view_size(config.encoding, resolved_views.view_size)
        config = replace(
            config,
            source=absolute(config.source, "data", but=("digits",)),
            views=resolved_views,
            text=_as_loaded(absolute(config.text, "weights"), problem.encoder),
            training=_resolve_training(config.training, config.objective.loss),
        )
        if not problem.grouped:
            _refuse_groups(config)
        return self.complete_entries(config, tau_plus=UNKNOWN_SHARE if share is None else share)

    def task(
        self, config: Config, problem: Problem, phase: str, numbers: dict[str, float]
    ) -> tasks.CLIP | tasks.SogCLIP:
        """See :meth:`TaskStudy.task`."""
        options, encoder = config.training, problem.encoder
        entry = PAIR_LOSSES[config.objective.loss]
        assert options.temperature is not None
        loss = loss_arguments(config.objective, options.temperature, numbers, PAIR_LOSSES)
        learned: dict[str, Any] = {}
        if options.learn_temperature:
            learned["temperature"] = loss["hyperparams"].pop("temperature")
            learned["min_temperature"] = options.least_temperature
        values = resolve_flags("loss", config.objective, PAIR_LOSSES, tuple(numbers)) | numbers
        if "bias" in entry.settings:
            learned["bias"] = values["bias"]
        make: Callable[..., tasks.CLIP | tasks.SogCLIP] = tasks.CLIP
        if entry.has_states:
            states = {name: values[name] for name in entry.settings}
            warm_up, n = states.pop("warm_up_epochs"), len(problem.train.captioned.images)
            make = partial(tasks.SogCLIP, n_examples=n, warm_up=warm_up, **states)
        pretrained = None if encoder.params is None else {"second": {"backbone": encoder.params}}
        n_channels = problem.train.captioned.images.shape[-1]
        return make(
            *make_networks(config, n_channels, encoder.settings),
            pretrained=pretrained, augment_first=make_views(config.views),
            augment_second=draw_caption, exclude_equal=options.exclude_equal, tile=options.tile,
            **loss, **learned,
        )  # fmt: skip

    def batches(self, config: Config, problem: Problem, phase: str) -> train.ArrayBatches:
        """Returns batches of images with their captions, labelled by group if groups are known."""
        part = problem.train
        pairs, groups = (part.captioned.images, part.captions), part.captioned.groups
        return train.ArrayBatches(
            pairs if groups is None else tasks.LabelledExamples(pairs, groups)
        )

    def measure(self, config: Config, problem: Problem, phase: str) -> Any:
        """Returns the measurement of validation recall, see :func:`measure_recall`."""
        part = problem.valid.sample(_VALID)
        relevant = part.captioned.image_groups, part.captioned.text_groups
        arrays: Any = part.captioned.images, part.tokens, relevant
        return jax.tree_util.Partial(measure_recall, *jax.tree.map(jnp.asarray, arrays))

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        swept = tuple(SCHEMA.axes(config))
        parts = [describe_loss(config.objective, swept, PAIR_LOSSES)]
        if "temperature" not in swept:
            prefix = "from " if config.training.learn_temperature else ""
            parts.append(f"temperature {prefix}{config.training.temperature:g}")
        width = resolve_flags("encoder", config.encoding, IMAGE_ENCODERS)["width"]
        parts.append(f"{config.encoding.encoder} of width {width}")
        text = config.text
        if text.weights is None:
            assert text.text_n_layers is not None
            parts.append(f"BERT of {layers(text.text_n_layers)}, width {text.text_width}")
        else:
            parts.append(f"BERT of {Path(text.weights).name}")
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """See :meth:`Study.describe_data`."""
        parts = problem.train.captioned, problem.valid.captioned, problem.test.captioned
        height, width, channels = parts[0].images.shape[1:]
        images, texts = (
            " / ".join(f"{n:,}" for n in counts)
            for counts in (map(len, parts), (len(part.texts) for part in parts))
        )
        yield (
            f"{images} images of {height} × {width} × {channels} and {texts} texts for training, "
            "validation and test"
        )
        tokenizer, length = problem.encoder.tokenizer, problem.encoder.length
        lengths = tokenizer.lengths(parts[0].texts)
        yield (
            f"{len(tokenizer):,} pieces of words; texts of {lengths.mean():.1f} tokens, of which "
            f"{np.mean(lengths > length):.1%} lose what comes after {length}"
        )
        if (share := problem.equal_share) is not None:
            yield f"{share:.2%} of the pairs of training images are equal, by their groups"
        yield views.describe_views(config.views)

    def trained(
        self, config: Config, problem: Problem, run: Run, fitted: train.FitResult
    ) -> EmbeddedTestPart:
        """See :meth:`TaskStudy.trained`."""
        return EmbeddedTestPart.from_model(super().trained(config, problem, run, fitted), problem)

    def evaluate(
        self,
        config: Config,
        problem: Problem,
        learned: EmbeddedTestPart,
        seed: int,
        on_stage: OnStage,
    ) -> Evaluation:
        """Evaluates retrieval, with reciprocal ranks as cases."""
        return evaluate_pairs(learned, problem, PAIR_LOSSES[config.objective.loss])

    def save(self, learned: EmbeddedTestPart, folder: Path) -> None:
        """Writes both networks, and the test embeddings with their image-text correspondence."""
        save_towers(folder, learned)
        test = learned.test
        write_arrays(
            folder / EMBEDDINGS,
            images=np.asarray(learned.images), texts=np.asarray(learned.texts),
            image_of_text=test.image_of_text, image_groups=test.image_groups,
            captions=np.array(test.texts),
        )  # fmt: skip

    def draw(
        self, config: Config, problem: Problem, learned: EmbeddedTestPart, evaluation: Evaluation,
        title: str, folder: Path,
    ) -> None:  # fmt: skip
        """Draws the images retrieved by some texts."""
        from ._plots import draw_retrieval  # Matplotlib is slow to import

        draw_retrieval(folder / RETRIEVAL, learned, title)


def _resolve_text(options: TextOptions) -> TextOptions:
    """Returns the flags with defaults that differ from those of other commands."""
    if options.weights is not None or options.text_n_layers is not None:
        return options
    return replace(options, text_n_layers=_TEXT_LAYERS)


def _as_loaded(options: TextOptions, encoder: Encoder) -> TextOptions:
    """Returns the flags with unset values filled in from the loaded encoder."""
    resolved = resolve_bert(_resolve_text(options).bert, encoder)
    lowercase = resolved.pop("lowercase")
    text_flags = {TEXT + name: value for name, value in resolved.items()}
    return replace(options, length=encoder.length, lowercase=lowercase, **text_flags)


def _resolve_training(options: TrainOptions, loss: str) -> TrainOptions:
    """Returns the flags with unset values filled in with the defaults of the loss.

    Raises:
      ValueError: If the initial temperature is below its lower bound.
    """
    entry = PAIR_LOSSES[loss]
    if options.temperature is None:
        options = replace(options, temperature=entry.temperature)
    if not options.learn_temperature:
        return options
    if options.least_temperature is None:
        options = replace(options, least_temperature=entry.least_temperature)
    start, least = options.temperature, options.least_temperature
    assert start is not None
    assert least is not None
    if start < least:
        raise ValueError(
            f"--temperature must start from --least-temperature {least:g} or above, got {start:g}."
        )
    return options


def _refuse_groups(config: Any) -> None:
    """Rejects flags that require groups of equal images."""
    for flag, is_given in (
        ("--alpha-from labels", config.objective.alpha_from == "labels"),
        ("--exclude-equal True", config.training.exclude_equal),
    ):
        if is_given:
            raise ValueError(
                f"{flag} requires groups of equal images, and {config.source.data} has none."
            )
