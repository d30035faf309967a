"""Tests of the search by successive halving, without training."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import train
from crl_jax.models import Tables
from experiments.recommend._config import Config
from experiments.recommend._options import ProtocolOptions, TrainOptions
from experiments.recommend._tuning import Space, _members, _select_preferred, tune

pytestmark = pytest.mark.usefixtures("unchecked")

SEED, N_SEEDS, EPOCHS = 3, 2, 9
SHORT = 3
"""Number of epochs of the first rung."""


@dataclass
class Training:
    """Replaces training: the longer and the closer to ``lr=7``, the better.

    Attributes:
      end_at: Index of the training during which the process ends; None for never.
      diverging: Learning rates that diverge.
      seconds: Time of a training.
      before: Time of each training before an interruption, which its history includes.
      calls: Configuration, learning rates and epochs of each training.
    """

    end_at: int | None = None
    diverging: tuple[float, ...] = ()
    seconds: float = 0.0
    before: float = 0.0
    calls: list = field(default_factory=list)
    now: float = 0.0

    def fit(self, config, runs, path, report):
        assert runs["seeds"].tolist() == [SEED, SEED + 1] * (len(runs["seeds"]) // N_SEEDS)
        rates, epochs = runs["lr"][::N_SEEDS].tolist(), int(runs["epochs"][0])
        assert set(runs["epochs"].tolist()) == {epochs}
        if len(self.calls) == self.end_at:
            raise KeyboardInterrupt
        self.calls.append((config, rates, epochs))
        self.now += self.seconds
        if {*rates} <= {*self.diverging}:
            raise train.TrainingDiverged("all runs")
        path.write_bytes(b"checkpoint")
        # The seeds differ by 2, and are averaged.
        noise = 2 * (runs["seeds"] - SEED) - 1
        scores = [
            np.nan if lr in self.diverging else float(score(lr, epochs) + shift)
            for lr, shift in zip(runs["lr"], noise, strict=True)
        ]
        entry = {"epoch": epochs, "loss": [0.5] * len(scores), "valid_ndcg@20": scores}
        report(entry)
        none, history = np.zeros(len(scores)), [entry | {"seconds": self.before + self.seconds}]
        return train.FitResult(None, None, (), runs, none, none, history)  # type: ignore[arg-type]


def score(lr, epochs):
    return epochs / 100 - (lr - 7) ** 2


def space(*rates, minutes=None, **names):
    protocol = ProtocolOptions(seed=SEED, search_seeds=N_SEEDS, tune=minutes, search="halving")
    config = Config(training=TrainOptions(epochs=EPOCHS), protocol=protocol)
    return Space(config, [{"lr": float(lr)} for lr in rates], names)


def search(spaces, training, folder):
    """Returns the result, and the lines of the history."""
    folder.mkdir(exist_ok=True)
    lines = []
    result = tune(
        spaces, training.fit, folder, lambda of, entry: lines.append(of.line(entry)), lambda _: None
    )
    return result, lines


def test_the_best_third_is_trained_completely(tmp_path):
    training = Training()
    result, lines = search([space(*range(1, 10))], training, tmp_path)
    assert [call[1:] for call in training.calls] == [
        ([1, 2, 3, 4, 5, 6, 7, 8], SHORT), ([9], SHORT), ([6, 7, 8], EPOCHS),
    ]  # fmt: skip
    assert (result.point, result.choice.point, result.choice.epochs) == ({"lr": 7}, 6, EPOCHS)
    assert result.choice.score == pytest.approx(0.09)
    epochs = [SHORT] * 5 + [EPOCHS] * 3 + [SHORT]
    assert result.choice.best_epochs.tolist() == epochs
    want = [score(lr, n) for lr, n in zip(range(1, 10), epochs, strict=True)]
    assert result.choice.scores.tolist() == pytest.approx(want)
    assert "9 of 9 points for 3 epochs, the best 3 for 9" in result.description
    assert [line.get("run", 0) for line in lines] == [0, 1, 2]
    assert [len(line["loss"]) for line in lines] == [8 * N_SEEDS, N_SEEDS, 3 * N_SEEDS]
    assert not [*tmp_path.glob("*.npz")]  # a finished training needs no checkpoint


def test_points_of_one_space_are_trained_eight_at_a_time(tmp_path):
    """The first eight of each space come first."""
    first, second = space(*range(100, 120), loss="a"), space(6, 7, loss="b")
    training = Training()
    result, _ = search([first, second], training, tmp_path)
    short = [(config, rates) for config, rates, epochs in training.calls if epochs == SHORT]
    assert [rates for _, rates in short] == [
        [*range(100, 108)], [6, 7], [*range(108, 116)], [*range(116, 120)],
    ]  # fmt: skip
    assert [config is second.config for config, _ in short] == [False, True, False, False]
    assert result.point == {"loss": "b", "lr": 7}
    assert result.config is second.config
    assert [point["loss"] for point in result.points] == ["a"] * 20 + ["b"] * 2


@pytest.mark.parametrize(
    ("scores", "want"),
    [((0.9, 0.97, 1.0), 1), ((0.97, 0.9, 1.0), 0), ((0.9, 0.95, 1.0), 2), ((np.nan, 0.97, 1.0), 1)],
)
def test_an_earlier_space_wins_within_four_percent(scores, want):
    """Each space has two points, of which the second was not trained completely."""
    sizes, chosen = [2, 2, 2], (0, 2, 4)
    short = train.RungResult(0, tuple(range(6)), (2.0,) * 6, (SHORT,) * 6, 1.0)
    complete = train.RungResult(1, chosen, scores, (EPOCHS,) * 3, 1.0)
    found = train.HalvingResult(4, EPOCHS, 1.0, (short, complete))
    assert _select_preferred(found, sizes, 1) == (chosen[want], EPOCHS, scores[want])


def test_blend_candidates_are_best_of_each_close_kind():
    """Kinds c, e and f are excluded: too low, not trained completely, diverged. Point 3 of kind b
    has a better score only in its short training."""
    kinds = "a", "a", "b", "b", "c", "e", "f", "d"
    spaces = [replace(space(0), kind=kind) for kind in kinds]
    short = train.RungResult(0, (3, 5), (2.0, 2.0), (SHORT,) * 2, 1.0)
    scores = (0.99, 1.0, 0.9, 0.79, np.nan, 0.81)
    complete = train.RungResult(1, (0, 1, 2, 4, 6, 7), scores, (8, 9, 7, 6, 5, 4), 1.0)
    found = train.HalvingResult(0, 8, 1.0, (short, complete))
    choice = train.Selection(1, 9, 1.0, np.zeros(8), np.zeros(8))
    members = _members(found, spaces, choice, 1)
    assert [(member.point, member.epochs) for member in members] == [(1, 9), (2, 7), (7, 4)]
    assert all(member.config is spaces[member.point].config for member in members)


def test_time_limit_leaves_points_untried(tmp_path, monkeypatch):
    """Half of four minutes allows two trainings of a minute, the rest five points."""
    training = Training(seconds=60)
    monkeypatch.setattr("crl_jax.train._halving.time.monotonic", lambda: training.now)
    result, _ = search([space(*range(24), minutes=4)], training, tmp_path)
    assert [call[1:] for call in training.calls] == [
        ([*range(8)], SHORT), ([*range(8, 16)], SHORT), ([5, 6, 7], EPOCHS), ([8, 9], EPOCHS),
    ]  # fmt: skip
    assert np.isnan(result.choice.scores).tolist() == [False] * 16 + [True] * 8
    assert "16 of 24 points" in result.description


def test_time_limit_counts_time_before_interruption(tmp_path, monkeypatch):
    training = Training(seconds=10, before=50)
    monkeypatch.setattr("crl_jax.train._halving.time.monotonic", lambda: training.now)
    search([space(*range(24), minutes=4)], training, tmp_path)
    assert len(training.calls) == 4  # as without interruptions, above


@pytest.mark.parametrize("end_at", range(4))
def test_interrupted_search_resumes_to_same_result(end_at, tmp_path):
    spaces, diverging = [space(*range(1, 12)), space(40, loss="b")], (3.0, 40.0)
    whole = Training(diverging=diverging)
    want, lines = search(spaces, whole, tmp_path / "whole")
    first = Training(end_at, diverging)
    with raises(KeyboardInterrupt):
        search(spaces, first, tmp_path / "ended")
    second = Training(diverging=diverging)
    got, again = search(spaces, second, tmp_path / "ended")
    assert first.calls + second.calls == whole.calls
    np.testing.assert_equal(again, lines)
    assert (got.points, got.config) == (want.points, want.config)
    np.testing.assert_equal(vars(got.choice), vars(want.choice))


def test_diverged_points_are_not_chosen(tmp_path):
    training = Training(diverging=(7.0, 50.0))
    result, _ = search([space(6.5, 7, 5), space(50, loss="b")], training, tmp_path)
    assert result.point == {"lr": 6.5}
    assert np.isnan(result.choice.scores).tolist() == [False, True, False, True]
    assert result.choice.best_epochs.tolist() == [EPOCHS, 0, EPOCHS, 0]


@pytest.mark.parametrize(("minutes", "last"), [(None, [[7], [5]]), (100.0, [[7, 6, 8], [5]])])
def test_best_point_of_each_loss_is_trained_completely(minutes, last, tmp_path):
    training = Training()
    spaces = [space(7, 6, 8, 9, 10, 11, minutes=minutes), space(1, 2, 3, 4, 5, loss="b")]
    search(spaces, training, tmp_path)
    assert [rates for _, rates, epochs in training.calls if epochs == EPOCHS] == last


@pytest.mark.parametrize("rates", [(7, 8), (7,)])
def test_raises_if_all_points_diverge(rates, tmp_path):
    with raises(train.TrainingDiverged, match="No run of the search"):
        search([space(*rates)], Training(diverging=(7.0, 8.0)), tmp_path)


def vectors_of(fitted, run):
    """Returns the learning rate and the seed of a run as its vectors."""
    values = [fitted.run_params[name][run] for name in ("lr", "seeds")]
    return Tables(np.float32([values]), np.float32([values]))


@pytest.mark.parametrize("diverging", [(), (8.0,), (7.0, 8.0)])
def test_blend_candidates_have_tables_of_first_seed(diverging, tmp_path):
    """The space of 7 and 8 has the best point of the first kind, unless both diverge."""
    training = Training(diverging=diverging)
    spaces = [space(7, 8), space(6.95, loss="b"), space(6.9, loss="c")]
    spaces = [
        replace(each, kind=kind, config=replace(each.config, protocol=blending(each)))
        for each, kind in zip(spaces, ("one", "one", "two"), strict=True)
    ]
    found = [
        tune(spaces, fit, tmp_path, lambda *_: None, lambda _: None, vectors_of)
        for fit in (training.fit, None)  # the second goes on with the finished search
    ]
    for result in found:
        points = [result.points[member.point]["lr"] for member in result.blend]
        assert points == [6.95 if 7.0 in diverging else 7.0, 6.9]
        for lr, member in zip(points, result.blend, strict=True):
            np.testing.assert_array_equal(member.tables.users, np.float32([[lr, SEED]]))


def blending(of):
    return replace(of.config.protocol, blend=2)


@pytest.mark.parametrize(
    "content", ["[1]", "[{}]", "{}", '[{"trained":[0],"n_runs":2,"entries":[]}]']
)
def test_rejects_invalid_search_record(content, tmp_path):
    (tmp_path / "halving.json").write_text(content)
    with raises(ValueError, match=r"halving\.json: expected the trainings of a search"):
        search([space(1, 2)], Training(), tmp_path)


def test_removes_checkpoint_of_recorded_training(tmp_path):
    search([space(1, 2)], Training(), tmp_path)
    left = tmp_path / "tune-0-0.npz"  # as after a kill between the record and the removal
    left.write_bytes(b"checkpoint")
    search([space(1, 2)], Training(), tmp_path)
    assert not left.exists()
