"""Tests of the training curves and their labels."""

import numpy as np
import pytest

from crl_jax.train import Selection
from experiments._plots import curves

LEARNED = {"search": "training data", "final": "training data", "use": "all data"}
POINTS = [{"lr": 1e-3, "tau_plus": 0.1}, {"lr": 2e-3, "tau_plus": 0.1}, {"lr": 1e-2, "epochs": 2.0}]


def history(n_runs: int, n_epochs: int, *phases: str) -> list[dict]:
    """Returns a history in which run i has the loss i and the score i / 10 in every epoch."""
    runs = list(range(n_runs))
    return [
        {"phase": phase, "epoch": epoch, "seconds": 1.0, "loss": runs[: None if search else 1]}
        | ({"valid_ndcg@20": [i / 10 for i in runs]} if search else {})
        for phase in phases
        for epoch in range(1, n_epochs + 1)
        for search in [phase == "search"]
    ]


def choice(point: int = 1, epochs: int = 3) -> Selection:
    return Selection(point, epochs, 0.1, np.zeros(3), np.zeros(3))


def line(axes, label: str):
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return found


def test_curve_labels_show_hyperparams_and_seeds():
    figure = curves(history(6, 5, "search", "final"), "bpr, ml-100k", POINTS, choice(), LEARNED)
    loss, score = figure.axes
    # With two seeds per point, runs 2 and 3 belong to the second point.
    second = "search: lr=0.002, tau_plus=0.1 (2 seeds)"
    assert set(line(loss, second).get_ydata()) == {2}
    assert set(line(score, second).get_ydata()) == {0.2}
    assert (
        line(score, second).get_linewidth()
        > line(score, "search: lr=0.001, tau_plus=0.1 (2 seeds)").get_linewidth()
    )
    short = np.asarray(line(loss, "search: lr=0.01, epochs=2 (2 seeds)").get_ydata(), float)
    np.testing.assert_array_equal(short, [4, 4, np.nan, np.nan, np.nan])
    legend_labels = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {second, "final: training data", "chosen: epoch 3"} <= legend_labels


def test_figure_marks_chosen_epoch_and_names_dataset():
    figure = curves(history(3, 5, "search"), "bpr, ml-100k", POINTS, choice(), LEARNED)
    assert "ml-100k" in figure.get_suptitle()
    for axes in figure.axes:
        assert set(line(axes, "chosen: epoch 3").get_xdata()) == {3}
        assert axes.get_legend() is None


def test_plots_only_loss_without_search():
    figure = curves(history(2, 5, "final", "use"), "bpr, ml-100k", [{}], choice(0, 5), LEARNED)
    (loss,) = figure.axes
    assert loss.get_ylabel() == "loss"
    legend_labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend_labels) == ["final: training data", f"use: {LEARNED['use']}"]


@pytest.mark.parametrize("n_epochs", [1, 2, 3, 40])
def test_epoch_ticks_are_integers(n_epochs):
    figure = curves(history(1, n_epochs, "search", "use"), "bpr", [{}], choice(0, 1), LEARNED)
    for axes in figure.axes:
        ticks = axes.get_xticks()
        np.testing.assert_array_equal(ticks, np.round(ticks))
    marked = [line.get_marker() == "o" for line in figure.axes[0].lines[:2]]
    assert marked == [n_epochs == 1] * 2  # a line of one point is invisible


def test_legend_names_only_chosen_of_many_points():
    points = [{"lr": float(i)} for i in range(20)]
    figure = curves(history(20, 3, "search"), "bpr", points, choice(7, 2), LEARNED)
    legend_labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(legend_labels) == ["chosen: epoch 2", "search: lr=7", "search: other points"]
