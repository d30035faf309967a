"""Programs that are compiled fast, for tests of what they compute and not of how."""

from functools import partial

import jax

quick_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""``jax.jit`` without the compiler's late optimisations, which take half of its time."""
