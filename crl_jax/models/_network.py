"""Flax NNX modules as pure functions of two pytrees of arrays."""

from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

from jaxtyping import Array, Key

from .._pytree import STATIC, pytree_dataclass
from ._remat import Remat

# Importing `flax.nnx` takes about a third as long as everything else; only networks need it.
if TYPE_CHECKING:
    from flax import nnx


@pytree_dataclass
class Network:
    """Functional form of a Flax NNX module.

    The structure of the module is traced once, without computation. Networks with the same
    ``build`` share compiled programs, so it should be a module-level function, not a new lambda.

    Precision: float32 products of the modules have the platform's default precision, also in
    evaluation.

    Attributes:
      build: Builds the module from random streams, for instance
        ``def build(rngs): return nnx.Linear(3, 4, rngs=rngs)``. Static.
      remat: Rematerialization of the network's blocks in the backward pass, which saves memory and
        costs time; values are the same. A module supports it by an attribute ``remat``, as
        :class:`ResNet`, :class:`BERT` and :class:`GIN` do. Static.

    Raises:
      ValueError: If ``remat`` is not one of :data:`Remat`, or, in :meth:`apply`, if no module
        supports it.
    """

    build: Callable[["nnx.Rngs"], Any] = field(metadata=STATIC)
    remat: Remat = field(default="none", kw_only=True, metadata=STATIC)

    @property
    def has_blocks(self) -> bool:
        """Whether a module of the network supports ``remat``."""
        return _has_blocks(self.build)

    def init(self, key: Key[Array, ""]) -> tuple[Any, Any]:
        """Returns initial parameters and all other variables, such as batch statistics."""
        from flax import nnx

        module = self.build(nnx.Rngs(key))
        if not isinstance(module, nnx.Module):
            raise ValueError(
                f"`build` must return a module of Flax NNX, got {type(module).__name__}; wrap a "
                "Linen module by flax.nnx.bridge.ToNNX."
            )
        _, params, rest = nnx.split(module, nnx.Param, ...)
        return nnx.to_pure_dict(params), nnx.to_pure_dict(rest)

    def apply(
        self, params: Any, rest: Any, *args: Any, train: bool = False, method: str = "__call__"
    ) -> tuple[Any, Any]:
        """Calls the module; returns its outputs and the updated other variables.

        Args:
          params, rest: Parameters and other variables, from :meth:`init`.
          *args: Arguments of the module.
          train: Whether to use batch statistics and dropout. Static.
          method: Name of the module's method to call, such as ``"features"``; ``ValueError`` if
            there is none. Static.
        """
        from flax import nnx

        module = nnx.merge(_graph(self.build), params, rest)
        if train:
            module.train()
        else:
            module.eval()
        if self.remat != "none":
            if not self.has_blocks:
                kind = type(module).__name__
                raise ValueError(
                    f"`remat` must be 'none' for {kind}, which has no blocks to rematerialize, "
                    f"got {self.remat!r}."
                )
            module.set_attributes(remat=self.remat)
        if not callable(function := getattr(module, method, None)):
            kind = type(module).__name__
            raise ValueError(f"`method` must name a method of {kind}, got {method!r}.")
        out = function(*args)
        _, _, after = nnx.split(module, nnx.Param, ...)
        return out, nnx.to_pure_dict(after)


@cache
def _has_blocks(build: Callable[["nnx.Rngs"], Any]) -> bool:
    from flax import nnx

    module = nnx.eval_shape(lambda: build(nnx.Rngs(0)))
    return any(hasattr(child, "remat") for _, child in nnx.iter_graph(module))


@cache
def _graph(build: Callable[["nnx.Rngs"], Any]) -> Any:
    """Structure of the module, without arrays."""
    from flax import nnx

    graph, _, _ = nnx.split(nnx.eval_shape(lambda: build(nnx.Rngs(0))), nnx.Param, ...)
    return graph
