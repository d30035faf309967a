"""Default-precision products: their count in a program, and their values on a TPU."""

from collections.abc import Iterator

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_PRODUCTS = (lax.dot_general_p, lax.conv_general_dilated_p)
_CONTROL_FLOW = ("scan", "while", "cond")


def default_products(function, *args) -> int:
    """Counts the float32 products of a function that are not in full precision."""
    return _count(jax.make_jaxpr(function)(*args))


def with_tpu_products(function):
    """Emulates the products of a TPU in a function: float32 operands are rounded to bfloat16.

    Products in full precision are unchanged. The function is traced and interpreted, so derivatives
    must be taken inside it.
    """

    def rounded(*args):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*args)
        out = _evaluate(closed, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    return rounded


def _is_default(eqn) -> bool:
    if eqn.primitive not in _PRODUCTS or eqn.invars[0].aval.dtype != "float32":
        return False
    precision = eqn.params["precision"]
    given = precision if isinstance(precision, tuple) else (precision,)
    return all(x in (None, lax.Precision.DEFAULT) for x in given)


def _jaxprs(value) -> Iterator[Jaxpr | ClosedJaxpr]:
    for part in value if isinstance(value, tuple | list) else (value,):
        if isinstance(part, ClosedJaxpr | Jaxpr):
            yield part


def _count(jaxpr) -> int:
    inner = (x for eqn in jaxpr.eqns for value in eqn.params.values() for x in _jaxprs(value))
    return sum(map(_is_default, jaxpr.eqns)) + sum(map(_count, inner))


def _evaluate(closed: ClosedJaxpr, args):
    jaxpr, values = closed.jaxpr, {}

    def read(atom):
        return atom.val if isinstance(atom, Literal) else values[atom]

    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        out = _bind(eqn, [read(atom) for atom in eqn.invars])
        values.update(zip(eqn.outvars, out, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _bind(eqn, args):
    params = eqn.params
    inner = [x for value in params.values() for x in _jaxprs(value)]
    if _is_default(eqn):
        args = [lax.reduce_precision(x, 8, 7) for x in args]
    elif any(map(_count, inner)):
        if eqn.primitive.name not in _CONTROL_FLOW:
            # A call primitive, such as jit, checkpoint or a custom gradient.
            (jaxpr,) = inner
            return _evaluate(
                jaxpr if isinstance(jaxpr, ClosedJaxpr) else ClosedJaxpr(jaxpr, ()), args
            )
        params = {name: _rewrite(value) for name, value in params.items()}
    bound = eqn.primitive.get_bind_params(params)
    functions, params = bound if isinstance(bound, tuple) else ((), bound)  # JAX 0.12 has no tuple
    out = eqn.primitive.bind(*functions, *args, **params)
    return out if eqn.primitive.multiple_results else [out]


def _rewrite(value):
    """Rewrites the jaxprs in the parameters of control-flow primitives."""
    if isinstance(value, tuple | list):
        return type(value)(map(_rewrite, value)) if any(_jaxprs(value)) else value
    if not isinstance(value, ClosedJaxpr):
        return value
    shapes = [
        jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=getattr(x, "weak_type", False))
        for x in value.in_avals
    ]
    return jax.make_jaxpr(lambda *args: _evaluate(value, args))(*shapes)
