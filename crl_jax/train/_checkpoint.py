"""Checkpoints: one file, replaced atomically, without pickle.

A training state here is a few arrays and a history, so a checkpoint is one ``.npz`` archive that
holds both. It is written beside the old one, flushed to disk and renamed over it: whenever the
process is killed, the name leads to a complete checkpoint, the old or the new one.
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .._files import whole

_HEADER = "header"


def save_checkpoint(path: str | os.PathLike[str], tree: Any, meta: dict[str, Any]) -> None:
    """Writes a tree of arrays and a JSON-able dictionary to ``path``, atomically.

    Args:
      path: The file; its folder is made if need be.
      tree: Nested containers of arrays: numbers of any dtype (bfloat16 included) or strings; no
        PRNG key arrays.
      meta: What else must come back; JSON.

    Raises:
      ValueError: If an array holds Python objects, which only pickle could write.
    """
    path = Path(path)
    arrays, dtypes = {}, {}
    for name, leaf in _named_leaves(tree):
        array = np.asarray(leaf)
        if array.dtype.hasobject:
            raise ValueError(f"`tree` must hold numbers and strings, got objects in {name}.")
        if array.dtype.kind not in "biufcU":  # npy headers know NumPy's own dtypes alone:
            dtypes[name] = array.dtype.name  # the others travel as bytes
            array = np.ascontiguousarray(array).view(np.uint8)
        arrays[name] = array
    header = json.dumps({"meta": meta, "dtypes": dtypes}).encode()
    with whole(path) as partial, partial.open("wb") as file:
        np.savez(file, **{_HEADER: np.frombuffer(header, np.uint8)}, **arrays)


def load_checkpoint(path: str | os.PathLike[str], like: Any = None) -> tuple[Any, dict[str, Any]]:
    """Reads what :func:`save_checkpoint` wrote.

    Args:
      path: The file.
      like: A tree of the structure, shapes and dtypes expected: arrays or
        ``jax.ShapeDtypeStruct``. ``None`` expects nothing in particular.

    Returns:
      The tree, with NumPy arrays, and the dictionary. If ``like`` is ``None``, the tree is a flat
      dictionary whose keys are the paths of the leaves, joined by ``/``.

    Raises:
      FileNotFoundError: If there is no such file.
      ValueError: If the file is not a complete checkpoint, or holds other arrays than ``like``.
    """
    try:
        # Opened here: np.load does not close a file that turns out to be no archive.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as archive:
            stored = {name: archive[name] for name in archive.files}
        header = json.loads(stored.pop(_HEADER).tobytes())
        for name, dtype in header["dtypes"].items():
            stored[name] = stored[name].view(jnp.dtype(dtype))
        meta = header["meta"]
    except FileNotFoundError:
        raise
    except Exception as error:  # zipfile and NumPy raise nearly anything on damaged bytes
        raise ValueError(f"{path}: expected a complete checkpoint, got {error!r}.") from error
    if like is None:
        return stored, meta

    expected = dict(_named_leaves(like))
    if stored.keys() != expected.keys():
        raise ValueError(f"{path}: expected the arrays {sorted(expected)}, got {sorted(stored)}.")
    for name, leaf in expected.items():
        got = stored[name]
        if got.shape != leaf.shape or got.dtype != leaf.dtype:
            raise ValueError(
                f"{path}: expected {name} as {leaf.dtype}{list(leaf.shape)}, "
                f"got {got.dtype}{list(got.shape)}."
            )
    leaves = [stored[name] for name in expected]
    return jax.tree.unflatten(jax.tree.structure(like), leaves), meta


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    return [
        (jax.tree_util.keystr(path, simple=True, separator="/"), leaf)
        for path, leaf in jax.tree.leaves_with_path(tree)
    ]
