"""Tests of data loading from flags: given splits, and splits drawn from other parts."""

import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax.data import DataWarning
from experiments._options import DataOptions
from experiments._problem import load_problem

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


def test_a_given_test_part_is_kept(folder):
    problem = load_problem(DataOptions(str(folder)))
    assert pairs(problem.test) == TEST
    assert pairs(problem.train, problem.valid) == set(PAIRS) - TEST


def test_no_validation_part_leaves_all_to_learn_from(folder):
    problem = load_problem(DataOptions(str(folder), valid_fraction=0.0))
    assert problem.valid is None
    assert pairs(problem.train) == pairs(problem.known) == set(PAIRS) - TEST
    for final_training in ("train", "train+valid", "all"):
        assert problem.learned("final", final_training) == ("train",)
    assert problem.learned("use", "all") == ("train", "test")
    assert pairs(problem.joined(("train", "test"))) == set(PAIRS)
    part = problem.joined(("train",))
    assert pairs(problem.held_out(part)) == TEST


def test_a_given_validation_part_is_not_passed_over_in_silence(folder):
    write(folder / "valid.csv", sorted(TEST)[:20])
    assert pairs(load_problem(DataOptions(str(folder))).valid) == set(sorted(TEST)[:20])
    with raises(ValueError, match=r"--valid-fraction 0: --data .* has its own validation part"):
        load_problem(DataOptions(str(folder), valid_fraction=0.0))


@pytest.mark.parametrize("split", ["ratio", "clean", "leave_k_out"])
def test_a_named_split_cuts_all_anew_and_says_so(folder, split):
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
def test_the_seed_of_the_split_is_a_flag(folder, split):
    def test_part(seed):
        options = DataOptions(str(folder), split=split, split_seed=seed)
        return pairs(load_problem(options).test)

    assert test_part(1) == test_part(1) != test_part(2)


def test_parts_in_two_files_are_not_cut(folder):
    options = DataOptions(str(folder / "train.csv"), folder / "test.csv", split="ratio")
    with raises(ValueError, match="--test-data gives the test part; omit --split"):
        load_problem(options)


def test_columns_are_told_and_may_be_positions(tmp_path):
    path = tmp_path / "log.csv"
    write(path, PAIRS)
    (columns,) = load_problem(DataOptions(str(path))).columns
    assert str(columns) == "user = user, item = item, rating = rating; ignored: genre"
    write(path, PAIRS, header="")
    problem = load_problem(DataOptions(str(path), user_col="0", item_col="1"))
    assert pairs(problem.train, problem.valid, problem.test) == set(PAIRS)


def test_parts_without_ratings_join_in_silence(folder, recwarn):
    (folder / "test.csv").write_text("user,item\n" + "".join(f"{u},{i}\n" for u, i in TEST))
    problem = load_problem(DataOptions(str(folder)))
    recwarn.clear()
    assert pairs(problem.held_out(problem.train)) == pairs(problem.valid, problem.test)
    assert pairs(problem.joined(("train", "valid", "test"))) == set(PAIRS)
    assert not [w for w in recwarn if issubclass(w.category, DataWarning)]
