"""Graph data sets: reading, normalisation, subsets, simulation, and errors with file and line."""

import os

import numpy as np
import pytest
from _helpers.files import fill, warned, write, zipped
from _helpers.refusals import raises
from hypothesis import given
from hypothesis import strategies as st

from crl_jax import data
from crl_jax.data import DataError

HUGE = 10**20
GIN = """2
3 5
7 1 1
9 2 0 2
7 1 1
2 -1
9 1 1
9 1 0
"""
TU = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n5, 4\n4, 5\n",
    "graph_indicator": "1\n1\n1\n2\n2\n",
    "graph_labels": "5\n-1\n",
    "node_labels": "7\n9\n7\n9\n9\n",
}


def write_gin(folder, text=GIN, folds=()):
    files = {"TOY.txt": text}
    for fold, places in enumerate(folds, 1):
        files[f"10fold_idx/test_idx-{fold}.txt"] = "\n".join(map(str, places))
        files[f"10fold_idx/train_idx-{fold}.txt"] = ""
    return fill(folder, files)


def write_tu(folder, **changes):
    tables = {**TU, **changes}.items()
    return fill(folder, {f"TOY_{name}.txt": text for name, text in tables if text is not None})


def check_toy(graphs):
    np.testing.assert_array_equal(graphs.node_offsets, [0, 3, 5])
    np.testing.assert_array_equal(graphs.edge_offsets, [0, 2, 3])
    np.testing.assert_array_equal(graphs.edges, [[0, 1, 0], [1, 2, 1]])
    np.testing.assert_array_equal(graphs.features, [[1, 0], [0, 1], [1, 0], [0, 1], [0, 1]])
    assert graphs.classes == ("-1", "5")
    np.testing.assert_array_equal(graphs.labels, [1, 0])


def test_both_formats_load_equal_graphs(tmp_path):
    check_toy(data.load_graphs(write_gin(tmp_path / "gin")))
    check_toy(data.load_graphs(tmp_path / "gin/TOY.txt"))
    check_toy(data.load_graphs(write_tu(tmp_path / "tu")))
    for kind in ("gin", "tu"):
        files = {f"TOY/{path.name}": path.read_text() for path in (tmp_path / kind).iterdir()}
        check_toy(data.load_graphs(str(write(tmp_path / f"{kind}.zip", zipped(files)))))


def test_loads_graphs_from_arrays():
    edges, tags = [[[0, 1], [1, 2]], [[0, 1], [1, 0]]], [[7, 9, 7], [9, 9]]
    check_toy(data.load_graphs((edges, tags, [5, -1])))
    own = data.as_graphs(edges, [np.ones((3, 2)), np.zeros((2, 2))], [5, -1])
    assert own.features.dtype == np.float32
    assert own.features.shape == (5, 2)
    assert data.load_graphs(own) is own


def test_features_argument_selects_node_features(tmp_path):
    folder = write_tu(tmp_path, node_attributes="0.5, 1\n" * 5)
    found = {
        name: data.load_graphs(folder, features=name).features
        for name in ("auto", "tags", "degrees", "constant", "attributes")
    }
    np.testing.assert_array_equal(found["auto"], found["tags"])
    np.testing.assert_array_equal(found["degrees"].argmax(axis=1), [0, 1, 0, 0, 0])
    np.testing.assert_array_equal(found["constant"], np.ones((5, 1)))
    np.testing.assert_array_equal(found["attributes"], [[0.5, 1]] * 5)
    without = write_tu(tmp_path / "without", node_labels=None)
    assert data.load_graphs(without).features.tolist() == [[1]] * 5
    with raises(DataError, match="expected tags of nodes, got none"):
        data.load_graphs(without, features="tags")
    with raises(ValueError, match="`features` must be one of auto, tags"):
        data.load_graphs(folder, features="other")


def test_text_format_reads_node_attributes(tmp_path):
    text = "1\n2 0\n0 1 1 0.5 -2\n0 1 0 1e3 4\n"
    graphs = data.load_graphs(write_gin(tmp_path, text), features="attributes")
    np.testing.assert_array_equal(graphs.features, [[0.5, -2], [1000, 4]])


def test_reads_and_validates_folds(tmp_path):
    text = "12\n" + "1 0\n0 0\n" * 11 + "1 1\n0 0\n"
    folder = write_gin(tmp_path, text, [[fold] for fold in range(1, 11)])
    want = [-1, *range(10), -1]
    np.testing.assert_array_equal(data.load_graphs(folder).folds, want)
    np.testing.assert_array_equal(data.load_graphs(folder / "TOY.txt").folds, want)
    (folder / "10fold_idx/test_idx-3.txt").write_text("3\n2\n")
    with raises(DataError, match=r"test_idx-3.txt:2: expected indices from 0 to 11"):
        data.load_graphs(folder)
    (folder / "10fold_idx/test_idx-3.txt").unlink()
    with raises(DataError, match="expected 10 test parts, got 9"):
        data.load_graphs(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TOY.txt:1: expected the number of graphs, got the end"),
        ("x\n", "TOY.txt:1: expected the number of graphs, got 'x'"),
        ("1\n2\n", "TOY.txt:2: expected the number of nodes and a label"),
        ("1\n0 1\n", "TOY.txt:2: expected at least one node, got 0"),
        ("1\n1 1\n0\n", "TOY.txt:3: expected a tag and a number of neighbours"),
        ("1\n2 1\n0 1 1\n0 2 0\n", "TOY.txt:4: expected 2 neighbours"),
        ("1\n2 1\n0 1 1\n0 1 2\n", "TOY.txt:4: expected neighbours from 0 to 1"),
        ("1\n2 1\n0 1 1\n0 1 0.5\n", "TOY.txt:4: expected neighbours, got"),
        ("1\n2 1\n0 1 1 0.5\n0 1 0\n", "TOY.txt:4: expected 1 neighbours and 1 attributes"),
        ("1\n1 1\n0 0 nan\n", "TOY.txt:3: expected attributes as finite numbers"),
        ("1\n1 1\n0 -1\n", "TOY.txt:3: expected 0 neighbours"),
        ("2\n1 1\n0 0\n", "TOY.txt:4: expected the number of nodes and a label, got the end"),
        ("-1\n", "TOY.txt:1: expected at least one graph, got -1"),
        ("1\n1 1\n0 0\n1 1\n", "TOY.txt:4: expected the end after 1 graphs"),
        (f"{HUGE}\n", f"TOY.txt:1: expected .*{HUGE}"),  # no array holds it
        (f"1\n1 {HUGE}\n0 0\n", f"TOY.txt:2: expected .*{HUGE}"),
        (f"1\n1 1\n{HUGE} 0\n", f"TOY.txt:3: expected .*{HUGE}"),
    ],
)
def test_rejects_invalid_text_format(tmp_path, text, message):
    with raises(DataError, match=message):
        data.load_graphs(write_gin(tmp_path, text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"graph_labels": f"{HUGE}\n-1\n"}, "graph_labels.txt:1: expected 1 integers, got '10+'"),
        ({"graph_labels": None}, "expected a file NAME_graph_labels.txt, got none"),
        ({"A": "1, 2\n2\n"}, r"TOY_A.txt:2: expected 2 integers, got '2'"),
        ({"A": "1, 2\n2, 6\n"}, r"TOY_A.txt:2: expected nodes from 1 to 5"),
        ({"A": "1, 4\n"}, r"TOY_A.txt:1: expected two nodes of one graph"),
        ({"graph_indicator": "1\n1\n2\n1\n2\n"}, r"tor.txt:4: expected graphs in ascending order"),
        ({"graph_indicator": "1\n1\n1\n2\n3\n"}, r"indicator.txt:5: expected one of 2 graphs"),
        ({"graph_labels": "1\n2\n3\n"}, r"graph_labels.txt:3: expected a graph with nodes"),
        ({"node_labels": "1\n"}, r"node_labels.txt: expected 5 lines, one for each node, got 1"),
        ({"node_attributes": "1\ninf\n"}, r"attributes.txt:2: expected 1 finite numbers"),
    ],
)
def test_rejects_invalid_tables(tmp_path, changes, message):
    with raises(DataError, match=message):
        data.load_graphs(write_tu(tmp_path, **changes))


def test_warns_of_removed_and_symmetrised_edges(tmp_path):
    folder = write_tu(tmp_path, A="1, 2\n2, 1\n1, 2\n3, 3\n2, 3\n4, 5\n5, 4\n")
    graphs, messages = warned(data.load_graphs, folder)
    check_toy(graphs)
    assert [message.split(": ", 1)[1] for message in messages] == [
        "removed 1 self-loops",
        "removed 1 repeated edges",
        "1 edges are listed in one direction only, and were made undirected",
    ]


def test_rejects_sources_without_exactly_one_dataset(tmp_path):
    with raises(DataError, match=r"expected one dataset of graphs.* got none"):
        data.load_graphs(tmp_path)
    write_gin(tmp_path)
    write(tmp_path / "B.txt", GIN)
    with raises(DataError, match=r"expected one dataset of graphs.* got B.txt, TOY.txt"):
        data.load_graphs(tmp_path)
    (tmp_path / "B.txt").unlink()
    os.mkfifo(tmp_path / "pipe")
    with raises(DataError, match="pipe: expected a regular file"):
        data.load_graphs(tmp_path)
    with raises(FileNotFoundError, match="no such file"):
        data.load_graphs(tmp_path / "other")
    with raises(ValueError, match="`source` must be a path"):
        data.load_graphs(3)


@pytest.mark.parametrize(
    ("edges", "features", "labels", "message"),
    [
        ([[[0], [2]]], [[1, 1]], [0], r"`edges` of graph 0 must lie in \[0, 2\), got 0 to 2"),
        ([[[0, 1]]], [[1, 1]], [0], r"`edges` of graph 0 must be integers \[2, n_edges\]"),
        ([[[], []]], [[1], [1]], [0], "must have one length, got 1, 2 and 1"),
        ([[[], []]], [[]], [0], "`features` \\[n_nodes\\] \\(tags\\) must be integers"),
        ([[[], []]], None, [0], "`n_nodes` must be given"),
        ([[[], []]], [[1]], [0.5], "`labels` must be integers"),
    ],
)
def test_rejects_inconsistent_arrays(edges, features, labels, message):
    with raises(ValueError, match=message):
        data.as_graphs(edges, features, labels)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("edges", lambda x: x[::-1], r"the lower index first, got \d+ and \d+ of \d+ nodes"),
        ("edge_offsets", lambda x: x[::-1], r"`edge_offsets` must increase from 0 .* got \["),
        ("features", lambda x: np.full(x.shape, np.nan, np.float32), "must be finite, got nan"),
        ("labels", lambda x: x + np.int32(3), r"`labels` must lie in \[0, 3\)"),
        ("node_offsets", lambda x: x[:-1], "`node_offsets` must have shape"),
        ("features", np.float64, "`features` must be a 2-dimensional array of uint8 or float32"),
        ("classes", lambda _: ("a", "a", "b"), "`classes` must be distinct"),
        ("folds", lambda _: np.full(4, -2, np.int32), "`folds` must be at least -1"),
    ],
)
def test_rejects_inconsistent_fields(name, change, message):
    whole = data.simulate_graphs(n=4)
    fields = {field: getattr(whole, field) for field in whole.__dataclass_fields__}
    with raises(ValueError, match=message):
        data.Graphs(**{**fields, name: change(fields[name])})


@given(st.lists(st.integers(0, 11), max_size=8))
def test_take_selects_graphs(places):
    whole = data.simulate_graphs(n=12, seed=1)
    some = whole.take(places)
    as_slice = whole.take(slice(2, None, 3))
    np.testing.assert_array_equal(as_slice.edges, whole.take(range(2, 12, 3)).edges)
    assert len(some) == len(places)
    assert not some.edges.flags.writeable
    for own, place in enumerate(places):
        for offsets, field in (("node_offsets", "features"), ("edge_offsets", "edges")):
            parts = []
            for graphs, at in ((some, own), (whole, place)):
                part = slice(*getattr(graphs, offsets)[at : at + 2])
                values = getattr(graphs, field)
                parts.append(values[part] if field == "features" else values[:, part])
            np.testing.assert_array_equal(*parts)
    np.testing.assert_array_equal(some.labels, whole.labels[places] if places else [])


def test_simulated_graphs_have_planted_motifs():
    """A noise-free graph is a tree of n nodes, two motifs of five, and a link to each."""
    graphs = data.simulate_graphs(n=40, n_classes=4, noise=0, seed=3)
    more = np.array([6, 6, 7, 5])[graphs.labels]
    n_tree = graphs.n_nodes - 10
    np.testing.assert_array_equal(graphs.n_edges, n_tree - 1 + 2 * more + 2)
    assert np.bincount(graphs.labels).tolist() == [10] * 4
    again = data.simulate_graphs(n=40, n_classes=4, noise=0, seed=3)
    np.testing.assert_array_equal(graphs.edges, again.edges)
    with raises(ValueError, match=r"`n_classes` must lie in \[2, 4\], got 5"):
        data.simulate_graphs(n_classes=5)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "n", "n_nodes", "n_edges", "width"),
    [
        ("MUTAG", 188, 17.93, 19.79, 7),
        ("PTC_MR", 344, 14.29, 14.69, 18),
        ("PROTEINS", 1113, 39.06, 72.82, 3),
        ("IMDBBINARY", 1000, 19.77, 96.53, 1),
    ],
)
def test_published_datasets_have_published_counts(real_data, name, n, n_nodes, n_edges, width):
    graphs = data.load_graphs(real_data / "graphs" / name)
    assert len(graphs) == n
    assert graphs.features.shape[1] == width
    assert graphs.n_nodes.mean() == pytest.approx(n_nodes, abs=0.01)
    assert graphs.n_edges.mean() == pytest.approx(n_edges, abs=0.01)
    assert np.bincount(graphs.folds[graphs.folds >= 0]).tolist() == [n // 10] * 10


def test_accepts_extreme_int64_labels(tmp_path):
    ends = np.iinfo(np.int64)
    graphs = data.load_graphs(write_tu(tmp_path, graph_labels=f"{ends.max}\n{ends.min}\n"))
    assert len(set(graphs.labels.tolist())) == 2


def test_rejects_too_many_distinct_tags(monkeypatch):
    graphs = [[[i, i + 1] for i in range(999)], np.arange(1000)]
    edges, tags = [np.array(graphs[0]).T], [graphs[1]]
    assert data.as_graphs(edges, tags, [0]).features.shape == (1000, 1000)
    monkeypatch.setattr("crl_jax.data._graphs._graphs._MAX_ONE_HOT_BYTES", 1 << 19)
    with raises(DataError, match=r"one-hot .* 0 MiB, got 1000 values for 1000 nodes"):
        data.as_graphs(edges, tags, [0])
    assert data.as_graphs(edges, tags, [0], node_features="degrees").features.shape == (1000, 2)
    with raises(ValueError, match="`node_features` must be one of .* got 'none'"):
        data.as_graphs(edges, tags, [0], node_features="none")
