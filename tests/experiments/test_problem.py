"""Tests of data loading from flags: given splits, and splits drawn from other parts."""

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import DataWarning
from crl_jax.models import Tables
from experiments.recommend._config import Config
from experiments.recommend._options import DataOptions
from experiments.recommend._problem import load_problem
from experiments.recommend._study import Recommend

pytestmark = pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")

RNG = np.random.default_rng(0)
PAIRS = [(u, int(i)) for u in range(20) for i in RNG.permutation(30)[:12]]
TEST = set(PAIRS[::5])


def write(path, pairs, header="user,item,rating,genre"):
    rows = [f"{u},{i},{1 + (u + i) % 5},x" for u, i in pairs]
    path.write_text("\n".join([header, *rows] if header else rows) + "\n")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path / "train.csv", [pair for pair in PAIRS if pair not in TEST])
    write(tmp_path / "test.csv", sorted(TEST))
    return tmp_path


def pairs(*parts):
    return {
        (int(part.user_ids[u]), int(part.item_ids[i]))
        for part in parts
        for u, i in zip(part.users, part.items, strict=True)
    }


def test_keeps_given_test_part(folder):
    problem = load_problem(DataOptions(str(folder)))
    assert pairs(problem.test) == TEST
    assert pairs(problem.train, problem.valid) == set(PAIRS) - TEST


def test_zero_valid_fraction_trains_on_all_but_test_part(folder):
    problem = load_problem(DataOptions(str(folder), valid_fraction=0.0))
    assert problem.valid is None
    assert pairs(problem.train) == pairs(problem.known) == set(PAIRS) - TEST
    for final_training in ("train", "train+valid", "all"):
        assert problem.parts_for("final", final_training) == ("train",)
    assert problem.parts_for("use", "all") == ("train", "test")
    assert pairs(problem.union(("train", "test"))) == set(PAIRS)
    part = problem.union(("train",))
    assert pairs(problem.held_out(part)) == TEST


def test_keeps_given_validation_part_and_rejects_fraction_0(folder):
    write(folder / "valid.csv", sorted(TEST)[:20])
    assert pairs(load_problem(DataOptions(str(folder))).valid) == set(sorted(TEST)[:20])
    with raises(ValueError, match=r"--valid-fraction 0: --data .* has its own validation part"):
        load_problem(DataOptions(str(folder), valid_fraction=0.0))


@pytest.mark.parametrize("split", ["ratio", "clean", "leave_k_out"])
def test_split_flag_resplits_all_data_with_warning(folder, split):
    with pytest.warns(UserWarning, match=f"--split {split} merges the given parts of .* again"):
        problem = load_problem(DataOptions(str(folder), split=split))
    assert pairs(problem.test) != TEST
    assert pairs(problem.train, problem.valid, problem.test) == set(PAIRS)
    if split == "clean":
        assert set(problem.test.ratings.tolist()) == {5}
    if split == "leave_k_out":  # without timestamps, items are drawn at random
        assert (problem.test.degrees == 1).all()


@pytest.mark.filterwarnings("ignore:--split")
@pytest.mark.parametrize("split", ["ratio", "clean", "leave_k_out"])
def test_split_seed_determines_test_part(folder, split):
    def test_part(seed):
        options = DataOptions(str(folder), split=split, split_seed=seed)
        return pairs(load_problem(options).test)

    assert test_part(1) == test_part(1) != test_part(2)


def test_rejects_split_with_test_data(folder):
    options = DataOptions(str(folder / "train.csv"), folder / "test.csv", split="ratio")
    with raises(ValueError, match="--test-data gives the test part; omit --split"):
        load_problem(options)


def test_reports_columns_and_accepts_positions(tmp_path):
    path = tmp_path / "log.csv"
    write(path, PAIRS)
    (columns,) = load_problem(DataOptions(str(path))).columns
    assert str(columns) == "user = user, item = item, rating = rating; ignored: genre"
    write(path, PAIRS, header="")
    problem = load_problem(DataOptions(str(path), user_col="0", item_col="1"))
    assert pairs(problem.train, problem.valid, problem.test) == set(PAIRS)


def test_parts_without_ratings_join_without_warning(folder, recwarn):
    (folder / "test.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in TEST))
    problem = load_problem(DataOptions(str(folder)))
    recwarn.clear()
    assert pairs(problem.held_out(problem.train)) == pairs(problem.valid, problem.test)
    assert pairs(problem.union(("train", "valid", "test"))) == set(PAIRS)
    assert not [w for w in recwarn if issubclass(w.category, DataWarning)]


@pytest.mark.parametrize("min_rating", [None, 3.0])
def test_test_rating_selects_only_relevant_test_items(folder, min_rating):
    options = DataOptions(str(folder), test_rating=4.0, min_rating=min_rating)
    problem = load_problem(options)

    def rated(pairs, least):
        return {(u, i) for u, i in pairs if 1 + (u + i) % 5 >= (least or 0)}

    assert pairs(problem.known) == rated(set(PAIRS) - TEST, min_rating)
    assert pairs(problem.test) == rated(TEST, 4)
    assert pairs(problem.exposed) == TEST
    layout = problem.exposed_layout
    counts = problem.exposed.degrees[np.asarray(layout.users)]
    np.testing.assert_array_equal(layout.n_candidates, counts)
    np.testing.assert_array_equal(layout.n_relevant, problem.test.degrees[layout.users])


@pytest.mark.usefixtures("quick_compiles")
def test_exposed_metrics_match_numpy_reference(folder):
    problem = load_problem(DataOptions(str(folder), test_rating=4.0))
    sides = problem.known.n_users, problem.known.n_items
    users, items = (RNG.normal(size=(n, 3)).astype(np.float32) for n in sides)
    found = Recommend().evaluate(Config(), problem, Tables(users, items), 0, print).metrics
    want = []
    for user in np.unique(problem.test.users):
        start, stop = problem.exposed.indptr[user : user + 2]
        rated = problem.exposed.ratings[start:stop] >= 4
        scores = items[problem.exposed.items[start:stop]].astype(np.float64) @ users[user]
        discounts = 1 / np.log2(np.arange(2, 2 + len(rated)))
        hits = rated[np.argsort(-scores)]
        want.append([discounts[:5] @ hits[:5] / discounts[: min(5, hits.sum())].sum(),
                     hits[:5].sum() / hits.sum()])  # fmt: skip
    got = [found["exposed_ndcg@5"], found["exposed_recall@5"]]
    np.testing.assert_allclose(got, np.mean(want, axis=0), rtol=1e-5)
    assert found["ndcg@5"] < found["exposed_ndcg@5"]
    assert "exposed_coverage@5" not in found


def test_rejects_invalid_test_rating(folder):
    with raises(ValueError, match="--test-rating 6: the highest rating in the test part .* is 5"):
        load_problem(DataOptions(str(folder), test_rating=6.0))
    (folder / "test.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in TEST))
    with raises(ValueError, match="--test-rating 4 needs ratings; .* name .* by --rating-col"):
        load_problem(DataOptions(str(folder), test_rating=4.0))
    assert load_problem(DataOptions(str(folder))).exposed_layout is None


def write_ratings(path, ratings):
    rows = [f"{n % 20},{n // 20},{rating}" for n, rating in enumerate(ratings)]
    path.write_text("\n".join(["user,item,rating", *rows]) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("ratings", "message"),
    [
        ([1, 2, 3, 4, 5] * 20, "40.0% are below 3 on a scale of 1 to 5. .* --min-rating 4; .*"
         "--min-rating 1 keeps all"),
        ([0.5, 5.0, 4.5, 4.0] * 25, "25.0% are below 2.75 .* 0.5 to 5. .* --min-rating 4; "),
        (range(3, 103), "the value of its rating, 3 to 102 with median 5.*use --min-rating; if .*"
         "--min-rating 3 keeps all"),
    ],
)  # fmt: skip
def test_warns_about_unused_ratings(tmp_path, ratings, message):
    path = write_ratings(tmp_path / "train.csv", ratings)
    (tmp_path / "test.csv").write_text("user,item,rating\n0,0,5\n1,99,1\n")
    with pytest.warns(DataWarning, match=message):
        load_problem(DataOptions(path, tmp_path / "test.csv"))


@pytest.mark.filterwarnings("error::crl_jax.data.DataWarning")
def test_does_not_warn_about_used_or_equal_ratings(tmp_path):
    path = write_ratings(tmp_path / "log.csv", [1, 2, 3, 4, 5] * 20)
    for options in ({"min_rating": 1.0}, {"test_rating": 4.0}, {"rating_col": ""},
                    {"split": "clean"}):  # fmt: skip
        load_problem(DataOptions(path, **options))
    load_problem(DataOptions(write_ratings(tmp_path / "log.csv", [1] * 100)))
