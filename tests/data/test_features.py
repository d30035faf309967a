"""Side features: files and columns, statistics of training rows, and encoded arrays."""

import os
import warnings

import numpy as np
import pytest
from _helpers.files import write
from _helpers.refusals import raises

from crl_jax.data import (
    BagColumn,
    DataError,
    DataWarning,
    FeatureSchema,
    FeatureTable,
    NumberColumn,
    read_features,
)

CSV = 'item,year,genres,studio,code\n7,1990,war|drama,"A, B",1\n3,,drama,,2\n5,2000,,C,1\n'


@pytest.fixture
def films():
    return FeatureTable.from_columns(
        [7, 3, 5, 9],
        {
            "year": [1990.0, np.nan, 2000.0, 2020.0],
            "genres": [("war", "drama"), ("drama",), (), ("western", "war", "war")],
            "studio": ["a", "b", "", "a"],
        },
    )


def test_csv_columns_become_numbers_or_bags(tmp_path):
    table = read_features(write(tmp_path / "films.csv", CSV), kinds={"code": "bag"})
    np.testing.assert_array_equal(table.ids, [7, 3, 5])
    assert [*table.numbers] == ["year"]
    np.testing.assert_array_equal(table.numbers["year"], [1990, np.nan, 2000])
    assert {name: list(column) for name, column in table.bags.items()} == {
        "genres": [("war", "drama"), ("drama",), ()],
        "studio": [("A, B",), (), ("C",)],
        "code": [("1",), ("2",), ("1",)],
    }


def test_options_select_columns_and_separators(tmp_path):
    path = write(tmp_path / "films.csv", "genre;name;x\na,b;n1;1\nb, c;n2;2\n")
    table = read_features(path, id_col="name", separator=",", delimiter=";", kinds={"x": "ignore"})
    np.testing.assert_array_equal(table.ids, ["n1", "n2"])
    assert not table.numbers
    assert list(table.bags["genre"]) == [("a", "b"), ("b", "c")]
    assert list(read_features(path, id_col="name", separator="").bags["genre"])[1] == ("b, c",)


@pytest.mark.parametrize(
    ("name", "content", "numbers", "bags"),
    [
        (
            "u.user",
            "1|24|M|writer|85711\n2|53|F|other|T8H1N\n",
            {"age": [24, 53]},
            {"gender": [("M",), ("F",)], "occupation": [("writer",), ("other",)]},
        ),
        (
            "users.dat",
            "1::F::1::10::48067\n2::M::56::16::70072\n",
            {},
            {
                "gender": [("F",), ("M",)],
                "age": [("1",), ("56",)],
                "occupation": [("10",), ("16",)],
            },
        ),
        (
            "movies.dat",
            "1::Café: a, b (1995)::Drama|War\n2::X::War\n".encode("latin-1"),
            {},
            {"genres": [("Drama", "War"), ("War",)]},
        ),
        (
            "ml.item",
            "item_id:token\tyear:float\tclass:token_seq\ttitle:token\tv:float_seq\n"
            "1\t1995\ta b\tone|two\t1 2\n2\t1996\tb\tthree\t3 4\n",
            {"year": [1995, 1996]},
            {"class": [("a", "b"), ("b",)], "title": [("one|two",), ("three",)]},
        ),
    ],
)
def test_recognises_published_formats(tmp_path, name, content, numbers, bags):
    table = read_features(write(tmp_path / name, content))
    np.testing.assert_array_equal(table.ids, [1, 2])
    assert {name: column.tolist() for name, column in table.numbers.items()} == numbers
    assert {name: list(column) for name, column in table.bags.items()} == bags


def test_u_item_has_one_number_per_genre(tmp_path):
    row = "{}|Title (1995)|01-Jan-1995||http://x|" + "|".join("0" * 18) + "|{}\n"
    table = read_features(write(tmp_path / "u.item", row.format(1, 1) + row.format(2, 0)))
    assert len(table.numbers) == 19
    np.testing.assert_array_equal(table.numbers["Western"], [1, 0])
    assert [*table.bags] == ["release_date"]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        (CSV + "7,1,war,X,1\n", {}, ":5: expected one line for each id, got '7' again, .* line 2"),
        (CSV + ",1,war,X,1\n", {}, ":5: expected an id as 'item', got an empty field"),
        (CSV + "-8,1,war,X,1\n", {}, ":5: expected a non-negative id as 'item', got '-8'"),
        (CSV + "8,1,war\n", {}, ":5: expected 5 fields separated by ',', got 3"),
        (
            CSV.replace("2000", "soon"),
            {"kinds": {"year": "number"}},
            ":4: expected a finite number as 'year', got 'soon'",
        ),
        (CSV, {"id_col": "film"}, ": expected a column 'film', got .*'item'"),
        (CSV, {"kinds": {"film": "bag"}}, ": expected a column 'film', got .*'item'"),
        ("a,b,b\n1,2,3\n", {}, ":1: expected distinct column names"),
        ("", {}, ": expected features, got an empty file"),
    ],
)
def test_reports_file_and_line_of_invalid_rows(tmp_path, content, options, message):
    path = write(tmp_path / "films.csv", content)
    with pytest.raises(DataError, match=rf"films\.csv{message}"):
        read_features(path, **options)


def test_warns_of_non_numeric_values_in_number_column(tmp_path):
    path = write(tmp_path / "films.csv", CSV + "8,nan,war,D,1\n")
    with pytest.warns(DataWarning, match=r"'year' is read as cat.* 1 of 3 .* 'nan' in line 5"):
        assert "year" in read_features(path).bags
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "year" in read_features(path, kinds={"year": "bag"}).bags


def test_reads_text_from_pipe():
    reader, writer = os.pipe()
    os.write(writer, CSV.encode())
    os.close(writer)
    try:
        table = read_features(f"/dev/fd/{reader}")
    finally:
        os.close(reader)
    np.testing.assert_array_equal(table.ids, [7, 3, 5])


def test_rejects_missing_files_and_invalid_options(tmp_path):
    write(tmp_path / "films.csv", CSV)
    with pytest.raises(FileNotFoundError, match=r"none\.csv: no such file; .* has films\.csv"):
        read_features(tmp_path / "none.csv")
    with raises(DataError, match="expected a file, got a folder; pass a file in it"):
        read_features(tmp_path)
    for option, value, message in (
        ("delimiter", ",,", "must be one character, got ',,'"),
        ("quote_char", "xx", "must be one character or empty, got 'xx'"),
        ("encoding", "none", "must be the name of a codec, got 'none'"),
    ):
        with raises(ValueError, match=f"`{option}` {message}"):
            read_features(tmp_path / "films.csv", **{option: value})
    with raises(ValueError, match=r"`kinds\['year'\]` must be one of number, bag, ignore"):
        read_features(tmp_path / "films.csv", kinds={"year": "float"})


def test_rejects_ids_without_row(films):
    np.testing.assert_array_equal(films.rows(["9", 7]), [3, 0])
    with pytest.raises(
        DataError, match=r"each of 3 ids, got none for 2 of them, such as 8; .* 7, 3"
    ):
        films.rows(np.array([7, 8, 10]))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1.0]}, "expected 2 values of 'x', got 1"),
        ({"x": [1.0, np.inf]}, "expected finite numbers of 'x', got infinity"),
        ({"x": [["a"], [1]]}, "expected numbers, text or lists of text as 'x', got \\[1\\]"),
        ({"x": ["a", 1.0]}, "expected numbers, text or lists of text as 'x', got 1.0"),
        ({"x": np.array(["2020", "2021"], "datetime64[Y]")}, "lists of text as 'x', got .*2020"),
        ({"x": [1 + 1j, 2j]}, "expected numbers, text or lists of text as 'x', got .*1j"),
        ({"x": [10**400, 1]}, "expected finite numbers of 'x', got infinity"),
        ({"x": "ab"}, "expected 2 values of 'x', got \"'ab'\""),
        ([1, 2], "expected columns by name, got list"),
    ],
)
def test_rejects_invalid_columns(columns, message):
    with raises(DataError, match=message):
        FeatureTable.from_columns([1, 2], columns)


def test_none_and_nan_are_missing_values():
    columns = {"x": [1.5, None], "y": ["a", None], "z": [float("nan"), ["b", "c"]], "w": [None] * 2}
    table = FeatureTable.from_columns([1, 2], columns)
    np.testing.assert_array_equal(table.numbers["x"], [1.5, np.nan])
    assert np.isnan(table.numbers["w"]).all()
    assert {name: list(bag) for name, bag in table.bags.items()} == {
        "y": [("a",), ()], "z": [(), ("b", "c")],
    }  # fmt: skip


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e307])
def test_standardisation_handles_extreme_scales(scale):
    table = FeatureTable.from_columns([1, 2, 3], {"x": scale * np.array([-1.0, 0.0, 4.0])})
    got = FeatureSchema.fit(table).transform(table)
    want = (np.array([-1.0, 0.0, 4.0]) - 1) / np.sqrt(14 / 3)
    np.testing.assert_allclose(got.dense[:, 0], want, rtol=1e-6)


def test_number_with_zero_float64_deviation_is_constant():
    table = FeatureTable.from_columns([1, 2], {"x": [0.0, 5e-324], "y": [1.0, 2.0]})
    assert [column.name for column in FeatureSchema.fit(table).numbers] == ["y"]


def test_rejects_numbers_far_beyond_training_range(films):
    schema = FeatureSchema.fit(films)
    far = FeatureTable.from_columns([7], {"year": [1e300], "genres": ["war"], "studio": ["a"]})
    with pytest.raises(DataError, match=r"expected 'year' near its mean 2003.* 1e\+300 .* id 7"):
        schema.transform(far)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"numbers": [{"name": "x", "mean": 0.0, "deviation": 0.0}]}, "positive deviations"),
        ({"numbers": [{"name": "x", "mean": float("nan"), "deviation": 1.0}]}, "finite means"),
        ({"bags": [{"name": "x", "vocabulary": "ab"}]}, "lists of categories, got text"),
    ],
)
def test_rejects_damaged_schemas(part, message):
    with pytest.raises(ValueError, match=message):
        FeatureSchema.from_dict({"numbers": [], "bags": [], "combine": "mean"} | part)


def test_rejects_repeated_ids():
    with pytest.raises(DataError, match="`ids` must be distinct, got 'a' 2 times"):
        FeatureTable.from_columns(["a", "a"], {"x": [1, 2]})


def test_schema_is_fitted_on_training_rows(films):
    schema = FeatureSchema.fit(films, [7, 3, 5], min_count=1)
    assert schema.numbers == (NumberColumn("year", 1995.0, 5.0),)
    genres, studio = BagColumn("genres", ("drama", "war")), BagColumn("studio", ("a", "b"))
    assert schema.bags == (genres, studio)
    assert (schema.n_dense, schema.n_categories) == (1, 4)
    assert FeatureSchema.fit(films).bags[0].vocabulary == ("drama", "war")  # western occurs once
    assert FeatureSchema.from_dict(schema.to_dict()) == schema


@pytest.mark.parametrize("combine", ["sum", "mean"])
def test_transform_uses_training_statistics(films, combine):
    schema = FeatureSchema.fit(films, [7, 3, 5], min_count=1, combine=combine)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = schema.transform(films, ["9", 7, 3])
    assert not caught
    np.testing.assert_allclose(got.dense, [[5.0], [-1.0], [0.0]])
    # Row 9 has an unknown category, and one that is repeated.
    want = {0: {1: 1, 2: 1}, 1: {0: 1, 1: 1, 2: 1}, 2: {0: 1, 3: 1}}
    if combine == "mean":
        want[1] |= {0: 0.5, 1: 0.5}
    for row, weight_of in want.items():
        kept = got.categories[row] >= 0
        found = dict(zip(got.categories[row][kept].tolist(), got.weights[row][kept].tolist()))
        assert found == weight_of
        assert not got.weights[row][~kept].any()
    assert got.n_categories == 4
    assert len(got) == 3


def test_warns_of_rows_without_known_features(films):
    schema = FeatureSchema.fit(films, [7, 3], min_count=1)
    assert not schema.numbers  # one year is constant
    with pytest.warns(DataWarning, match="1 rows have no known feature"):
        got = schema.transform(films, [5])
    assert not got.weights.any()
    assert not got.dense.any()


def test_rejects_mismatched_schemas(films):
    schema = FeatureSchema.fit(films)
    other = FeatureTable.from_columns([1], {"year": [2000], "studio": ["a"]})
    with pytest.raises(
        DataError, match=r"expected 'genres' among the bags, got .*\['year', 'studio'"
    ):
        schema.transform(other)
    text = FeatureTable.from_columns([1], {"year": ["old"], "genres": ["war"], "studio": ["a"]})
    with pytest.raises(DataError, match="expected 'year' among the numbers"):
        schema.transform(text)
    with pytest.raises(DataError, match=r"`min_count` = 3 of 4 rows, got none"):
        FeatureSchema.fit(FeatureTable.from_columns([1, 2, 3, 4], {"x": list("abcd")}), min_count=3)
    with raises(ValueError, match="`min_count` must be at least 1, got 0"):
        FeatureSchema.fit(films, min_count=0)
    with raises(ValueError, match="`combine` must be one of sum, mean, got 'max'"):
        FeatureSchema.fit(films, combine="max")


def test_movielens_features_have_published_sizes(real_data):
    films = read_features(real_data / "ml-1m" / "movies.dat")
    schema = FeatureSchema.fit(films)
    assert len(films) == 3883
    assert schema.n_categories == 18
    assert schema.transform(films).categories.shape == (3883, 6)
    users = read_features(real_data / "ml-1m" / "users.dat")
    assert FeatureSchema.fit(users).n_categories == 2 + 7 + 21
