"""Helpers to compile programs quickly, for tests of results rather than of speed."""

import inspect
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

as_users_do = partial(
    jax.jit,
    compiler_options={"xla_cpu_use_fusion_emitters": True}
    if jax.__version_info__ < (0, 11)
    else None,
)
"""``jax.jit`` with JAX's default code generator, for tests of rounding."""


@partial(jax.jit, static_argnums=0, static_argnames=("train", "method"))
def apply(network, params, rest, *args, train=False, method="__call__"):
    """Calls ``network.apply`` as one program; eager code compiles each operation separately."""
    return network.apply(params, rest, *args, train=train, method=method)


def initial(network, seed=0):
    """Returns the initial variables of a network."""
    return jax.jit(network.init)(jax.random.key(seed))


def in_one(function, *args, **kwargs):
    """Calls a function as one program; keyword arguments are static."""
    return jax.jit(lambda *args: function(*args, **kwargs))(*args)


OPTIONS = ("reduce_fn", "bins", "denominator", "attract", "repel", "objective", "surrogate")


def jitted(module):
    """Returns the functions of a module, each compiled as one program."""
    functions = {name: f for name, f in vars(module).items() if inspect.isfunction(f)}
    return SimpleNamespace(
        **{
            name: jax.jit(f, static_argnames=inspect.signature(f).parameters.keys() & {*OPTIONS})
            for name, f in functions.items()
        }
    )


def moved_variables(network):
    """Returns the initial variables of a network with noise added, so that no two are equal."""
    rng = np.random.default_rng(2)

    def moved(x):
        return jnp.asarray(x + 0.2 * rng.random(x.shape), x.dtype)

    return jax.tree.map(moved, jax.tree.map(np.asarray, initial(network)))


def counted(function):
    """Returns a jitted function, and a list with one item per trace."""
    traces = []

    @jax.jit
    def traced(*arguments):
        traces.append(None)
        return function(*arguments)

    return traced, traces
