"""``jax.jit`` as training needs it."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from ._malloc import watch_compiler

_OPTIONS: dict[str, dict[str, Any]] = {
    "cpu": {
        # Half of a short training is compiling. Below its last level LLVM takes a tenth off that
        # and off epochs of matrix factorisation too.
        "xla_backend_optimization_level": 1,
        # Where a core has vectors of 512 bits, half of each lies idle by default. Long sums are
        # added up in another order, and may round otherwise.
        "xla_cpu_prefer_vector_width": 512,
        # By default operations are ordered so that more of them could run at a time. Then more
        # arrays are held, and a training step is not faster for it.
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
    }
}


class CompiledFunction:
    """A compiled function; made by :func:`jit`.

    Which options it is compiled with depends on the backend, which is not asked for before the
    first call: so far no device need be there.

    A program belongs to the classes in its arguments. JAX 0.10 finds programs by structures of
    arguments, and takes two dataclasses for one whose fields are equal: it would now and then run
    the program of another sampler.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._of: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(args, kwargs)(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of ``jax.jit``."""
        return self._compiled(args, kwargs).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of ``jax.jit``."""
        return self._compiled(args, kwargs).lower(*args, **kwargs)

    def _compiled(self, *given: Any) -> Any:
        leaves, structure = jax.tree.flatten(given)
        options = None
        # Options would replace those that leave most optimisations out; and a part of another
        # program is compiled as that is.
        is_part = any(isinstance(leaf, Tracer) for leaf in leaves)
        if not is_part and not jax.config.read("jax_disable_most_optimizations"):
            options = known_options(jax.default_backend())
        key = tuple(_classes(structure)), None if options is None else str(options)
        if key not in self._of:
            if jax.default_backend() == "cpu":  # whose compiler takes the memory of arrays
                watch_compiler()
            # A function of its own, for JAX remembers what it has traced by the function.
            own = functools.wraps(self._function)(functools.partial(self._function))
            self._of[key] = jax.jit(own, compiler_options=options, **self._options)
        return self._of[key]


@functools.cache
def known_options(backend: str) -> dict[str, Any] | None:
    """Those of the options for a backend that its compiler knows; None if there are none.

    The compiler of JAX 0.7 does not know all of them, and a later one may drop some.
    """
    known = {}
    for name, value in _OPTIONS.get(backend, {}).items():
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError:
            continue
        known[name] = value
    return known or None


def _classes(structure: Any) -> Iterator[type]:
    """The classes of all containers, each before what it holds."""
    if (node := structure.node_data()) is not None:
        yield node[0]
        for child in structure.children():
            yield from _classes(child)


def jit(function: Callable[..., Any], **options: Any) -> CompiledFunction:
    """``jax.jit`` with the compiler's options that suit training on the default backend.

    What :func:`fit` compiles with; for loops of yours around :func:`run_steps`. On CPUs it
    compiles faster than ``jax.jit``, most epochs take less time, and steps hold fewer arrays at a
    time. On Linux, the memory that a long compilation took is given back to the system before the
    program runs. It also tells classes with equal fields apart, which ``jax.jit`` does not in
    JAX 0.10.

    Args:
      function: A pure function of arrays.
      **options: Those of ``jax.jit``, such as ``donate_argnums``.

    Returns:
      The function, compiled at its first call.
    """
    return CompiledFunction(function, options)
