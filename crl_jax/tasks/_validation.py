"""Checks of the arguments of :func:`fit_ranking` before anything is traced."""

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
from ..train import TrainConfig
from ._auxiliary import AuxiliaryLoss
from ._contrast import ContrastiveAuxiliaryLoss
from ._ranking import HyperparamSchedule, Ranking

_N_ANCHORS = 2  # distinguishes a loss per anchor from its mean

# Accepted types of each argument, and their description.
_KINDS: dict[str, tuple[tuple[Any, ...], str]] = {
    "train": ((Interactions,), "Interactions, such as the `train` of a split"),
    "valid": ((Interactions,), "Interactions, such as the `valid` of a split"),
    "loss": ((Callable,), "a function of scores, such as losses.bpr"),
    "encoder": (
        (Encoder, Callable),
        "an encoder or a function that creates one, such as LightGCN.from_interactions",
    ),
    "sampler": ((Sampler,), "a sampler, such as samplers.RNS()"),
    "auxiliary_loss": ((AuxiliaryLoss,), "an AuxiliaryLoss, such as tasks.LayerContrast()"),
    "config": ((TrainConfig,), "a train.TrainConfig"),
}


def check_kinds(**arguments: Any) -> None:
    """Raises ``ValueError`` unless each argument has an accepted type; None passes."""
    for name, value in arguments.items():
        kinds, description = _KINDS[name]
        if isinstance(value, type):
            raise ValueError(f"`{name}` must be {description}, got the class {value.__name__}.")
        if value is not None and not isinstance(value, kinds):
            got = repr(value) if isinstance(value, (str, int, float)) else type(value).__name__
            raise ValueError(f"`{name}` must be {description}, got {got}.")
        if isinstance(value, (Sampler, Encoder, AuxiliaryLoss)):
            check_registered(name, value)


def check_same_ids(name: str, part: Interactions | None, train: Interactions) -> None:
    """Raises ``ValueError`` unless ``part`` has the users and items of ``train``."""
    for ids in ("user_ids", "item_ids"):
        if part is not None and not np.array_equal(getattr(part, ids), getattr(train, ids)):
            raise ValueError(
                f"`{name}` must have the {len(getattr(train, ids))} `{ids}` of `train`, "
                f"got {len(getattr(part, ids))} different ones."
            )


def check_hyperparams(task: Ranking, run_params: Mapping[str, np.ndarray]) -> None:
    """Checks the hyper-parameters of the loss as concrete values, by abstract evaluation.

    Args:
      task: The task. With a schedule, the hyper-parameters of start and end are checked.
      run_params: Swept hyper-parameters by name, ``[runs]``.
    """
    n_pos = 1 + task.n_pos + task.n_group
    pos_shape = (_N_ANCHORS, n_pos) if n_pos > 1 else (_N_ANCHORS,)
    shapes = pos_shape, (_N_ANCHORS, task.n_neg)
    _check_loss(
        "loss", task.loss_fn, task.hyperparams, run_params, shapes, task.hyperparam_schedule
    )


def check_auxiliary_loss(task: Ranking, run_params: Mapping[str, np.ndarray]) -> None:
    """Checks the encoder and the hyper-parameters of the auxiliary loss.

    Args:
      task: The task.
      run_params: Swept hyper-parameters of the auxiliary loss by name, ``[runs]``.
    """
    term = task.auxiliary_loss
    if term is None:
        return
    term.check(task.encoder)
    if isinstance(term, ContrastiveAuxiliaryLoss):
        known = {name: values for name, values in run_params.items() if name in term.hyperparams}
        shapes = (_N_ANCHORS,), (_N_ANCHORS, _N_ANCHORS)
        _check_loss("loss_fn", term.loss_fn, term.hyperparams, known, shapes)


def _check_loss(
    name: str,
    loss: Callable[..., Any],
    hyperparams: Mapping[str, Any],
    run_params: Mapping[str, np.ndarray],
    shapes: tuple[tuple[int, ...], tuple[int, ...]],
    schedule: HyperparamSchedule | None = None,
) -> None:
    """Raises ``ValueError`` unless the loss accepts the hyper-parameters of all runs."""
    pos, neg = (jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes)
    fixed = {name: value for name, value in hyperparams.items() if name not in run_params}
    runs = set(zip(*(np.asarray(a).tolist() for a in run_params.values()), strict=True)) or {()}
    for values in runs:
        run = {**fixed, **dict(zip(run_params, values, strict=True))}
        ends = [{name: float(np.float32(value)) for name, value in run.items()}]
        if schedule is not None:
            arrays = {name: jnp.float32(value) for name, value in run.items()}
            ends = [schedule(jnp.float32(progress), arrays) for progress in (0, 1)]
            ends = [{name: float(value) for name, value in end.items()} for end in ends]
        for end in ends:
            _check_required(name, loss, end)
            out = jax.eval_shape(partial(loss, reduce_fn=None, **end), pos, neg)
            shape = getattr(out, "shape", None)
            if shape != (_N_ANCHORS,):
                raise ValueError(
                    f"`{name}` must return one number per anchor with `reduce_fn=None`, "
                    f"[{_N_ANCHORS}] of {_N_ANCHORS} anchors, got {shape}."
                )


def _check_required(name: str, loss: Callable[..., Any], hyperparams: Mapping[str, Any]) -> None:
    """Raises ``ValueError`` if a required hyper-parameter is missing."""
    required = {
        p.name
        for p in inspect.signature(loss).parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty
    }
    if missing := sorted(required - {"reduce_fn", *hyperparams}):
        raise ValueError(
            f"`hyperparams` must hold {', '.join(missing)}, required by `{name}`, "
            f"got {sorted(hyperparams)}."
        )
