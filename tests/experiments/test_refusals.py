"""Invalid flags give a one-line error and leave no files."""

import sys
from dataclasses import replace

import jax
import pytest
from _helpers.commands import one_line
from _helpers.refusals import raises

from crl_jax import losses
from experiments._command import run
from experiments.recommend import main
from experiments.recommend.objectives import OBJECTIVES

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")


def test_rejects_missing_logger_before_training(error_of, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert "needs the package wandb" in error_of("--log", "wandb")


@pytest.fixture
def error_of(ratings, tmp_path, capsys):
    """Returns a function from invalid flags to the error; checks that no run directory is left."""

    def run_invalid(*flags):
        assert main(["--data", str(ratings), "--out", str(tmp_path / "run"), *flags]) == 2
        assert not (tmp_path / "run").exists()
        return one_line(capsys.readouterr().err)

    return run_invalid


LIGHTGCN = ["--encoder", "lightgcn"]
INVALID_FLAGS = {
    "no such file": (["--data", "nowhere.csv"], "nowhere.csv"),
    "no such column": (["--user-col", "who"], "'who' (--user-col)"),
    "no rate": (["--lr", "0"], "--lr must be a number above 0, got 0.0"),
    "nothing to decide on": (
        ["--valid-fraction", "0", "--sweep", "lr=1e-3,1e-2"],
        "--valid-fraction 0 leaves no",
    ),
    "no times": (["--split", "time"], "--split time needs timestamps; --data"),
    "a knob the loss has not": (
        ["--tau-plus", "0.1"],
        "--loss bpr has no --tau-plus; it takes --n-neg, --temperature",
    ),
    "a sweep of nothing": (["--sweep", "dim=8,16"], "--sweep takes one of lr"),
    "a sweep without numbers": (["--sweep", "lr=fast"], "--sweep must be NAME=NUMBER"),
    "a sweep of one value": (["--sweep", "lr=1,2,1"], "--sweep lr must have distinct values"),
    "a sweep twice": (["--sweep", "lr=1", "--sweep", "lr=2"], "twice"),
    "seeds of no search": (["--tune", "0", "--search-seeds", "2"], "what --sweep tries"),
    "a sweep of what is fixed": (["--lr", "1", "--sweep", "lr=2"], "--lr fixes what --sweep lr"),
    "a swept knob the loss has not": (["--sweep", "alpha=0.6"], "--loss bpr has no --alpha"),
    "a scale without a distribution": (
        ["--loss", "bprac", "--score-distribution", "smoothed", "--distribution-scale", "1"],
        "--score-distribution smoothed has no --distribution-scale",
    ),
    "other items for mpr": (
        ["--loss", "mpr", "--n-neg", "3"],
        "--n-neg must be a whole number in [2, 2], got 3",
    ),
    "other negatives for directau": (
        ["--loss", "directau", "--sampler", "dns"],
        "or needs none",
    ),
    "inner products for directau": (
        ["--loss", "directau", "--similarity", "inner"],
        "--similarity inner: this loss needs --similarity cosine",
    ),
    "a temperature for directau": (
        ["--loss", "directau", "--temperature", "2"],
        "--loss directau has no --temperature; it takes --n-neg, --gamma",
    ),
    "two terms": (
        ["--loss", "directau", *LIGHTGCN, "--contrast", "sgl"],
        "--contrast sgl: --loss directau has its own auxiliary loss",
    ),
    "a contrast without a graph": (
        ["--contrast", "sgl"],
        "--contrast sgl needs --encoder lightgcn, got mf",
    ),
    "a weight of no contrast": (
        [*LIGHTGCN, "--contrast-weight", "1"],
        "--contrast none has no --contrast-weight; it takes no numbers",
    ),
    "a loss of no contrast": (
        [*LIGHTGCN, "--contrast-loss", "hard"],
        "--contrast-loss hard needs a --contrast",
    ),
    "a number that the contrast's loss has not": (
        [*LIGHTGCN, "--contrast", "sgl", "--contrast-tau-plus", "0.1"],
        "--contrast-loss info_nce has no --contrast-tau-plus; it takes no numbers",
    ),
    "a number out of the range of the contrast's loss": (
        [
            *LIGHTGCN,
            "--contrast",
            "sgl",
            "--contrast-loss",
            "bayesian",
            "--sweep",
            "contrast_beta=0.3",
        ],
        "--sweep contrast_beta must be a number in [0.5, 1], got 0.3",
    ),
    "a flag of another contrast": (
        [*LIGHTGCN, "--contrast", "sgl", "--noise", "0.1"],
        "--contrast sgl has no --noise; it takes --contrast-weight, --contrast-temperature, --aug",
    ),
    "a sweep of what the encoder is": (["--sweep", "noise=0.1"], "--sweep takes one of lr"),
    "a layer too deep": (
        [*LIGHTGCN, "--contrast", "xsimgcl", "--contrast-layer", "4"],
        "--contrast-layer must be at most 3, got 4",
    ),
    "too many clusters": (
        [*LIGHTGCN, "--contrast", "ncl", "--clusters", "501"],
        "--clusters must be at most the number of",
    ),
    "too many vectors": (
        [*LIGHTGCN, "--contrast", "lightgcl", "--rank", "50"],
        "--rank must be less than 50, got 50",
    ),
    "no cut-off": (["--k"], "--k must be one or more, each a whole number in [1, 65536], got none"),
    "a sweep out of range": (
        ["--sweep", "lr=-1,1e-3"],
        "--sweep lr must be a number above 0, got -1",
    ),
    "a sweep of half epochs": (["--sweep", "epochs=1.5"], "--sweep epochs must be a whole number"),
    "too few in memory": (
        ["--sampler", "srns", "--candidates", "2", "--n-neg", "5"],
        "--candidates must be at least the 5 negatives of --n-neg, got 2",
    ),
    "columns of simulated data": (["--data", "simulated", "--user-col", "u"], "--user-col"),
    "no recipe": (["--recipe", "ml-100k-bprr"], "got 'ml-100k-bprr'. Did you mean ml-100k-bpr?"),
    "no dataset": (["--data", "simulate"], "got 'simulate'. Did you mean simulated?"),
    "no tpu here": (["--device", "tpu"], "--device tpu: JAX found only"),
    "resume what is no run": (["--resume", "nowhere"], "nowhere holds no run"),
    "a flag the sampler has not": (
        ["--candidates", "9"],
        "--sampler rns has no --candidates; it takes no numbers. --candidates is for dns, srns,",
    ),
    "a sweep the sampler has not": (
        ["--sampler", "dns", "--sweep", "risk_lambda=1,5"],
        "--sampler dns has no --risk-lambda; it takes --candidates",
    ),
    "no occupations": (["--sampler", "bns", "--prior", "occupation"], "u.user"),
    "no such rating": (["--min-rating", "4"], "--min-rating is given"),
    "negatives of the batch": (
        ["--loss", "info_nce", "--sampler", "in-batch", "--n-neg", "5"],
        "--sampler in-batch draws no items",
    ),
}


def test_in_batch_sampler_rejects_loss_without_where(error_of, monkeypatch):
    def plain(pos, neg, *, temperature, reduce_fn=None):
        return losses.bpr(pos, neg, temperature=temperature, reduce_fn=reduce_fn)

    monkeypatch.setitem(OBJECTIVES, "bpr", replace(OBJECTIVES["bpr"], loss=plain))
    stderr = error_of("--loss", "bpr", "--sampler", "in-batch")
    assert stderr == (
        "error: --sampler in-batch needs a loss that takes `where`; --loss bpr does not."
    )


@pytest.mark.parametrize("name", INVALID_FLAGS)
def test_invalid_flags_give_one_line_error(name, ratings, tmp_path, capsys):
    arguments, message = INVALID_FLAGS[name]
    if not {"--data", "--resume"} & set(arguments):
        arguments = ["--data", str(ratings), *arguments]
    if "--resume" not in arguments:
        arguments = ["--loss", "bpr", *arguments, "--out", str(tmp_path / "run")]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:")
    assert message in one_line(error)
    assert "Traceback" not in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("arguments", [["--loss", "magic"], ["--lr", "fast"], ["--nonsense"]])
def test_unparsable_flags_exit_with_status_2(arguments, capsys):
    with raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2


def test_out_of_memory_error_names_flags_to_reduce(capsys):
    def command():
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.\n…")

    assert run(command, {"batch_size": "--batch-size", "dim": "--dim", "lr": "--lr"}) == 2
    assert capsys.readouterr().err.endswith("9 bytes. Reduce --batch-size or --dim.\n")
