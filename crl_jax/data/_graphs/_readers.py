"""Readers of labelled graphs: the TU Dortmund format and GIN's text format."""

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import numpy as np

from ..._checks import check_choice
from .._archive import FileTree, decode_text, open_tree, read_text, require_exists
from .._errors import DataError
from ._graphs import NO_FOLD, Graphs, NodeFeatures, RawGraphs, as_graphs
from ._simulate import simulate_graphs

_MAX_BYTES = 2 << 30
_MAX_INTEGER = 1 << 63
_FOLDS = "10fold_idx"
_N_FOLDS = 10
_EDGES = "_A.txt"

_Lines = tuple[str, list[str]]  # path for messages, lines


def load_graphs(source: Any, *, features: NodeFeatures = "auto") -> Graphs:
    """Loads labelled graphs.

    Args:
      source: One of

        * ``"simulated"``: the graphs of :func:`simulate_graphs`. (A file of that name is
          ``"./simulated"``.)
        * a folder, or a zip or tar archive, with a dataset in the TU Dortmund format:
          ``NAME_A.txt``, ``NAME_graph_indicator.txt``, ``NAME_graph_labels.txt``, and optionally
          ``NAME_node_labels.txt`` and ``NAME_node_attributes.txt``;
        * a file in GIN's text format, or a folder or archive with one, ``NAME.txt``, and optionally
          the published folds in the folder ``10fold_idx`` next to it;
        * :class:`Graphs`, or ``(edges, features, labels)`` as in :func:`as_graphs`.
      features: Node features. ``"tags"``: one-hot node tags; ``"attributes"``: the source's real
        attributes; ``"degrees"``: one-hot degrees, as GIN's code uses for datasets without tags;
        ``"constant"``: 1, as InfoGraph and GraphCL use for these. ``"auto"``: tags, else
        attributes, else the constant. If all nodes have one tag, as in GIN's IMDB-BINARY, the
        one-hot tags are the constant.

    Returns:
      The graphs, undirected. Self-loops and repeated edges are removed, and edges listed in one
      direction are made undirected; a :class:`DataWarning` counts each kind.

    Raises:
      ValueError: If ``source`` or ``features`` is none of these.
      DataError: If a file is malformed, or one-hot features would need more than 512 MiB.
      FileNotFoundError: If there is no such file or folder.

    >>> load_graphs("simulated")
    Graphs(400 of 35 nodes and 44 edges at most, 4 features, 3 classes)
    """
    check_choice("features", features, get_args(NodeFeatures))
    if isinstance(source, Graphs):
        if features != "auto":
            raise ValueError(f"`features` must be auto for `source` of Graphs, got {features!r}.")
        return source
    if isinstance(source, str) and source == "simulated":
        if features not in ("auto", "tags"):
            raise ValueError(f"`features` of simulated graphs must be tags, got {features!r}.")
        return simulate_graphs()
    if isinstance(source, str | Path):
        return _read(Path(source)).graphs(features)
    if isinstance(source, tuple) and len(source) == 3:
        return as_graphs(*source, node_features=features)
    raise ValueError(
        '`source` must be a path, "simulated", Graphs or (edges, features, labels), '
        f"got {source!r:.100}."
    )


def _read(path: Path) -> RawGraphs:
    require_exists(path, ' Other sources are "simulated" and graphs in memory.')
    if path.suffix.lower() == ".txt" and path.is_file():
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise DataError(f"{path}: expected at most {_MAX_BYTES} bytes, got {size}.")
        folds: list[_Lines] = []
        if (path.parent / _FOLDS).is_dir():
            with open_tree(path.parent / _FOLDS) as tree:
                folds = _fold_files(tree, "")
        return _read_gin(str(path), read_text(path).rstrip().splitlines(), folds)
    with open_tree(path) as tree:
        names = [name for name in tree.sizes if name.endswith(_EDGES)]
        is_gin = not names
        if is_gin:
            texts = [PurePosixPath(name) for name in tree.sizes if name.endswith(".txt")]
            names = [str(name) for name in texts if _FOLDS not in name.parts]
        if len(names) != 1:
            raise DataError(
                f"{tree.origin}: expected one dataset of graphs, NAME{_EDGES} and its other files "
                f"or a text file of GIN, got {', '.join(names[:20]) or 'none'}."
            )
        if is_gin:
            folder = str(PurePosixPath(names[0]).parent / _FOLDS) + "/"
            return _read_gin(*_lines(tree, names[0]), _fold_files(tree, folder))
        return _read_tu(tree, names[0].removesuffix(_EDGES))


def _lines(tree: FileTree, name: str) -> _Lines:
    where = tree.where(name)
    return where, decode_text(tree.read(name, _MAX_BYTES), where).rstrip().splitlines()


def _read_tu(tree: FileTree, stem: str) -> RawGraphs:
    """Reads one dataset in the TU Dortmund format.

    Nodes and graphs are numbered from 1 over all graphs. Edge labels and attributes are not read.
    """

    def table(suffix: str, width: int | None, kind: type) -> np.ndarray | None:
        """Numbers ``[lines, width]``; the first line sets a width of None."""
        name = f"{stem}_{suffix}.txt"
        if name not in tree.sizes:
            return None
        path, lines = _lines(tree, name)
        if not lines:
            raise DataError(f"{path}: expected lines of numbers, got none.")
        width = width or lines[0].count(",") + 1
        rows = [_numbers(line.split(","), kind) for line in lines]
        for i, row in enumerate(rows):
            if row is None or len(row) != width:
                expected = f"{width} {'integers' if kind is int else 'finite numbers'}"
                raise DataError(f"{path}:{i + 1}: expected {expected}, got {lines[i]!r:.60}.")
        return np.array(rows, np.int64 if kind is int else np.float64)

    def required(suffix: str, width: int) -> np.ndarray:
        if (numbers := table(suffix, width, int)) is None:
            raise DataError(f"{tree.origin}: expected a file NAME_{suffix}.txt, got none.")
        return numbers

    def reject(suffix: str, invalid: np.ndarray, expected: str) -> None:
        if invalid.any():
            where = f"{tree.where(stem)}_{suffix}.txt:{int(np.argmax(invalid)) + 1}"
            raise DataError(f"{where}: expected {expected}.")

    graph = required("graph_indicator", 1)[:, 0] - 1
    labels = required("graph_labels", 1)[:, 0]
    in_order = "graphs in ascending order, from 1"
    reject("graph_indicator", np.diff(graph, prepend=0) < 0, in_order)
    reject("graph_indicator", graph >= len(labels), f"one of {len(labels)} graphs")
    n_nodes = np.bincount(graph, minlength=len(labels))
    reject("graph_labels", n_nodes == 0, "a graph with nodes")
    edges = required("A", 2) - 1
    out_of_bounds = np.any((edges < 0) | (edges >= len(graph)), axis=1)
    reject("A", out_of_bounds, f"nodes from 1 to {len(graph)}")
    reject("A", graph[edges[:, 0]] != graph[edges[:, 1]], "two nodes of one graph")
    per_node = {"node_labels": int, "node_attributes": float}
    tags, attributes = (table(suffix, None, kind) for suffix, kind in per_node.items())
    for suffix, values in zip(per_node, (tags, attributes), strict=True):
        if values is not None and len(values) != len(graph):
            raise DataError(
                f"{tree.where(stem)}_{suffix}.txt: expected {len(graph)} lines, one for each node, "
                f"got {len(values)}."
            )
    if tags is not None:  # distinct rows of several tags are distinct tags
        tags = np.unique(tags, axis=0, return_inverse=True)[1].reshape(-1)
    return RawGraphs(str(tree.origin), n_nodes, edges.T, labels, tags, attributes)


def _read_gin(origin: str, lines: list[str], folds: Sequence[_Lines]) -> RawGraphs:
    """Reads GIN's text format.

    The first line has the number of graphs. Each graph has a line ``n_nodes label``, and for each
    node a line ``tag n_neighbours neighbour neighbour …``, optionally followed by attributes.
    """
    (n,), _ = _integers(origin, lines, 0, 1, "the number of graphs")
    if n < 1:
        raise DataError(f"{origin}:1: expected at least one graph, got {n}.")
    n_nodes, labels, tags, attributes = [], [], [], []
    sources: list[int] = []
    targets: list[int] = []
    row, start, width = 1, 0, None
    for _ in range(n):
        (size, label), fields = _integers(origin, lines, row, 2, "the number of nodes and a label")
        if size < 1:
            raise DataError(f"{origin}:{row + 1}: expected at least one node, got {size}.")
        n_nodes.append(size)
        labels.append(label)
        for node in range(start, start + size):
            row += 1
            (tag, count), fields = _integers(
                origin, lines, row, 2, "a tag and a number of neighbours", more=True
            )
            n_attributes = len(fields) - count
            width = n_attributes if width is None else width
            if count < 0 or n_attributes != width or n_attributes < 0:
                raise DataError(
                    f"{origin}:{row + 1}: expected {max(count, 0)} neighbours"
                    f"{f' and {width} attributes' if width and width > 0 else ''} after "
                    f"the tag and their number, got {len(fields)} fields."
                )
            near = _numbers(fields[:count], int)
            if near is None:
                got = f"got {lines[row]!r:.60}"
                raise DataError(f"{origin}:{row + 1}: expected neighbours, {got}.")
            if count and not (min(near) >= 0 and max(near) < size):
                raise DataError(
                    f"{origin}:{row + 1}: expected neighbours from 0 to {size - 1}, got {near}."
                )
            tags.append(tag)
            sources.extend([node] * count)
            targets.extend(start + other for other in near)
            if width:
                values = _numbers(fields[count:], float)
                if values is None:
                    expected = f"attributes as finite numbers, got {fields[count:]}"
                    raise DataError(f"{origin}:{row + 1}: expected {expected}.")
                attributes.append(values)
        start += size
        row += 1
    extra_line = next((i for i in range(row, len(lines)) if lines[i].strip()), None)
    if extra_line is not None:
        raise DataError(
            f"{origin}:{extra_line + 1}: expected the end after {n} graphs, got more lines."
        )
    return RawGraphs(
        origin,
        np.array(n_nodes, np.int64),
        np.array([sources, targets], np.int64),
        np.array(labels, np.int64),
        np.array(tags, np.int64),
        np.array(attributes, np.float32) if width else None,
        _fold_array(n, folds) if folds else None,
    )


def _fold_files(tree: FileTree, folder: str) -> list[_Lines]:
    """Test parts of the ten folds in order; empty if there are none."""
    names = [f"{folder}test_idx-{fold}.txt" for fold in range(1, _N_FOLDS + 1)]
    present = [name for name in names if name in tree.sizes]
    if present and present != names:
        raise DataError(
            f"{tree.where(folder)}: expected {_N_FOLDS} test parts, got {len(present)}."
        )
    return [_lines(tree, name) for name in present]


def _fold_array(n: int, texts: Sequence[_Lines]) -> np.ndarray:
    """Test fold of each graph; a graph is tested at most once."""
    folds = np.full(n, NO_FOLD, np.int32)
    for fold, (origin, lines) in enumerate(texts):
        lines = [line for line in lines if line.strip()]
        for row in range(len(lines)):
            (graph,), _ = _integers(origin, lines, row, 1, "the index of a graph")
            if not 0 <= graph < n or folds[graph] != NO_FOLD:
                expected = f"indices from 0 to {n - 1}, each in one fold"
                raise DataError(f"{origin}:{row + 1}: expected {expected}, got {graph}.")
            folds[graph] = fold
    return folds


def _integers(
    origin: str, lines: list[str], row: int, count: int, expected: str, *, more: bool = False
) -> tuple[list[int], list[str]]:
    """Parses the first ``count`` fields of a line, and returns the other fields, if ``more``."""
    if row >= len(lines):
        raise DataError(f"{origin}:{row + 1}: expected {expected}, got the end of the file.")
    fields = lines[row].split()
    numbers = _numbers(fields[:count] if more else fields, int)
    if numbers is None or len(numbers) != count:
        raise DataError(f"{origin}:{row + 1}: expected {expected}, got {lines[row]!r:.60}.")
    return numbers, fields[count:]


def _numbers(fields: list[str], kind: type) -> list[Any] | None:
    """Parses integers that fit in int64, or finite numbers; None if a field is another."""
    try:
        numbers = [kind(field) for field in fields]
    except ValueError:
        return None
    if kind is int:
        return numbers if all(-_MAX_INTEGER <= x < _MAX_INTEGER for x in numbers) else None
    return numbers if np.isfinite(numbers).all() else None
