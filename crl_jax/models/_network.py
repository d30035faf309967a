"""Flax NNX modules as pure functions of two dictionaries of arrays."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from jaxtyping import Array, Key

# Flax takes a third of the time that all else takes to import, and only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@dataclass(frozen=True)
class Network:
    """A module used functionally: a constructor of arrays, and a pure function of them.

    The module is read once, without computing anything. Two networks with the same ``build``
    share their compiled programs, so make it a function of a module and not a new lambda.

    Attributes:
      build: Makes the module from random streams, for instance
        ``def build(rngs): return nnx.Linear(3, 4, rngs=rngs)``.
    """

    build: Callable[["nnx.Rngs"], Any]

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Initial parameters, and the other variables, such as batch statistics."""
        from flax import nnx

        _, params, rest = nnx.split(self.build(nnx.Rngs(key)), nnx.Param, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def apply(
        self, params: Any, rest: Any, *args: Any, train: bool = False, method: str = "__call__"
    ) -> tuple[Any, Any]:
        """What the module makes of ``args``, and its other variables after it.

        Args:
          params: The parameters.
          rest: The other variables.
          *args: What the module is called with.
          train: Whether it is in training: batches have statistics of their own, and dropout is
            on. Static.
          method: The name of the module's method that is called, such as ``"features"``. Static.

        Raises:
          ValueError: If the module has no such method.
        """
        from flax import nnx

        module = nnx.merge(_graph(self.build), params, rest)
        if train:
            module.train()
        else:
            module.eval()
        if not callable(function := getattr(module, method, None)):
            kind = type(module).__name__
            raise ValueError(f"`method` must name a method of {kind}, got {method!r}.")
        out = function(*args)
        _, _, after = nnx.split(module, nnx.Param, ...)
        return out, nnx.to_pure_dict(after)


@cache
def _graph(build: Callable[["nnx.Rngs"], Any]) -> Any:
    """The structure of the module: it holds no arrays."""
    from flax import nnx

    graph, _, _ = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param, ...)
    return graph
