"""``jax.jit`` as training needs it."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer

from ._memory import watch_compiler

# Half of a short training on the CPU is compiling. Below its last level LLVM takes a tenth off
# that and off epochs of matrix factorisation too; results keep their bits.
_OPTIONS: dict[str, dict[str, Any]] = {"cpu": {"xla_backend_optimization_level": 1}}


class Jitted:
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
        options = _OPTIONS.get(jax.default_backend())
        if jax.config.read("jax_disable_most_optimizations"):  # whose options these would replace
            options = None
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            options = None  # a part of another program is compiled as that is
        key = tuple(_classes(structure)), None if options is None else str(options)
        if key not in self._of:
            if jax.default_backend() == "cpu":  # whose compiler takes the memory of arrays
                watch_compiler()
            # A function of its own, for JAX remembers what it has traced by the function.
            own = functools.wraps(self._function)(functools.partial(self._function))
            self._of[key] = jax.jit(own, compiler_options=options, **self._options)
        return self._of[key]


def _classes(structure: Any) -> Iterator[type]:
    """The classes of all containers, each before what it holds."""
    if (node := structure.node_data()) is not None:
        yield node[0]
        for child in structure.children():
            yield from _classes(child)


def jit(function: Callable[..., Any], **options: Any) -> Jitted:
    """``jax.jit`` with the compiler's options that suit training on the default backend.

    What :func:`fit` compiles with; for loops of yours around :func:`run_steps`. On CPUs it
    compiles faster than ``jax.jit``, and most epochs take less time. On Linux, the
    memory that a long compilation took is given back to the system before the program runs. It
    also tells classes with equal fields apart, which ``jax.jit`` does not in JAX 0.10.

    Args:
      function: A pure function of arrays.
      **options: Those of ``jax.jit``, such as ``donate_argnums``.

    Returns:
      The function, compiled at its first call.
    """
    return Jitted(function, options)
