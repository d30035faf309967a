"""Datasets and outcomes for tests of `experiments.reproduce`."""

import csv
import json

import numpy as np

from crl_jax.data import simulate
from experiments.reproduce.methods import SAMPLING
from experiments.reproduce.outcomes import Outcome

OCCUPATIONS = ["writer", "artist", "other"]


def write_dataset(path):
    """Writes a log in MovieLens format with original ids, and a split with ids by appearance.

    Ratings in the split are from 1 to 5.
    """
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    rng = np.random.default_rng(0)
    order = rng.permutation(len(log))
    users, items, ratings = log.users[order], log.items[order], rng.integers(1, 6, len(log))
    with (path / "u.data").open("w") as file:
        for u, i in zip(users, items, strict=True):
            file.write(f"{100 + u}\t{500 + i}\t4\t88\n")
    with (path / "u.user").open("w") as file:
        for u in range(20):
            file.write(f"{100 + u}|30|M|{OCCUPATIONS[u % 3]}|00000\n")
    user_of = {u: n for n, u in enumerate(dict.fromkeys(users.tolist()))}
    item_of = {i: n for n, i in enumerate(dict.fromkeys(items.tolist()))}
    held_out = rng.random(len(users)) < 0.2
    for name, part in (("train", ~held_out), ("test", held_out)):
        with (path / f"{name}.csv").open("w") as file:
            file.write("user,item,rating\n")
            for u, i, r in zip(users[part], items[part], ratings[part], strict=True):
                file.write(f"{user_of[u]},{item_of[i]},{r}\n")
    return path


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def stored(folder):
    """Returns the stored outcomes of an output folder by label."""
    outcomes = [json.loads(path.read_text()) for path in (folder / "runs").glob("*.json")]
    return {outcome["label"]: outcome for outcome in outcomes}


def outcome(label, scores, users=(0.5,), **rest):
    """Returns an outcome with the same score for all metrics of a seed."""
    per_seed = [dict.fromkeys(SAMPLING.metrics, score) for score in scores]
    return Outcome(label, per_seed, list(users), [], rest)
