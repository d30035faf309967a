"""The examples of the README run, and it links the guide of every package."""

import csv
import json
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from _helpers.pages import FRONT, ROOT, known_items, run

from crl_jax import data
from experiments._study_command import configure
from experiments.recommend import main as recommend
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

# The training example of the README, as flags.
README_FLAGS = """--data ratings.csv --valid-fraction 0.1 --loss bayesian --temperature 1 --beta 0.7
--tau-plus 0.05 --n-neg 32 --sampler rns --dim 32 --similarity inner --lr 1e-3 --weight-decay 1e-5
--l2-target tables --schedule constant --epochs 200 --patience 50 --eval-every 1 --batch-size 1024
--final-training train --tune 0 --baselines none --out runs/mine"""


def test_readme_examples_run(tmp_path, monkeypatch, capsys):
    """The Python example reaches the same metrics as the command with the same settings."""
    log = data.simulate(n_users=40, n_items=60, n_exposed=40, seed=3).interactions
    monkeypatch.chdir(tmp_path)
    with open("ratings.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["user", "item"])
        rows.writerows((190 + u, i) for u, i in zip(log.users, log.items, strict=True))
    names = run(FRONT)
    assert np.isfinite(names["value"])
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(names["gradient"]))
    best = names["recommender"].recommend(196, k=10).items[0].tolist()
    assert not set(best) & set(known_items(names["split"].train, 196))
    printed = capsys.readouterr().out
    assert printed.count("NDCG@20") == 3  # the losses that are compared
    found = dict(re.findall(r"'([\w@]+)': ([\d.e-]+)", printed))
    commands = re.findall(r"crl-jax recommend (--data [^`\n]*)", FRONT.read_text())
    assert len(commands) == 2
    for command in commands:
        study = Recommend()
        study.check(configure(study, shlex.split(command))[0])
    assert recommend(README_FLAGS.split()) == 0
    metrics = json.loads(Path("runs/mine/metrics.json").read_text())
    shared = found.keys() & metrics.keys()
    assert {"ndcg@20", "recall@20", "auc"} <= shared
    for name in shared:
        assert float(found[name]) == pytest.approx(metrics[name], rel=1e-4), name


def test_readme_links_every_package():
    linked = set(re.findall(r"/guide/(\w+)\.html", FRONT.read_text()))
    assert linked == {path.parent.name for path in ROOT.glob("crl_jax/*/__init__.py")}
