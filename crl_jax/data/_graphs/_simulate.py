"""Simulated graphs whose classes are motifs."""

import numpy as np

from ..._checks import check_count, check_range
from ._raw import RawGraphs
from ._set import Graphs

# Pairs of nodes, of five each: they differ in their shape, not in their size.
_MOTIFS = {
    "house": ((0, 1), (1, 2), (2, 3), (3, 0), (3, 4), (0, 4)),
    "wheel": ((0, 1), (1, 2), (2, 3), (3, 0), (4, 0), (4, 2)),
    "clique": ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (3, 4)),
    "cycle": ((0, 1), (1, 2), (2, 3), (3, 4), (4, 0)),
}
_SIZE = 5


def simulate_graphs(
    *,
    n: int = 400,
    n_classes: int = 3,
    n_nodes: tuple[int, int] = (10, 25),
    n_tags: int = 4,
    noise: float = 0.1,
    seed: int = 0,
) -> Graphs:
    """Random trees with motifs attached to them, which are of another shape in each class.

    A tree has a node count drawn uniformly from ``n_nodes``; each node hangs on one before it,
    drawn uniformly. Two motifs of five nodes, those of the class, are each linked to a node of the
    tree. Then ``round(noise * edges)`` links of random nodes are added. Tags of nodes are uniform:
    they tell nothing of the class.

    Args:
      n: Number of graphs; each class has as many, up to one.
      n_classes: 2 to 4: house, wheel, clique, cycle.
      n_nodes: Least and greatest number of nodes of a tree.
      n_tags: Kinds of nodes, >= 1.
      noise: Added links for each edge, >= 0.
      seed: Of the random generator.

    Raises:
      ValueError: If an argument leaves its range.

    >>> simulate_graphs(n=6, seed=1).classes
    ('0', '1', '2')
    """
    check_count("n", n)
    check_count("n_classes", n_classes, 2)
    check_range("n_classes", n_classes, 2, len(_MOTIFS))
    check_count("n_tags", n_tags)
    check_range("noise", noise, 0, np.inf, high_open=True)
    low, high = n_nodes
    if not 1 <= low <= high:
        raise ValueError(
            f"`n_nodes` must be two numbers from 1 on, the lower first, got {n_nodes}."
        )
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(n) % n_classes)
    motifs = [np.array(motif).T for motif in _MOTIFS.values()]
    sizes, links, start = [], [], 0
    for label in labels:
        size = int(rng.integers(low, high + 1))
        child = np.arange(1, size)
        parts = [np.stack([(rng.random(size - 1) * child).astype(int), child])]
        for first in (size, size + _SIZE):
            hook = [[int(rng.integers(size))], [first + int(rng.integers(_SIZE))]]
            parts += [motifs[label] + first, np.array(hook)]
        total = size + 2 * _SIZE
        n_more = round(noise * sum(part.shape[1] for part in parts))
        one = rng.integers(total, size=n_more)
        parts.append(np.stack([one, (one + rng.integers(1, total, size=n_more)) % total]))
        own = np.sort(np.concatenate(parts, axis=1), axis=0)
        links.append(start + np.unique(own, axis=1))
        sizes.append(total)
        start += total
    tags = rng.integers(n_tags, size=start)
    raw = RawGraphs(
        "simulated", np.array(sizes), np.concatenate(links, axis=1), labels, tags, both=False
    )
    return raw.graphs("tags")
