"""Fingerprints of trainings: a checkpoint is resumed by the training that wrote it only."""

import hashlib
import re
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_MAX_LISTED = 4
"""Arrays up to this size are stored as lists, larger ones as hashes."""


def fingerprint(
    run_params: dict[str, np.ndarray], inputs: Any, settings: list[Any], trace: Callable[[], Any]
) -> dict[str, Any]:
    """Fingerprint of a training: run parameters, data, and computation as JAX's version prints it.

    Small leaves are described by their values, large ones by hashes, both by path.
    """
    leaves = jax.tree.leaves_with_path({"batches": inputs.batches, **inputs._asdict()})
    return {
        "runs": {name: value.tolist() for name, value in run_params.items()},
        **{jax.tree_util.keystr(p, simple=True, separator="."): _describe(x) for p, x in leaves},
        "choice": settings,
        "program": {"jax": jax.__version__, "sha256": _hash_jaxpr(trace().jaxpr)},
    }


def computation_hash(fn: Callable[..., Any], *args: Any) -> str:
    """Hash of the computation of a function, whatever its name; nothing is executed.

    Args:
      fn: A pure function of arrays.
      *args: Its arguments, in any containers: arrays or ``jax.ShapeDtypeStruct``.

    Returns:
      16 hexadecimal digits, equal for equal computations under one version of JAX.

    >>> x = jax.ShapeDtypeStruct((3,), "float32")
    >>> double, again, triple = (lambda x: 2 * x), (lambda x: 2 * x), (lambda x: 3 * x)
    >>> computation_hash(double, x) == computation_hash(again, x)
    True
    >>> computation_hash(double, x) == computation_hash(triple, x)
    False
    """
    return _hash_jaxpr(jax.make_jaxpr(fn)(*args))


def check_fingerprint(path: Any, stored: dict[str, Any], expected: dict[str, Any]) -> None:
    """Raises ``ValueError`` unless a checkpoint has the expected fingerprint."""
    for name, value in expected.items():
        got = stored.get(name)
        if got == value:
            continue
        if name == "program" and isinstance(got, dict) and got.get("jax") != value["jax"]:
            warnings.warn(
                f"`checkpoint` {path} was written with JAX {got.get('jax')}, and this is "
                f"{value['jax']}: whether the functions are the same cannot be verified.",
                stacklevel=3,
            )
            continue
        described = "functions with another computation" if name == "program" else f"{name} {got}"
        raise ValueError(
            f"`checkpoint` {path} belongs to another training: expected {name} = {value}, "
            f"got {described}."
        )


def _hash_jaxpr(closed: Any) -> str:
    """Hash of the text of a closed jaxpr, without memory addresses, and of its constants."""
    text = re.sub(r" at 0x[0-9a-f]+", "", str(closed))
    parts = [text.encode(), *(_hash_array(np.asarray(x)).encode() for x in closed.consts)]
    return hashlib.sha256(b";".join(parts)).hexdigest()[:16]


def _describe(leaf: Any) -> Any:
    if jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.tolist() if array.size <= _MAX_LISTED else _hash_array(array)


def _hash_array(array: np.ndarray) -> str:
    header = f"{array.dtype}{array.shape}".encode()
    return hashlib.sha256(header + np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
