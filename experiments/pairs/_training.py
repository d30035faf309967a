"""What a run trains: the task of the flags, and what each report measures."""

from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import metrics, models, tasks

from .. import _traced as traced
from .._registry import settle
from ..images._views import make_views
from ..images.encoders import make_backbone
from ..view_losses import parts_of_loss
from ._config import Config
from ._problem import Part, Problem, draw_caption
from .losses import LOSSES

BLOCK = 250
"""Images, or texts, that are embedded at a time."""


def examples_of(part: Part) -> Any:
    """Images with their captions; labelled, where it is known which are equal."""
    pairs, groups = (part.captioned.images, part.captions), part.captioned.groups
    return pairs if groups is None else tasks.LabelledExamples(pairs, jnp.asarray(groups))


def task_of(config: Config, problem: Problem, numbers: dict[str, float]) -> tasks.CLIP:
    """The task, with the numbers of a sweep in place of the flags'.

    Raises:
      ValueError: If flags contradict each other or do not suit images or texts.
    """
    options, encoder = config.training, problem.encoder
    entry = LOSSES[config.objective.loss]
    assert options.temperature is not None
    hyperparams, alpha = parts_of_loss(config.objective, options.temperature, numbers, LOSSES)
    learned: dict[str, Any] = {}
    if options.learn_temperature:
        learned["temperature"] = hyperparams.pop("temperature")
        learned["min_temperature"] = options.least_temperature
    if "bias" in entry.settings:
        values = settle("loss", config.objective, LOSSES, tuple(numbers)) | numbers
        learned["bias"] = values["bias"]
    given = None if encoder.params is None else {"second": {"backbone": encoder.params}}
    n_channels = problem.train.captioned.images.shape[-1]
    return tasks.CLIP(
        *networks_of(config, n_channels, encoder.settings),
        loss_fn=entry.loss, hyperparams=hyperparams, alpha=alpha, pretrained=given,
        augment_first=make_views(config.views), augment_second=draw_caption,
        exclude_equal=options.exclude_equal, tile=options.tile, **learned,
    )  # fmt: skip


def networks_of(
    config: Config, n_channels: int, settings: models.BERT
) -> tuple[models.Network, models.Network]:
    """The networks of images and of texts, each with its way into the space."""
    to_space = models.Projection((config.training.dim,), norm=False, last_bias=False)
    images = make_backbone(config.encoding, n_channels)
    return (
        models.Network(models.BackboneWithHead(images, to_space)),
        models.Network(models.BackboneWithHead(settings, to_space)),
    )


def trace_step(config: Config, problem: Problem, numbers: dict[str, float]) -> Any:
    """Looks through a step, without computing anything.

    Raises:
      ValueError: If flags contradict each other or do not suit images or texts.
    """
    n = config.training.batch_size
    examples = jax.tree.map(lambda leaf: leaf[:n], examples_of(problem.train))
    return traced.trace_step(task_of(config, problem, numbers), examples)


def recall_on(part: Part) -> Any:
    """Measures ``valid_recall@10`` and ``valid_recall@1``, means of both directions."""
    relevant = part.captioned.image_groups, part.captioned.text_groups
    arrays: Any = part.captioned.images, part.tokens, relevant
    return jax.tree_util.Partial(_recall, *jax.tree.map(jnp.asarray, arrays))


def embed(task: tasks.CLIP, params: Any, model_state: Any, images: Any, tokens: Any) -> Any:
    """Embeddings of images and of texts, of length 1."""
    return task.embed(params, model_state, images, tokens, block_size=BLOCK)


def _recall(
    images: Any, tokens: Any, relevant: Any, task: Any, params: Any, model_state: Any
) -> dict[str, Any]:
    of_images, of_texts = embed(task, params, model_state, images, tokens)
    found = metrics.retrieval_recall(of_images, of_texts, relevant, ks=(1, 10))
    both = {k: found[f"first_recall@{k}"] + found[f"second_recall@{k}"] for k in (10, 1)}
    return {f"valid_recall@{k}": of_both / 2 for k, of_both in both.items()}
