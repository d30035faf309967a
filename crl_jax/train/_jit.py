"""``jax.jit`` for training programs."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
from jax.core import Tracer

OptionsFn = Callable[[str], Mapping[str, Any] | None]

_default_options: OptionsFn | None = None


def set_compiler_options(options: Mapping[str, Any] | OptionsFn | None) -> None:
    """Sets the default compiler options of :func:`jit` and :func:`fit` in this process.

    Meant for the entry point of a command. Programs that are compiled already keep their options.
    Options are no part of a training's results or checkpoints, but may change its rounding.

    Args:
      options: XLA options by name, as ``compiler_options`` of ``jax.jit``; a function that returns
        them (or None) for the name of the backend, called before the first compilation; or None
        for XLA's defaults.
    """
    global _default_options
    if options is None or callable(options):
        _default_options = options
    else:
        _default_options = lambda backend: options  # noqa: E731


class CompiledFunction:
    """Compiled function; created by :func:`jit`.

    Programs are cached by the classes of the arguments. JAX 0.10 finds programs by the structure of
    the arguments and confuses dataclasses with equal fields: it would occasionally run the program
    of another sampler.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: dict[str, Any],
        compiler_options: Mapping[str, Any] | None = None,
    ):
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._compiler_options = compiler_options
        self._programs: dict[Any, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._program(args, kwargs)(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Traces the function, as ``jax.jit(...).trace``."""
        return self._program(args, kwargs).trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers the function, as ``jax.jit(...).lower``."""
        return self._program(args, kwargs).lower(*args, **kwargs)

    def _program(self, *arguments: Any) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        # JAX accepts compiler options at the outermost function only, and they would override
        # `jax_disable_most_optimizations`.
        is_inner = any(isinstance(leaf, Tracer) for leaf in leaves)
        options = None
        if not is_inner and not jax.config.read("jax_disable_most_optimizations"):
            options = self._compiler_options
            if options is None and _default_options is not None:
                options = _default_options(jax.default_backend())
        key = tuple(_classes(structure)), str(options)
        if key not in self._programs:
            # JAX caches traces by function: each program needs a separate function object.
            own = functools.wraps(self._function)(functools.partial(self._function))
            compiler_options = None if options is None else dict(options)
            self._programs[key] = jax.jit(own, compiler_options=compiler_options, **self._options)
        return self._programs[key]


def _classes(structure: Any) -> Iterator[type]:
    """Classes of all containers in depth-first order."""
    if (node := structure.node_data()) is not None:
        yield node[0]
        for child in structure.children():
            yield from _classes(child)


def jit(
    function: Callable[..., Any],
    *,
    compiler_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> CompiledFunction:
    """``jax.jit`` that distinguishes classes with equal fields, which JAX 0.10 does not.

    :func:`fit` compiles its programs with it. Use it for loops of your own around
    :func:`run_steps`.

    Args:
      function: A pure function of arrays.
      compiler_options: XLA options by name; None takes those of :func:`set_compiler_options`.
      **options: Other options of ``jax.jit``, such as ``donate_argnums``.

    Returns:
      The function, compiled at its first call.
    """
    return CompiledFunction(function, options, compiler_options)
