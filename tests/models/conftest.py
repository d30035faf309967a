"""Fixtures of tests of models."""

import pytest

from crl_jax.models import _gather_layout, _sharded_layout


@pytest.fixture(scope="module")
def narrow_blocks():
    """Blocks of few columns: XLA compiles one gather per column, in each layer."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_gather_layout, _sharded_layout):
            patch.setattr(module, "WIDTHS", (2, 4))
        yield
