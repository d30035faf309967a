"""Export of functions with symbolic array sizes."""

import jax
from jax import export

from _helpers.refusals import unchecked

PLATFORMS = ("cpu", "cuda", "tpu")


def symbolic(tree, **axes):
    """Replaces array sizes in a tree by symbols: with ``b=3``, each size of 3 becomes ``b``."""
    symbols = dict(zip(axes.values(), export.symbolic_shape(", ".join(axes))))

    def shape_of(x):
        return jax.ShapeDtypeStruct(tuple(symbols.get(n, n) for n in x.shape), x.dtype)

    return jax.tree.map(shape_of, tree)


def exported(function, *args, **axes):
    """Exports a function of arrays for several platforms; ``axes`` as in :func:`symbolic`.

    The run-time type checker is disabled: it rejects symbolic sizes, which are not ``int``.
    """
    with unchecked():
        return export.export(jax.jit(function), platforms=PLATFORMS)(*symbolic(args, **axes))
