"""The strict session every test runs in, and the shared fixtures."""

import os
import signal
import tempfile
from pathlib import Path

import jax
import pytest
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # for what runs on several; all else uses the first

# At a desk every run tries new examples; on a server a change stands or falls by itself.
settings.register_profile("server", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("server")

# A session in the background ignores signals, and what it starts inherits that.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

# Many tests compile the same programs. The variables reach the processes that tests start.
_cache = tempfile.TemporaryDirectory(prefix="crl_jax_compiled_")
for _name, _value in {
    "jax_compilation_cache_dir": _cache.name,
    "jax_persistent_cache_min_compile_time_secs": 0.1,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled():
    """Each compiled program holds mappings of memory, of which a process may have 65,530."""
    yield
    jax.clear_caches()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder with the real datasets, named by the environment variable CRL_DATA."""
    folder = os.environ.get("CRL_DATA")
    if not folder:
        pytest.skip("CRL_DATA does not name a folder with the real datasets")
    return Path(folder).resolve()


@pytest.fixture
def standard_promotion():
    """Optax's optimisers mix integers and floats, which strict promotion refuses."""
    with jax.numpy_dtype_promotion("standard"):
        yield
