"""What tells one training from another: a checkpoint goes on with its own alone."""

import hashlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FEW = 4


def describe(tree: Any) -> dict[str, Any]:
    """What stands at each leaf of a tree, by its path: few numbers as they are, many by a hash."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): _shown(leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def hash_program(traced: Any) -> dict[str, str]:
    """What is computed, whatever its functions are called.

    Two functions of one name that compute different things differ here. The text that a program
    is told by depends on the version of JAX, which stands beside it.
    """
    return {"jax": jax.__version__, "sha256": _hash_of(traced.jaxpr)}


def computation_hash(fn: Callable[..., Any], *args: Any) -> str:
    """Tells a function by what it computes, whatever it is called; nothing is computed.

    Args:
      fn: A pure function of arrays.
      *args: What it is given: arrays, or what has their shapes and dtypes, in any containers.

    Returns:
      16 hexadecimal digits: the same for the same computation under one version of JAX.

    >>> x = jax.ShapeDtypeStruct((3,), "float32")
    >>> double, again, triple = (lambda x: 2 * x), (lambda x: 2 * x), (lambda x: 3 * x)
    >>> computation_hash(double, x) == computation_hash(again, x)
    True
    >>> computation_hash(double, x) == computation_hash(triple, x)
    False
    """
    return _hash_of(jax.make_jaxpr(fn)(*args))


def check_same(path: Any, stored: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raises ``ValueError`` unless a checkpoint was written by the training that reads it."""
    for name, value in wanted.items():
        found = stored.get(name)
        if found == value:
            continue
        if name == "program" and isinstance(found, dict) and found.get("jax") != value["jax"]:
            warnings.warn(
                f"`checkpoint` {path} was written with JAX {found.get('jax')}, and this is "
                f"{value['jax']}: whether the functions compute the same cannot be told.",
                stacklevel=3,
            )
            continue
        what = "functions that compute something else" if name == "program" else f"{name} {found}"
        raise ValueError(
            f"`checkpoint` {path} belongs to another training: expected {name} = {value}, "
            f"got {what}."
        )


def _hash_of(closed: Any) -> str:
    """Of a closed jaxpr: its text, and the arrays that it holds."""
    text = _without_addresses(str(closed))
    parts = [text.encode(), *(_hash(np.asarray(x)).encode() for x in closed.consts)]
    return hashlib.sha256(b";".join(parts)).hexdigest()[:16]


def _shown(leaf: Any) -> Any:
    if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.tolist() if array.size <= _FEW else _hash(array)


def _hash(array: np.ndarray) -> str:
    described = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(described + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", text)
