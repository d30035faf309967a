"""Configuration of the documentation site: ``sphinx-build -W --keep-going -b html docs site``."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

project = "crl_jax"
author = "The crl_jax authors"
copyright = "The crl_jax authors"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints", ".jupyter_cache"]
nitpicky = True

# Pages.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

html_theme = "furo"
html_title = "crl_jax"
html_static_path: list[str] = []
html_theme_options = {
    "source_repository": "https://github.com/crl-jax/crl_jax/",
    "source_branch": "main",
    "source_directory": "docs/",
}
