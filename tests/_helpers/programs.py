"""Helpers to compile programs quickly, for tests of results rather than of speed."""

from functools import partial

import jax

as_users_do = partial(
    jax.jit,
    compiler_options={"xla_cpu_use_fusion_emitters": True}
    if jax.__version_info__ < (0, 11)
    else None,
)
"""``jax.jit`` with JAX's default code generator, for tests of rounding."""


def moved_variables(network):
    """Returns the initial variables of a network with noise added, so that no two are equal."""
    variables = jax.jit(network.init)(jax.random.key(0))
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [x + 0.2 * jax.random.uniform(key, x.shape) for x, key in zip(leaves, keys)]
    return jax.tree.unflatten(tree, moved)


def counted(function):
    """Returns a jitted function, and a list with one item per trace."""
    traces = []

    @jax.jit
    def traced(*arguments):
        traces.append(None)
        return function(*arguments)

    return traced, traces
