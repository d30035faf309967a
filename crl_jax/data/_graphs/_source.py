"""One door for sets of small graphs: folders, archives and files, simulated ones, memory."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from .._archive import Store, open_store
from .._errors import DataError
from .._readers import say_missing
from ._gin import N_FOLDS, read_gin
from ._memory import as_graphs
from ._raw import NodeFeatures, RawGraphs, check_features
from ._set import Graphs
from ._simulate import simulate_graphs
from ._tu import read_tu

_LARGEST = 2 << 30  # bytes of a file
_FOLDS = "10fold_idx"
_LINKS = "_A.txt"


def load_graphs(source: Any, *, features: NodeFeatures = "auto") -> Graphs:
    """Loads labelled graphs: each is one sample.

    Args:
      source: One of

        * ``"simulated"``: the graphs of :func:`simulate_graphs`. (A file of that name is
          ``"./simulated"``.)
        * a folder, or a zip or tar archive, with one set of TU Dortmund: ``NAME_A.txt``,
          ``NAME_graph_indicator.txt``, ``NAME_graph_labels.txt``, perhaps ``NAME_node_labels.txt``
          and ``NAME_node_attributes.txt``;
        * a folder or an archive with one file in the text format of GIN, ``NAME.txt``, and perhaps
          a folder ``10fold_idx`` of its published folds;
        * that file itself, beside which the folds may lie;
        * :class:`Graphs`, or ``(edges, features, labels)``, as :func:`as_graphs` takes them.
      features: What nodes are known by. ``"tags"``: unit vectors of their kinds; ``"attributes"``:
        numbers of the source; ``"degrees"``: unit vectors of the numbers of neighbours, as GIN's
        code does for sets without tags; ``"constant"``: 1, as the code of InfoGraph and GraphCL
        does for these. ``"auto"``: tags, else attributes, else the constant. A set whose nodes are
        all of one tag, such as IMDB-BINARY of GIN, so has the constant.

    Returns:
      The graphs. Links lead both ways. One of a node with itself is left out, one that stands
      there twice counts once, and one whose other direction is missing leads both ways, too: a
      :class:`DataWarning` counts each of them.

    Raises:
      ValueError: If ``source`` or ``features`` is none of these.
      DataError: If a file is not as expected; the message has its line.
      FileNotFoundError: If there is no such file or folder.

    >>> load_graphs("simulated")
    Graphs(400 of 35 nodes and 44 edges at most, 4 features, 3 classes)
    """
    check_features(features)
    if isinstance(source, Graphs):
        if features != "auto":
            raise ValueError(f"`features` must be auto where they are given, got {features!r}.")
        return source
    if isinstance(source, str) and source == "simulated":
        if features not in ("auto", "tags"):
            raise ValueError(f"`features` of simulated graphs must be tags, got {features!r}.")
        return simulate_graphs()
    if isinstance(source, str | Path):
        return _read(Path(source)).graphs(features)
    if isinstance(source, tuple) and len(source) == 3:
        return as_graphs(*source, known_by=features)
    raise ValueError(
        '`source` must be a path, "simulated", Graphs or (edges, features, labels), '
        f"got {source!r:.100}."
    )


def _read(path: Path) -> RawGraphs:
    if not path.exists():
        text = say_missing(path)
        raise FileNotFoundError(text + ' Other sources are "simulated" and graphs in memory.')
    if path.suffix.lower() == ".txt" and path.is_file():
        folder = path.parent / _FOLDS
        folds: Mapping[str, str] = {}
        if folder.is_dir():
            with open_store(folder) as store:
                folds = _folds(store, "")
        size = path.stat().st_size
        if size > _LARGEST:
            raise DataError(f"{path}: expected at most {_LARGEST} bytes, got {size}.")
        return read_gin(str(path), _decoded(str(path), path.read_bytes()), folds)
    with open_store(path) as store:
        links = [name for name in store.sizes if name.endswith(_LINKS)]
        if links:
            stem = _only(store, links).removesuffix(_LINKS)

            def text_of(end: str) -> tuple[str, str] | None:
                name = f"{stem}_{end}.txt"
                return (store.where(name), _text(store, name)) if name in store.sizes else None

            return read_tu(str(path), text_of)
        texts = [
            name
            for name in store.sizes
            if name.endswith(".txt") and _FOLDS not in PurePosixPath(name).parts
        ]
        name = _only(store, texts)
        parent = str(PurePosixPath(name).parent / _FOLDS) + "/"
        return read_gin(store.where(name), _text(store, name), _folds(store, parent))


def _folds(store: Store, folder: str) -> dict[str, str]:
    """The test parts in the order of their numbers, or none."""
    names = [f"{folder}test_idx-{fold}.txt" for fold in range(1, N_FOLDS + 1)]
    there = [name for name in names if name in store.sizes]
    if there and there != names:
        raise DataError(f"{store.where(folder)}: expected {N_FOLDS} test parts, got {len(there)}.")
    return {store.where(name): _text(store, name) for name in there}


def _only(store: Store, names: list[str]) -> str:
    if len(names) != 1:
        got = ", ".join(names[:20]) or "none"
        raise DataError(
            f"{store.origin}: expected one set of graphs, NAME{_LINKS} with its other files or a "
            f"text file of GIN, got {got}."
        )
    return names[0]


def _text(store: Store, name: str) -> str:
    return _decoded(store.where(name), store.read(name, _LARGEST))


def _decoded(where: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected text in UTF-8, got other bytes.") from error
