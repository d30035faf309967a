"""Platform-dependent functions: running and lowering them for other platforms."""

from contextlib import contextmanager
from unittest import mock

import jax


@contextmanager
def forms_for(platform, *functions):
    """Selects the branches for ``platform``; the caches of the jitted ``functions`` are cleared."""

    def choose(*args, default, **forms):
        return forms.get(platform, default)(*args)

    def forget():
        for function in functions:
            function.clear_cache()

    forget()
    with mock.patch.object(jax.lax, "platform_dependent", choose):
        yield
    forget()


def lowered_for(platform, function, *args):
    """Returns the StableHLO of a jitted function for ``platform``."""
    lowered = jax.jit(function).trace(*args).lower(lowering_platforms=(platform,))
    return lowered.as_text()
