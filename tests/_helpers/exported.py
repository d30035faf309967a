"""Export of functions of arrays with symbolic sizes."""

import jax
from jax import export

from _helpers.refusals import unchecked

PLATFORMS = ("cpu", "cuda", "tpu")


def symbolic(tree, **axes):
    """Replaces sizes of the arrays of a tree by symbols: ``b=3`` is the symbol of each size 3."""
    symbols = dict(zip(axes.values(), export.symbolic_shape(", ".join(axes))))

    def shape_of(x):
        return jax.ShapeDtypeStruct(tuple(symbols.get(n, n) for n in x.shape), x.dtype)

    return jax.tree.map(shape_of, tree)


def exported(function, *args, **axes):
    """Exports a function of arrays for several platforms; ``axes`` as in :func:`symbolic`.

    Symbolic sizes are no ``int``, which the checker of signatures would refuse.
    """
    with unchecked():
        return export.export(jax.jit(function), platforms=PLATFORMS)(*symbolic(args, **axes))
