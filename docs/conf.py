"""Configuration of the documentation site: ``sphinx-build -W --keep-going -b html docs site``."""

import sys
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_extensions")]

from api_reference import linkcode_resolve as linkcode_resolve  # noqa: E402  # pyright: ignore

project = "crl_jax"
author = "The crl_jax authors"
copyright = "The crl_jax authors"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.linkcode",
    "sphinx_copybutton",
    "sphinx_design",
    "api_reference",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints", ".jupyter_cache"]
nitpicky = True

# API reference, see _extensions/api_reference.py.
autodoc_typehints = "none"  # the extension writes the signatures
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
add_module_names = False
toc_object_entries_show_parents = "hide"
python_display_short_literal_types = True
python_maximum_signature_line_length = 88

# Pages.
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_in_temp = True  # files that a notebook writes do not remain in docs/
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True

# Formulas. MathJax is copied into the site, which thus needs no other server.
mathjax = files("mathjax") / "static/mathjax/es5/tex-svg.js"
mathjax_path = "tex-svg.js"
mathjax3_config = {"svg": {"fontCache": "global"}}

html_theme = "furo"
html_title = "crl_jax"
html_static_path = ["_static", str(mathjax)]
html_css_files = ["custom.css"]
html_theme_options = {
    "source_repository": "https://github.com/crl-jax/crl_jax/",
    "source_branch": "main",
    "source_directory": "docs/",
}
