"""Simulated graphs whose classes are motifs."""

from typing import Annotated

import numpy as np

from ..._checks import check_count, check_range
from ..._hyperparams import Range, check_arguments
from ._graphs import Graphs, RawGraphs

# Edges of motifs with five nodes each, so that classes differ in shape and not in size.
_MOTIFS = {
    "house": ((0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (0, 4)),
    "wheel": ((0, 1), (1, 2), (2, 3), (3, 0), (4, 0), (4, 2)),
    "clique": ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 4)),
    "cycle": ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0)),
}
_SIZE = 5


@check_arguments
def simulate_graphs(
    *,
    n: int = 400,
    n_classes: int = 3,
    n_nodes: tuple[int, int] = (10, 25),
    n_tags: int = 4,
    noise: Annotated[float, Range(0, np.inf, high_open=True)] = 0.1,
    seed: int = 0,
) -> Graphs:
    """Simulates random trees with attached motifs; the motif determines the class.

    The number of tree nodes is uniform on ``n_nodes``, and each node's parent is uniform among the
    nodes before it. Two copies of the class's motif, of five nodes each, are linked to random tree
    nodes. Then ``round(noise * n_edges)`` random edges are added. Node tags are uniform and
    independent of the class.

    Args:
      n: Number of graphs. Class sizes differ by at most one.
      n_classes: Number of classes, 2 to 4: house, wheel, clique, cycle.
      n_nodes: Minimum and maximum number of nodes of a tree.
      n_tags: Number of distinct node tags, >= 1.
      noise: Number of added edges per edge, >= 0.
      seed: Seed of the random generator.

    Raises:
      ValueError: If an argument is out of range.

    >>> simulate_graphs(n=6, seed=1).classes
    ('0', '1', '2')
    """
    check_count("n", n)
    check_count("n_classes", n_classes, 2)
    check_range("n_classes", n_classes, 2, len(_MOTIFS))
    check_count("n_tags", n_tags)
    low, high = n_nodes
    if not 1 <= low <= high:
        raise ValueError(
            f"`n_nodes` must be (minimum, maximum) with 1 <= minimum <= maximum, got {n_nodes}."
        )
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % n_classes)
    motifs = [np.array(motif).T for motif in _MOTIFS.values()]
    sizes, edges, start = [], [], 0
    for label in labels:
        size = int(rng.integers(low, high + 1))
        child = np.arange(1, size)
        parts = [np.stack([(rng.random(size - 1) * child).astype(int), child])]
        for first in (size, size + _SIZE):
            hook = [[int(rng.integers(size))], [first + int(rng.integers(_SIZE))]]
            parts += [motifs[label] + first, np.array(hook)]
        total = size + 2 * _SIZE
        n_noise = round(noise * sum(part.shape[1] for part in parts))
        one = rng.integers(total, size=n_noise)
        parts.append(np.stack([one, (one + rng.integers(1, total, size=n_noise)) % total]))
        graph = np.sort(np.concatenate(parts, axis=1), axis=0)
        edges.append(start + np.unique(graph, axis=1))
        sizes.append(total)
        start += total
    tags = rng.integers(n_tags, size=start)
    raw = RawGraphs(
        "simulated",
        np.array(sizes),
        np.concatenate(edges, axis=1),
        labels,
        tags,
        is_symmetric=False,
    )
    return raw.graphs("tags")
