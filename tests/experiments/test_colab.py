"""Tests that the Colab notebook runs, draws its figures, and keeps the installed JAX."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import matplotlib.image
import numpy as np
import pytest
from _helpers.refusals import raises

import crl_jax
from experiments.recommend import presets

NOTEBOOK = Path(__file__).parents[2] / "experiments" / "colab.ipynb"
FIGURES = "plt.show()"

# Runs the cells of a notebook sequentially. Displayed figures are saved as CELL-NUMBER.png.
RUN = """
import json, sys, warnings
# Matplotlib before 3.10.8 uses names of pyparsing that have since been deprecated.
warnings.filterwarnings("ignore", category=DeprecationWarning, module="(matplotlib|pyparsing)")
import matplotlib
matplotlib.use("Agg")
from matplotlib import pyplot

def show():
    for number in pyplot.get_fignums():
        pyplot.figure(number).savefig(f"{cell['id']}-{number}.png")
    pyplot.close("all")

pyplot.show = show
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        print("cell", cell["id"])
        exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
        assert not pyplot.get_fignums(), "a figure is not shown"
"""


@pytest.fixture(scope="module")
def notebook():
    return json.loads(NOTEBOOK.read_text())


def code_cells(notebook) -> dict[str, str]:
    """Returns the code cells by their ids."""
    cells = (cell for cell in notebook["cells"] if cell["cell_type"] == "code")
    return {cell["id"]: "".join(cell["source"]) for cell in cells}


def run_until_devices(notebook, **settings):
    """Runs the settings, installation and devices cells, with changed settings."""
    names = {}
    code = code_cells(notebook)
    for cell in ("settings", "install-code", "devices-code"):
        exec(code[cell], names)
        if cell == "settings":
            assert settings.keys() <= names.keys()
            names |= settings
    return names


def test_notebook_is_valid_and_has_no_outputs(notebook):
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"].keys() == {"kernelspec", "language_info"}
    fields = {"cell_type", "id", "metadata", "source"}
    for cell in notebook["cells"]:
        assert cell["metadata"] == {}
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert isinstance(cell["source"], list)
        if cell["cell_type"] == "markdown":
            assert cell.keys() == fields
        else:
            assert cell["cell_type"] == "code"
            assert cell.keys() == fields | {"execution_count", "outputs"}
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids)


def test_first_cell_links_to_colab(notebook):
    first = notebook["cells"][0]
    assert first["cell_type"] == "markdown"
    link = "https://colab.research.google.com/github/crl-jax/crl_jax/blob/main/"
    assert f"]({link}{NOTEBOOK.parent.name}/{NOTEBOOK.name})" in "".join(first["source"])


def test_linked_pages_exist(notebook):
    text = "".join("".join(cell["source"]) for cell in notebook["cells"])
    pages = re.findall(r"https://crl-jax\.github\.io/crl_jax/([^)#]*)\.html", text)
    assert pages
    docs = NOTEBOOK.parents[1] / "docs"
    assert [page for page in pages if not (docs / f"{page}.md").exists()] == []


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compiles")
def test_notebook_runs_and_draws_each_figure(notebook, tmp_path):
    process = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning", "-c", RUN, str(NOTEBOOK)],
        cwd=tmp_path,
        env=os.environ
        | {
            "CRL_JAX_QUICK": "1",
            "PYTHONPATH": str(NOTEBOOK.parents[1]),
            "CRL_JAX_CACHE": str(tmp_path / "cache"),
            "JAX_LOG_COMPILES": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stdout + process.stderr
    code = code_cells(notebook)
    output = re.split(r"^cell (.*)\n", process.stdout, flags=re.M)
    output = dict(zip(output[1::2], output[2::2], strict=True))
    assert list(output) == list(code)
    assert "nan" not in process.stdout.lower()

    shown = {cell for cell, source in code.items() if FIGURES in source}
    drawn = list(tmp_path.glob("*.png"))
    assert len(shown) >= 3
    assert {path.stem.rsplit("-", 1)[0] for path in drawn} == shown
    for path in drawn:
        assert np.ptp(matplotlib.image.imread(path)[..., :3]) > 0.5

    # One program for each loss of the recommender, and one for both losses of the images.
    assert process.stderr.count("Finished XLA compilation of jit(run_epochs)") == 4
    assert process.stderr.count("Finished XLA compilation of jit(represent)") == 1
    assert f"({jax.default_backend()})" in output["devices-code"]
    assert str(presets.device_preset()) in output["presets-code"]
    assert re.search(r"compiled programs are cached in \S*/", output["presets-code"])
    for method in ("BPR", "InfoNCE", "BCL"):
        assert re.search(
            rf"^{method} +\d+ +0\.\d{{4}} ± 0\.\d{{4}} ", output["recommender-code"], re.M
        )
    assert len(set(re.findall(r"^item (\d+):", output["recommend-code"], re.M))) == 10
    auc = dict(re.findall(r"^(.*?) +(0\.\d{3}) +0\.\d{3}$", output["weights-code"], re.M))
    assert float(auc["InfoNCE"]) == 0.5
    assert float(auc["BCL, β = 0.5"]) > 0.6 > 0.4 > float(auc["HCL, β = 1"])
    for method in ("SimCLR", "BCL"):
        row = re.search(rf"^{method} +(\S+) +(\S+) +(\S+)", output["images-train-code"], re.M)
        assert row is not None
        assert 0.2 < float(row[3]) <= 1  # chance level is 0.1
    speeds = re.findall(r"^ *([\d,]+) (\w+)/s of", output["speed-code"], re.M)
    assert [unit for _, unit in speeds] == ["interactions", "images"]
    assert all(int(speed.replace(",", "")) > 0 for speed, _ in speeds)


def test_raises_on_accelerator_mismatch(notebook, capsys):
    backend = jax.default_backend()
    other = next(name for name in ("tpu", "gpu") if name != backend)
    advice = rf"asks for '{other}', but JAX computes on '{backend}'.*Runtime > Change runtime type"
    with raises(RuntimeError, match=advice):
        run_until_devices(notebook, ACCELERATOR=other)
    capsys.readouterr()
    run_until_devices(notebook, ACCELERATOR=backend)
    output = capsys.readouterr().out
    versions = (jax.devices()[0].device_kind, jax.__version__, np.__version__, crl_jax.__version__)
    for expected in versions:
        assert expected in output


@pytest.fixture
def pip(monkeypatch):
    """Stub of pip that records its commands and returns ``returncode`` and ``stderr``."""

    class Pip:
        def __init__(self):
            self.commands, self.returncode, self.stderr = [], 0, ""

        def run(self, command, **options):
            self.commands.append(command)
            if not self.returncode:
                monkeypatch.setitem(sys.modules, "crl_jax", crl_jax)
            return subprocess.CompletedProcess(command, self.returncode, "", self.stderr)

    pip = Pip()
    monkeypatch.setattr(subprocess, "run", pip.run)
    return pip


def test_skips_installation_if_package_is_installed(notebook, pip):
    run_until_devices(notebook)
    assert pip.commands == []


def test_installation_keeps_installed_jax_version(notebook, pip, monkeypatch):
    monkeypatch.setitem(sys.modules, "crl_jax", None)  # cannot be imported
    names = run_until_devices(notebook)
    assert names["crl_jax"] is crl_jax
    (command,) = pip.commands
    assert command[:4] == [sys.executable, "-m", "pip", "install"]
    assert command[4] == "crl_jax[experiments] @ git+https://github.com/crl-jax/crl_jax"
    pins = {f"jax=={jax.__version__}", f"jaxlib=={version('jaxlib')}"}
    assert set(command[5:]) == pins


def test_reports_installation_error(notebook, pip, monkeypatch):
    monkeypatch.setitem(sys.modules, "crl_jax", None)
    pip.returncode, pip.stderr = 1, "no network"
    with raises(RuntimeError, match="no network"):
        run_until_devices(notebook)
