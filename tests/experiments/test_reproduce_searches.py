"""Tests of hyper-parameter searches: grids, skipped points, and resuming after a kill."""

import dataclasses

import numpy as np
import pytest
from _helpers.killing import Killed
from _helpers.refusals import raises

from crl_jax import train
from crl_jax.data import simulate
from experiments.studies import contrastive, kept, sampling, training
from experiments.studies.methods import Method, Minibatch, World
from experiments.studies.published import published

pytestmark = [
    pytest.mark.usefixtures("standard_promotion", "quick_compiles"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]


def test_a_point_that_diverges_is_passed_over(worlds):
    (world,) = worlds("ml-100k")
    axes = (("optimizer.learning_rate", (1e30, 1e-2)),)
    minibatch = Minibatch(axes, batch_size=64, eval_every=1, at_once=False)
    done = training.train_minibatch(Method("a", minibatch=minibatch), world, (0,), 2)
    assert done.chosen["learning_rate"] == pytest.approx(1e-2)
    never = dataclasses.replace(minibatch, axes=(("optimizer.learning_rate", (1e30, 2e30)),))
    with raises(train.TrainingDiverged):
        training.train_minibatch(Method("a", minibatch=never), world, (0,), 2)


def test_every_loss_of_a_comparison_has_as_many_points(worlds):
    (world,) = worlds("ml-1m")
    for dataset, budgets in contrastive.BUDGETS.items():
        for encoder in budgets:
            for number, rows in contrastive.TABLES.items():
                made = contrastive.methods(number, encoder, dataset, world)
                assert [m.label for m in made] == list(rows)
                points = 4 if dataset in ("gowalla", "yelp2018") else 8
                assert {m.points for m in made} == {points}
                assert set(rows) <= set(published(number, dataset, encoder))


@pytest.mark.parametrize(
    ("dataset", "faster", "l2"), [("ml-100k", 1, 1), ("ml-1m", 4, 1), ("gowalla", 8, 1 / 3)]
)
def test_l2_on_tables_falls_with_their_length(worlds, dataset, faster, l2):
    (world,) = worlds("ml-1m")
    of = {made.label: made for made in contrastive.methods("5.2", "mf", dataset, world)}
    l2 *= (943 + 1682) / (world.train.n_users + world.train.n_items)
    axes = {name: np.array(values) for name, values in of["bpr"].minibatch.axes}
    np.testing.assert_allclose(axes["optimizer.weight_decay"], np.array([1e-5, 3e-5]) * l2)
    np.testing.assert_allclose(axes["optimizer.learning_rate"], np.array([1e-3, 2e-3]) * faster)
    weaker = 1 if dataset == "ml-100k" else 3
    axes = {name: np.array(values) for name, values in of["dpl"].minibatch.axes}
    np.testing.assert_allclose(axes["optimizer.weight_decay"], np.array([1e-5, 2e-5]) * l2 / weaker)
    np.testing.assert_allclose(of["dpl"].minibatch.learning_rate, 1e-3 * faster)


def test_l2_on_rows_does_not_depend_on_their_number(worlds):
    (world,) = worlds("ml-1m")
    bpr, *_ = contrastive.methods("5.2", "lightgcn", "gowalla", world)
    axes = {name: np.array(values) for name, values in bpr.minibatch.axes}
    assert list(axes) == ["optimizer.weight_decay"]
    np.testing.assert_allclose(axes["optimizer.weight_decay"], [1e-4, 2e-4, 3e-4, 5e-4])
    np.testing.assert_allclose(bpr.minibatch.learning_rate, 3e-2)


def test_what_was_kept_is_found_whatever_searches_there_are():
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    world = World(log, log, "")
    assert kept._further(sampling.RNS, world) == []
    other = Method("a", minibatch=Minibatch(batch_size=2048))
    assert "2048" in str(kept._further(other, world))
    # The number of epochs is a separate component of the name.
    longer = dataclasses.replace(other, minibatch=Minibatch(batch_size=2048, epochs=7))
    assert kept._further(other, world) == kept._further(longer, world)


def test_in_turn_is_as_at_once_and_goes_on_after_a_kill(worlds, tmp_path):
    (world,) = worlds("ml-100k")
    axes = (("optimizer.learning_rate", (1e-3, 1e-2)),)
    at_once = Method("a", minibatch=Minibatch(axes, batch_size=64, eval_every=1))
    in_turn = dataclasses.replace(
        at_once, minibatch=dataclasses.replace(at_once.minibatch, at_once=False)
    )
    want = training.train_minibatch(at_once, world, (0, 1), 4)
    seen = []

    def killed(entry):
        seen.append(entry)
        if len(seen) == 6:
            raise Killed

    checkpoint = tmp_path / "a.npz"
    with raises(Killed):
        training.train_minibatch(in_turn, world, (0, 1), 4, checkpoint=checkpoint, on_epoch=killed)
    again = []
    got = training.train_minibatch(
        in_turn, world, (0, 1), 4, checkpoint=checkpoint, on_epoch=again.append
    )
    # The first point is not trained again: its entries are identical, including the times.
    assert again[:4] == seen[:4]
    assert got.chosen == pytest.approx(want.chosen, rel=1e-4)
    for ours, theirs in zip(got.per_seed, want.per_seed, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4)
    assert {path.name for path in tmp_path.iterdir()} == {
        "a.search.0.npz", "a.search.1.npz", "a.0.npz", "a.1.npz",
    }  # fmt: skip
