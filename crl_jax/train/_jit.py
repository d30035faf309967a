"""``jax.jit`` as training needs it."""

import functools
from collections.abc import Callable
from typing import Any

import jax

# Half of a short training on the CPU is compiling. Below its last level LLVM takes a tenth off
# that and off epochs of matrix factorisation too; results keep their bits.
_OPTIONS: dict[str, dict[str, Any]] = {"cpu": {"xla_backend_optimization_level": 1}}


class Jitted:
    """A compiled function; made by :func:`jit`.

    Which options it is compiled with depends on the backend, which is not asked for before the
    first call: so far no device need be there.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]):
        functools.update_wrapper(self, function)
        self._function, self._options = function, options
        self._of: dict[str, Any] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled()(*args, **kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """As of ``jax.jit``."""
        return self._compiled().trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> Any:
        """As of ``jax.jit``."""
        return self._compiled().lower(*args, **kwargs)

    def _compiled(self) -> Any:
        backend = jax.default_backend()
        if backend not in self._of:
            options = _OPTIONS.get(backend)
            self._of[backend] = jax.jit(self._function, compiler_options=options, **self._options)
        return self._of[backend]


def jit(function: Callable[..., Any], **options: Any) -> Jitted:
    """``jax.jit`` with the compiler's options that suit training on the default backend.

    What :func:`fit` compiles with; for loops of yours around :func:`run_steps`. On CPUs it
    compiles faster than ``jax.jit``, and most epochs take less time.

    Args:
      function: A pure function of arrays.
      **options: Those of ``jax.jit``, such as ``donate_argnums``.

    Returns:
      The function, compiled at its first call.
    """
    return Jitted(function, options)
