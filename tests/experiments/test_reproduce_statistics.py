"""Tests of the statistics of datasets, and of the files of Yahoo!-R3 as distributed."""

from types import SimpleNamespace

import numpy as np
import pytest
from _helpers.commands import reproduction
from _helpers.reproduction import read_csv, write_dataset
from PIL import Image
from rich.console import Console

from experiments.reproduce import contrastive
from experiments.reproduce.data import load_cut, load_parts, load_rated
from experiments.reproduce.tables import published

pytestmark = [
    pytest.mark.usefixtures("standard_promotion"),
    pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning"),
]
N_USERS, N_SURVEYED, N_SONGS = 12, 5, 8


@pytest.fixture
def datasets(tmp_path):
    """A folder with a rated dataset, and synthetic data in the files of Yahoo!-R3.

    As in the original, only the first users have ratings of random songs.
    """
    rng = np.random.default_rng(0)
    folder = tmp_path / "datasets"
    for name in ("ml-100k", "yahoo-r3"):
        (folder / name).mkdir(parents=True)
    write_dataset(folder / "ml-100k")
    for part, users in (("train", N_USERS), ("test", N_SURVEYED)):
        lines = [
            f"{user}\t{song}\t{rng.integers(1, 6)}"
            for user in range(1, users + 1)
            for song in rng.permutation(np.arange(1, N_SONGS + 1))[: 5 if part == "train" else 3]
        ]
        path = folder / "yahoo-r3" / f"ydata-ymusic-rating-study-v1_0-{part}.txt"
        path.write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def run(datasets, tmp_path, capsys):
    return reproduction(datasets, tmp_path / "out", capsys)


def pairs_of(datasets, part, least=0):
    path = datasets / "yahoo-r3" / f"ydata-ymusic-rating-study-v1_0-{part}.txt"
    rows = np.loadtxt(path, dtype=int)
    return {(u, i) for u, i, r in rows.tolist() if u <= N_SURVEYED and r >= least}


def original_pairs(part):
    return set(zip(part.user_ids[part.users], part.item_ids[part.items], strict=True))


def test_yahoo_keeps_only_users_with_random_songs(datasets):
    folder = datasets / "yahoo-r3"
    train, test = (pairs_of(datasets, part) for part in ("train", "test"))
    cut = load_cut(folder)
    assert cut.train.n_users == N_SURVEYED
    assert original_pairs(cut.train) | original_pairs(cut.test) == train | test
    assert len(cut.test) == round(0.2 * len(train | test))
    options = SimpleNamespace(data=folder, test_rating=3.0, splits=1)
    (parts,) = load_parts(options, Console(quiet=True))
    assert original_pairs(parts.train) == original_pairs(cut.train)
    (rated,) = load_rated(options, Console(quiet=True))
    assert original_pairs(rated.train) == train
    assert original_pairs(rated.test) == pairs_of(datasets, "test", least=3) - train
    assert rated.test.ratings.min() >= 3
    assert "yahoo-r3" in contrastive.BUDGETS


@pytest.mark.parametrize("number", ["3.1", "4.1", "5.1"])
def test_statistics_match_data_and_published_values(run, datasets, tmp_path, number):
    code, printed = run(f"table-{number}")
    assert code == 0
    assert "ml-1m" in printed  # named as missing
    rows = read_csv(tmp_path / "out" / f"table-{number}.csv")
    found = {(row["dataset"], row["statistic"]): float(row["value"]) for row in rows}
    assert {name for name, _ in found} == {"ml-100k", "yahoo-r3"}
    train, test = (pairs_of(datasets, part) for part in ("train", "test"))
    n = len(train | (pairs_of(datasets, "test", 3) if number == "3.1" else test))
    assert found["yahoo-r3", "users"] == N_SURVEYED
    assert found["yahoo-r3", "items"] == N_SONGS
    assert found["yahoo-r3", "train"] + found["yahoo-r3", "test"] == n
    assert found["yahoo-r3", "density"] == pytest.approx(n / (N_SURVEYED * N_SONGS))
    known = {row["statistic"]: row["published"] for row in rows if row["dataset"] == "yahoo-r3"}
    assert (known["users"], known["items"]) == ("5400.0", "1000.0")
    text = (tmp_path / "out" / f"table-{number}.md").read_text()
    assert f"| {N_SURVEYED} (5,400) | {N_SONGS} (1,000) |" in text


def test_skips_or_rejects_datasets_without_ratings(run, datasets):
    (datasets / "ml-1m").mkdir()
    (datasets / "ml-1m" / "pairs.txt").write_text("1 2 3\n2 3\n")
    code, printed = run("table-3.1")
    assert code == 0
    assert "no ratings: ml-1m" in printed
    code, printed = run("table-3.1", "--datasets", "ml-1m")
    assert code == 2
    assert "ml-1m must have ratings" in printed
    code, printed = run("table-4.1", "--datasets", "gowalla")
    assert code == 2
    assert "--datasets takes some of ml-100k, ml-1m, yahoo-r3, got" in printed


def test_image_statistics_count_parts(tmp_path, capsys):
    for part, n in (("train", 3), ("test", 2)):
        for name in ("a", "b"):
            folder = tmp_path / "sets" / "stl10" / part / name
            folder.mkdir(parents=True)
            for i in range(n):
                Image.new("RGB", (8, 8), (50 * i, 0, 0)).save(folder / f"{i}.png")
    extra = tmp_path / "sets" / "stl10" / "unlabelled"
    extra.mkdir()
    Image.new("RGB", (8, 8)).save(extra / "0.png")
    run = reproduction(tmp_path / "sets", tmp_path / "out", capsys)
    assert run("table-6.2")[0] == 0
    rows = read_csv(tmp_path / "out" / "table-6.2.csv")
    found = {row["statistic"]: float(row["value"]) for row in rows}
    want = {"classes": 2, "size": 8, "train": 7, "test": 4, "labelled": 6 / 7}
    assert found == pytest.approx(want)
    assert {row["statistic"]: row["published"] for row in rows}["train"] == "105000.0"
    empty = reproduction(tmp_path / "out", tmp_path / "out", capsys)
    code, printed = empty("table-6.2")
    assert code == 2
    assert "has none of the folders" in printed


def test_published_density_matches_counts():
    for number in ("3.1", "5.1"):
        for dataset in ("ml-100k", "ml-1m", "yahoo-r3"):
            of = published(number, dataset, "")["data"]
            density = (of["train"] + of["test"]) / (of["users"] * of["items"])
            assert density == pytest.approx(of["density"], rel=0.01)
