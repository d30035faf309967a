"""Smoke test of an installed distribution, run from an empty folder without the checkout.

    python smoke.py core    # after: pip install DISTRIBUTION
    python smoke.py full    # after: pip install 'DISTRIBUTION[experiments]'

``core`` checks that the package imports without optional packages, that a loss has a gradient, and
that type information is installed. ``full`` trains a recommender by the installed command, reads it
and recommends.
"""

import importlib.metadata
import importlib.resources
import importlib.util
import subprocess
import sys
from pathlib import Path

OPTIONAL = (
    "matplotlib", "orbax", "pandas", "PIL", "polars", "pooch", "rich", "safetensors", "sklearn",
    "tensorflow", "tokenizers", "torch", "tyro", "wandb", "yaml",
)  # fmt: skip
"""Modules of the extras."""


def core() -> None:
    """Checks the library with its core dependencies."""
    import crl_jax

    loaded = [name for name in OPTIONAL if name in sys.modules]
    assert not loaded, f"importing crl_jax imports {loaded}"
    assert crl_jax.__version__ == importlib.metadata.version("crl_jax")
    installed = Path(crl_jax.__file__).resolve()
    assert "site-packages" in installed.parts, f"{installed} is not an installed package"
    assert importlib.resources.files("crl_jax").joinpath("py.typed").is_file()
    for other in ("experiments", "tests", "benchmarks"):  # names that other projects may want
        assert importlib.util.find_spec(other) is None, f"the distribution installs {other}"

    import jax
    import jax.numpy as jnp

    pos, neg = jnp.array([0.9, 0.2]), jnp.array([[0.1, 0.8, -0.3], [0.4, -0.5, 0.0]])
    gradients = jax.jit(jax.grad(crl_jax.losses.bayesian_contrastive, argnums=(0, 1)))(pos, neg)
    assert all(bool(jnp.isfinite(g).all() & (g != 0).any()) for g in gradients), gradients


def full() -> None:
    """Trains, saves, reads and recommends by the installed command."""
    script = str(Path(sys.executable).with_name("crl-jax"))
    flags = ["--loss", "bpr", "--epochs", "2", "--tune", "0", "--out", "run"]
    subprocess.run([script, "recommend", *flags], check=True, stdout=subprocess.DEVNULL)
    topk = [script, "recommend", "topk", "--run", "run", "--user", "0", "--k", "5"]
    printed = subprocess.run(topk, check=True, capture_output=True, text=True).stdout
    assert printed.strip(), "no recommendation was printed"

    from crl_jax import serving

    items = serving.load("run").recommend(0, k=5).items
    assert items.shape == (1, 5), items


if __name__ == "__main__":
    {"core": core, "full": full}[sys.argv[1]]()
    print(f"{sys.argv[1]}: passed with {sys.version.split()[0]}")
