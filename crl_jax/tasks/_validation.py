"""What :func:`fit_ranking` is given, judged and laid out before anything is traced."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import check_registered
from ..data import Interactions
from ..models import Encoder
from ..samplers import Sampler
from ..train import TrainConfig, check_count
from ._auxiliary import AuxiliaryLoss
from ._contrast import ContrastiveAuxiliaryLoss
from ._ranking import HyperparamSchedule, Ranking

_ANCHORS = 2  # as many as it takes to tell a number per anchor from their mean

# What an argument must be an object of, and how that is said.
_KINDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train": ((Interactions,), "Interactions, such as the `train` of a split"),
    "valid": ((Interactions,), "Interactions, such as the `valid` of a split"),
    "loss": ((Callable,), "a function of scores, such as losses.bpr"),
    "encoder": (
        (Encoder, Callable),
        "an encoder or what makes one, such as LightGCN.from_interactions",
    ),
    "sampler": ((Sampler,), "a sampler, such as samplers.RNS()"),
    "auxiliary_loss": ((AuxiliaryLoss,), "a term, such as tasks.LayerContrast()"),
    "config": ((TrainConfig,), "a train.TrainConfig"),
}


def check_kinds(**given: Any) -> None:
    """Raises ``ValueError`` unless each argument, by its name, is what it must be; None passes.

    A class in place of one of its objects is refused.
    """
    for name, value in given.items():
        kinds, said = _KINDS[name]
        if isinstance(value, type):
            raise ValueError(f"`{name}` must be {said}, got the class {value.__name__}.")
        if value is not None and not isinstance(value, kinds):
            shown = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
            raise ValueError(f"`{name}` must be {said}, got {shown}.")
        if isinstance(value, (Sampler, Encoder, AuxiliaryLoss)):
            check_registered(name, value)


def check_counts(counts: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` unless all are whole and large enough, and go together."""
    for name, count in counts.items():
        check_count(name, count, 0 if name in ("n_pos", "n_group") else 1)
    if counts["n_pos"] and counts["n_group"]:
        raise ValueError(
            "`n_group` must be 0 with extra positives, "
            f"got {counts['n_group']} and {counts['n_pos']}."
        )


def check_same_ids(name: str, part: Interactions | None, train: Interactions) -> None:
    """Raises ``ValueError`` unless ``part`` is of the users and items of ``train``."""
    for ids in ("user_ids", "item_ids"):
        if part is not None and not np.array_equal(getattr(part, ids), getattr(train, ids)):
            raise ValueError(
                f"`{name}` must have the `{ids}` of `train`, {len(getattr(train, ids))} of them, "
                f"got {len(getattr(part, ids))}, not the same."
            )


def check_hyperparams(task: Ranking, numbers: Mapping[str, np.ndarray]) -> None:
    """Lets the loss judge its hyper-parameters as numbers, which it cannot while training.

    With a schedule those of the start and of the end. No loss is computed: the scores have shapes
    alone.

    Args:
      task: The task.
      numbers: Hyper-parameters that differ between runs, by name, ``[runs]``.
    """
    n_ahead = 1 + task.n_pos + task.n_group
    ahead = (_ANCHORS, n_ahead) if n_ahead > 1 else (_ANCHORS,)
    shapes = ahead, (_ANCHORS, task.n_neg)
    _judge("loss", task.loss_fn, task.hyperparams, numbers, shapes, task.hyperparam_schedule)


def check_term(task: Ranking, numbers: Mapping[str, np.ndarray]) -> None:
    """The same of a further term, which must also suit the encoder.

    Args:
      task: The task.
      numbers: Numbers of the term that differ between runs, by name, ``[runs]``.
    """
    term = task.auxiliary_loss
    if term is None:
        return
    term.check(task.encoder)
    if isinstance(term, ContrastiveAuxiliaryLoss):
        own = {name: values for name, values in numbers.items() if name in term.hyperparams}
        shapes = (_ANCHORS,), (_ANCHORS, _ANCHORS)
        _judge("loss_fn", term.loss_fn, term.hyperparams, own, shapes)


def _judge(
    name: str,
    loss: Callable[..., Any],
    hyperparams: Mapping[str, Any],
    numbers: Mapping[str, np.ndarray],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    schedule: HyperparamSchedule | None = None,
) -> None:
    """Raises ``ValueError`` unless a loss takes the numbers of all runs."""
    pos, neg = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    fixed = {name: value for name, value in hyperparams.items() if name not in numbers}
    runs = set(zip(*(np.asarray(a).tolist() for a in numbers.values()), strict=True)) or {()}
    for values in runs:
        given = {**fixed, **dict(zip(numbers, values, strict=True))}
        # Counted as training counts them.
        ends = [{name: float(np.float32(value)) for name, value in given.items()}]
        if schedule is not None:
            traced = {name: jnp.float32(value) for name, value in given.items()}
            ends = [schedule(jnp.float32(at), traced) for at in (0, 1)]
            ends = [{name: float(value) for name, value in end.items()} for end in ends]
        for end in ends:
            _check_given(name, loss, end)
            found = jax.eval_shape(partial(loss, reduce_fn=None, **end), pos, neg)
            shape = getattr(found, "shape", None)
            if shape != (_ANCHORS,):
                raise ValueError(
                    f"`{name}` must return one number per anchor with `reduce_fn=None`, "
                    f"[{_ANCHORS}] of {_ANCHORS} anchors, got {shape}."
                )


def _check_given(name: str, loss: Callable[..., Any], numbers: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if a loss asks for what nobody gives."""
    wanted = [
        p.name
        for p in inspect.signature(loss).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    ]
    if missing := sorted({*wanted} - {"reduce_fn", *numbers}):
        raise ValueError(
            f"`hyperparams` must hold {', '.join(missing)}, which `{name}` asks for, "
            f"got {sorted(numbers)}."
        )
