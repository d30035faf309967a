"""Strict JAX settings of the test session, and shared fixtures."""

import csv
import gc
import os
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from _helpers import refusals
from hypothesis import settings

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)  # for multi-device tests; all others use the first
# Compilation takes most of the time of these tests: a fifth less if XLA does not split each program
# into 32 parts, and a third less with the older of its two code generators for fusions. An unknown
# flag aborts the process, so each is set only for releases that have been tested with it.
if jax.__version_info__ < (0, 13):
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + " --xla_cpu_parallel_codegen_split_count=1"
    )
if jax.__version_info__ < (0, 11):
    os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"

if not hasattr(jax, "enable_x64"):  # before JAX 0.8
    from jax.experimental import enable_x64

    jax.enable_x64 = enable_x64

# JAX's caches keep most objects alive, and each collection traverses them all: with Python's
# default thresholds, this takes a tenth of the time of the tests.
gc.set_threshold(100_000, 20, 20)

# Locally, every run tries new examples; in CI, they are fixed so that results depend only on the
# change under test.
settings.register_profile("server", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("server")

# A background session ignores signals, and its child processes inherit that.
for _number, _handler in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)


# Many tests compile the same programs: all workers, and the processes that tests start, share a
# compilation cache, also of small programs, which take 30 ms to compile and 3 ms to read. A process
# that reads an entry before another has written it recompiles.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["PJRT_NPROC"] = "1"  # one thread per worker is enough for this number of workers
elif "CRL_JAX_TEST_CACHE" in os.environ:  # kept for the next run
    os.environ["JAX_COMPILATION_CACHE_DIR"] = os.environ["CRL_JAX_TEST_CACHE"]
else:
    _cache = tempfile.TemporaryDirectory(prefix="crl_jax_compiled_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache.name
for _name, _value in {
    "jax_compilation_cache_dir": os.environ["JAX_COMPILATION_CACHE_DIR"],
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    os.environ[_name.upper()] = str(_value)
    jax.config.update(_name, _value)


def pytest_make_parametrize_id(val, argname):
    """Uses the argument name instead of a long or binary value in test IDs.

    Bytes may differ between processes (an archive holds the time at which it was made), and the
    workers of pytest-xdist must use the same test IDs.
    """
    if isinstance(val, bytes) or (isinstance(val, str) and len(val) > 60):
        return argname
    return None


_MAPPINGS = Path("/proc/self/maps")


@pytest.fixture(scope="module", autouse=True)
def _clear_compiled():
    """Clears JAX's caches when compiled programs hold many memory mappings.

    Linux limits a process to 65,530 mappings.
    """
    yield
    if not _MAPPINGS.exists() or _MAPPINGS.read_bytes().count(b"\n") > 30_000:
        jax.clear_caches()


@pytest.fixture(scope="module")
def quick_compiles():
    """Compiles with few optimisations, also in processes that tests start.

    For short programs, whose time is dominated by compilation.
    """
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "true"
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    del os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"]
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def all_optimisations():
    """Compiles with JAX's default optimisations."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def pixel_encoder():
    """Replaces the default image encoder by linear features, for tests of the surrounding code."""
    from _helpers.modalities import PixelEncoder

    from experiments.backbones import IMAGE_ENCODERS as ENCODERS

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ENCODERS, "resnet10", replace(ENCODERS["resnet10"], make=PixelEncoder))
        yield


@pytest.fixture(scope="module")
def first_features():
    """Replaces t-SNE, which takes longer than short trainings, by the first two features."""
    from _helpers.modalities import FirstFeatures

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sklearn.manifold.TSNE", FirstFeatures)
        yield


@pytest.fixture(scope="module")
def narrow_blocks():
    """Graph layouts in blocks of few columns: XLA compiles one gather per column and layer."""
    from crl_jax.models import _gather_layout, _sharded_layout

    with pytest.MonkeyPatch.context() as patch:
        for module in (_gather_layout, _sharded_layout):
            patch.setattr(module, "WIDTHS", (2, 4))
        yield


@pytest.fixture
def unchecked():
    """Disables runtime type checking, for tests that pass arguments of the wrong type."""
    with refusals.unchecked():
        yield


@pytest.fixture
def compiled():
    """Records the programs that a test compiles or loads from the persistent cache."""
    events, listening = [], True

    def listen(event, *rest, **more):
        if listening and "jaxpr_to_mlir_module" in event:
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    listening = False


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Folder of the real datasets, given by the environment variable CRL_DATA."""
    folder = os.environ.get("CRL_DATA")
    if not folder:
        pytest.skip("CRL_DATA does not name a folder with the real datasets")
    return Path(folder).resolve()


@pytest.fixture(scope="session")
def texts(tmp_path_factory) -> Path:
    """Folder of labelled texts, scored pairs, and BERT weights."""
    from _helpers.modalities import write_texts

    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture
def photos(tmp_path) -> Path:
    """Folder of images without class subfolders."""
    from _helpers.modalities import write_images

    pixels = np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), np.uint8)
    return write_images(tmp_path / "photos", pixels)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory) -> Path:
    """A small CSV log with string ids: users u0, u1, …, items i0, i1, …."""
    from crl_jax.data import simulate

    data = simulate(n_users=50, n_items=60, n_exposed=40, seed=3).interactions
    path = tmp_path_factory.mktemp("ratings") / "log.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item"])
        writer.writerows((f"u{u}", f"i{i}") for u, i in zip(data.users, data.items, strict=True))
    return path


def _write_item_lists(path, log, chosen):
    with path.open("w") as file:
        for user in np.unique(log.users[chosen]):
            items = log.items[chosen & (log.users == user)]
            file.write(" ".join(map(str, (user, *items))) + "\n")


@pytest.fixture(scope="module")
def dataset_folder(tmp_path_factory) -> Path:
    """Three of the five datasets: rated splits, all pairs in one file, and splits as item lists."""
    from crl_jax.data import simulate

    path = tmp_path_factory.mktemp("datasets")
    log = simulate(n_users=20, n_items=40, n_exposed=30, seed=3).interactions
    held_out = np.random.default_rng(1).random(len(log)) < 0.3
    for name in ("ml-100k", "ml-1m", "gowalla"):
        (path / name).mkdir()
    for name, part in (("train", ~held_out), ("test", held_out)):
        _write_item_lists(path / "gowalla" / f"{name}.txt", log, part)
        with (path / "ml-100k" / f"{name}.csv").open("w") as file:
            file.write("user,item,rating\n")
            for u, i in zip(log.users[part], log.items[part], strict=True):
                file.write(f"{u},{i},4\n")
    _write_item_lists(path / "ml-1m" / "pairs.txt", log, np.ones(len(log), bool))
    (path / "ml-1m" / "movies.dat").write_text("1::Toy Story (1995)::Animation\n")
    return path


@pytest.fixture(scope="module")
def problems(dataset_folder):
    """Returns a function that loads datasets of `dataset_folder` by name."""
    from rich.console import Console

    from experiments.reproduce.data import load_datasets
    from experiments.reproduce.targets import Options

    def load(*names):
        options = Options("table-5.2", dataset_folder, datasets=names)
        return load_datasets(options, Console(quiet=True))

    return load


@pytest.fixture
def standard_promotion():
    """Standard type promotion: Optax mixes integers and floats, which strict promotion rejects."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def pos():
    """Positive scores of six anchors."""
    return jax.random.normal(jax.random.key(0), (6,))


@pytest.fixture
def neg():
    """Negative scores of six anchors, eight each."""
    return jax.random.normal(jax.random.key(1), (6, 8))
