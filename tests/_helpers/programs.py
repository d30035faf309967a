"""Programs that are compiled fast, for tests of what they compute and not of how."""

from functools import partial

import jax

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""``jax.jit`` without the compiler's late optimisations, which take half of its time."""

as_users_do = partial(
    jax.jit,
    compiler_options={"xla_cpu_use_fusion_emitters": True}
    if jax.__version_info__ < (0, 11)
    else None,
)
"""``jax.jit`` by the code generator that JAX takes by default, for tests of what rounding does."""


def moved_variables(network):
    """Initial variables of a network, moved so that each differs from the others."""
    variables = jax.jit(network.init)(jax.random.key(0))
    leaves, tree = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(2), len(leaves))
    moved = [x + 0.2 * jax.random.uniform(key, x.shape) for x, key in zip(leaves, keys)]
    return jax.tree.unflatten(tree, moved)


def counted(function):
    """A jitted function, and a list with an item for each of its traces."""
    traces = []

    @jax.jit
    def traced(*arguments):
        traces.append(None)
        return function(*arguments)

    return traced, traces
