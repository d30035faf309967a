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
