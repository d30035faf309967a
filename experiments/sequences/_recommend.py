"""The subcommand ``recommend``: the next items of histories, by the encoder of a run."""

import warnings
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax.numpy as jnp
import numpy as np
import tyro

from crl_jax import data, tasks, train

from .. import _encoder_file as file
from .._program import program
from .._ranges import COUNT, option_group, parse_flags
from .._read_options import ReadOptions
from .._rundir import make_out_for, read_arrays, write_csv
from .._screen import output, plain
from ._config import SCHEMA
from ._study import ITEMS, make_network, read_log

_DESCRIPTION = """The next items of each user of a file, whose users may be unknown to the run.

Writes a CSV file with the columns user, item, rank and score.
"""
_BLOCK = 256
"""Number of users whose scores are in memory at a time."""


@option_group
class RecommendOptions(ReadOptions):
    """Options of ``recommend``."""

    run: Path
    """Run directory of a finished training."""
    data: str
    """File or folder of the histories, interactions with timestamps and the item ids of the run; or
    simulated, for those of a training without --data."""
    k: Annotated[int, COUNT] = 10
    """Number of items per user."""
    include_seen: bool = False
    """Whether items of the history may be recommended again."""
    out: Path = Path("recommendations.csv")
    """Output file."""


def main(arguments: list[str]) -> None:
    """Runs the subcommand with its flags.

    Raises:
      ValueError: If the run or the histories do not exist, or share no item.
    """
    options = parse_flags(
        RecommendOptions, f"{program('sequences')} recommend", _DESCRIPTION, arguments,
        (tyro.conf.FlagConversionOff,),
    )  # fmt: skip
    make_out_for(options.out)
    task, variables, item_ids = load_task(options.run)
    if options.k > len(item_ids):
        raise ValueError(f"--k must be at most the {len(item_ids)} items, got {options.k}.")
    log = read_log(options.data, options.arguments())
    users, histories = known_histories(log, item_ids)
    rows, n_short = [], 0
    for first in range(0, len(users), _BLOCK):
        block = jnp.asarray(histories[first : first + _BLOCK])
        top_items = _top_k(
            task, *variables, block, k=options.k, exclude_seen=not options.include_seen
        )
        for user, scores, items in zip(users[first:], *map(np.asarray, top_items)):
            ranked = zip(item_ids[items[items >= 0]], scores)
            rows += [(user, item, i, f"{score:.6g}") for i, (item, score) in enumerate(ranked, 1)]
            n_short += int(items[-1] < 0)
    write_csv(options.out, ("user", "item", "rank", "score"), rows)
    output().print(f"{len(rows):,} items for {len(users):,} users in {plain(options.out)}")
    if n_short:
        output().print(f"fewer than {options.k} items are left for {n_short:,} of them")


def load_task(folder: Path) -> tuple[tasks.NextItem, tuple[Any, Any], np.ndarray]:
    """Returns the task of a run, its variables, and the ids of its items.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or its files are damaged.
    """
    saved = file.open_encoder(folder, SCHEMA)
    (item_ids,) = read_arrays(folder / ITEMS, "item_ids")
    network = make_network(saved.config, len(item_ids))
    task = tasks.NextItem(network, len(item_ids), saved.config.training.window)
    return task, saved.variables(network.init), item_ids


def known_histories(log: data.Interactions, item_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns ids of users, and their histories as indices of ``item_ids``.

    Unknown items are dropped with a warning.

    Raises:
      ValueError: If there are no timestamps, or no known items.
    """
    index = {str(item): i for i, item in enumerate(item_ids.tolist())}  # 7 and "7" are one id
    known = np.array([index.get(str(item), -1) for item in log.item_ids.tolist()], np.int32)
    is_known = known[log.items] >= 0
    if not is_known.any():
        raise ValueError("--data has none of the items of the run.")
    if not is_known.all():
        warnings.warn(
            f"{(~is_known).sum():,} interactions with unknown items are ignored.", stacklevel=2
        )
    had_items = log.degrees > 0
    log = log.select(is_known)
    rows, users = data.item_sequences(log), log.degrees > 0
    if n_without := int((had_items & ~users).sum()):
        warnings.warn(
            f"{n_without:,} users without known items get no recommendations.", stacklevel=2
        )
    return log.user_ids[users], np.where(rows < 0, -1, known[rows])[users]


@partial(train.jit, static_argnames=("k", "exclude_seen"))
def _top_k(task: tasks.NextItem, *args: Any, k: int, exclude_seen: bool) -> Any:
    return task.top_k(*args, k=k, exclude_seen=exclude_seen)
