"""Tests of progress output, in a terminal and in a file."""

import io
import re

import pytest
from rich.console import Console

from experiments._progress import Bars, Lines, TrainingStatus, display
from experiments.reproduce.targets import progress_callback


def test_lines_are_throttled_and_include_last_epoch():
    file, now = io.StringIO(), [0.0]
    lines = Lines(Console(file=file, width=20), clock=lambda: now[0])
    with lines:
        lines.stage("reading a file with [brackets] in its name.csv")
        now[0] = 10.0
        lines.stage("search: compiling")
        for epoch in range(1, 31):
            now[0] += 0.5
            lines.advance("search", epoch, 200, f"loss {epoch}")
        lines.stage("scoring")
        for epoch in (1, 2):
            now[0] += 0.5
            lines.advance("final ×2", epoch, 3, "loss 7")
    assert file.getvalue().splitlines() == [
        "reading a file with [brackets] in its name.csv",
        "search: compiling",
        "search 1/200  loss 1  0:00:00",
        "search 11/200  loss 11  0:00:06",
        "search 21/200  loss 21  0:00:10",
        "search 30/200  loss 30  0:00:15",
        "scoring",
        "final ×2 1/3  loss 7  0:00:00",
        "final ×2 2/3  loss 7  0:00:01",
    ]


def test_reproduction_progress_is_written_to_file():
    file = io.StringIO()
    with display(Console(file=file)) as screen:
        on_epoch = progress_callback(screen, "rns, twice", 2)
        for epoch in (1, 2):
            on_epoch(entry(epoch, 1.0))
    assert re.sub(r"0:00:0\d", "", file.getvalue()).splitlines() == [
        "rns, twice: compiling and first epoch",
        "rns, twice 1/2  loss 0.6000  ",
        "rns, twice 2/2  loss 0.6000  ",
    ]


def test_display_uses_lines_for_files_and_bars_for_terminals():
    assert isinstance(display(Console(file=io.StringIO())), Lines)
    assert isinstance(display(Console(file=io.StringIO(), force_terminal=True)), Bars)


def screen_of(show) -> list[str]:
    """Returns the lines of an 80-column terminal after ``show(bars)``."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80, color_system=None)
    with Bars(console) as bars:
        show(bars)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).splitlines()


def test_stage_is_shown_until_replaced_and_bars_fit_width():
    def show(bars):
        bars.stage("planning [x]")
        bars._live.refresh()
        bars.advance("search ×8", 180, 200, "loss 0.1234  NDCG@20 0.1234  123.4M triplets/s")

    lines = screen_of(show)
    assert any("planning [x]" in line for line in lines)
    assert "planning" not in lines[-1]
    assert "180/200 loss 0.1234  NDCG@20 0.1234  123.4M triplets/s 0:00:00" in lines[-1]
    assert max(map(len, lines)) <= 80


def test_elapsed_time_includes_compilation_and_stops_at_next_stage(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("experiments._progress.time.monotonic", lambda: now[0])

    def show(bars):
        bars._bars.get_time = lambda: now[0]
        bars.stage("search: compiling")
        now[0] += 60
        bars.advance("search", 1, 10, "")
        bars.stage("final: compiling")
        now[0] += 30
        bars.stage("scoring")
        now[0] += 5

    assert screen_of(show)[-1].endswith("0:01:00")


def entry(epoch: int, seconds: float, **more):
    return {"epoch": epoch, "loss": [0.5, 0.7], "seconds": seconds, **more}


def test_speed_excludes_compilation_and_is_lower_bound_at_first():
    status = TrainingStatus(("ndcg@20",), {"search": 1_000_000, "final": 10}, "triplets")
    first = status.format("search", entry(2, 40.0, **{"ndcg@20": [0.1, 0.3]}))
    # Two runs of two epochs of a million triplets in 40 seconds, compilation included.
    assert first == "loss 0.6000  NDCG@20 0.3000  ≥ 100.0k triplets/s"
    assert "  1.0M triplets/s" in status.format("search", entry(4, 44.0))
    assert "≥ 20 triplets/s" in status.format("final", entry(1, 1.0))


def test_speed_reflects_recent_epochs():
    status = TrainingStatus(("ndcg@20",), {"search": 100}, "triplets")
    for epoch in range(1, 200):  # 1 s each, 10 s after epoch 100
        text = status.format("search", entry(epoch, epoch + 9 * max(0, epoch - 100)))
    assert text.endswith("  20 triplets/s")


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_speed_is_omitted_for_zero_elapsed_time(seconds):
    status = TrainingStatus(("ndcg@20",), {"search": 100}, "triplets")
    status.format("search", entry(1, seconds))
    assert "triplets" not in status.format("search", entry(2, seconds))
