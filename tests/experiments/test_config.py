"""Tests of run configurations: valid values in flags and files, and errors for invalid ones."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_type_hints

import jax
import numpy as np
import pytest
from _helpers.commands import damaged_copies
from _helpers.refusals import raises

from crl_jax.data import DATASETS, Interactions
from experiments import _rundir as rundir
from experiments._ranges import is_within
from experiments._registry import filled
from experiments._schema import to_json
from experiments.recommend._config import SCHEMA, Config, anchor
from experiments.recommend._options import DataOptions
from experiments.recommend.objectives import OBJECTIVES, resolve
from experiments.recommend.sampling import SAMPLERS, Context, resolve_sampler

RANGES = SCHEMA.field_ranges()

SECTIONS: dict[str, Any] = {
    section.name: get_type_hints(type(section.default))  # type: ignore[arg-type]
    for section in dataclasses.fields(Config)
}
FIELDS = [(section, name) for section, hints in SECTIONS.items() for name in hints]
INTEGER_TYPES = (int, int | None, tuple[int, ...], int | Literal["auto"])
NUMBERS = {
    name: kind
    for hints in SECTIONS.values()
    for name, kind in hints.items()
    if kind in (*INTEGER_TYPES, float, float | None)
}
# Expected ranges of these flags. New flags need not be listed.
NON_NEGATIVE_INTEGERS = ("n_pos", "ecdf_samples", "rns_epochs", "seed", "split_seed")  # may be 0
FROM_ZERO = ("beta", "exponent", "weight_decay", "decay", "checkpoint_seconds", "variance_weight",
             "risk_lambda", "risk_lambda_slope", "risk_lambda_min",
             *NON_NEGATIVE_INTEGERS)  # fmt: skip
SHARES = ("floor", "rho", "balance", "drop_rate", "alpha")  # closed intervals
ANY = ("min_rating", "test_rating", "min_score")
POSITIVE = ("temperature", "distribution_scale", "rank_scale", "init_scale", "lr")
COUNTS = ("leave_last_k", "n_neg", "confidence_every", "n_group", "candidates", "layers", "dim",
          "batch_size", "epochs", "patience", "eval_every", "seeds", "search_seeds",
          "k")  # fmt: skip


def invalid_values(name: str) -> list[str]:
    """Returns values outside the expected range, or outside the entry's range if not listed."""
    if name in ANY:
        return ["inf", "nan"]
    if name in FROM_ZERO:
        return ["-1", "nan"] if name not in NON_NEGATIVE_INTEGERS else ["-1", "4294967296"]
    if name in SHARES:
        return ["1.01", "nan", "0.49" if name == "alpha" else "-0.01"]
    if name in POSITIVE:
        return ["0", "-1", "nan", "inf", "1e39", "1e-50"]
    if name in ("tau_plus", "edge_dropout", "dropout"):
        return ["1", "-0.01", "nan"]
    if name == "test_fraction":
        return ["0", "1", "nan"]
    if name == "valid_fraction":
        return ["-0.01", "1", "nan"]
    if name in COUNTS:
        return ["0", "-3", "9999999999"]
    return values_out_of_range(name)


def values_out_of_range(name: str) -> list[str]:
    """Returns values outside the range of this flag."""
    limits, invalid = RANGES[name], []
    if math.isfinite(limits.low):
        invalid.append(limits.low if limits.low_open else limits.low - 1)
    if math.isfinite(limits.high):
        invalid.append(limits.high if limits.high_open else limits.high + 1)
    return [*map(str, invalid), *(() if NUMBERS[name] in INTEGER_TYPES else ("nan", "inf", "1e39"))]


def test_every_numeric_flag_has_range():
    assert sorted(NUMBERS) == sorted(RANGES)


@pytest.mark.parametrize("name", NUMBERS)
def test_reports_flag_and_value_out_of_range(name):
    flag, kind = "--" + name.replace("_", "-"), int if NUMBERS[name] in INTEGER_TYPES else float
    value, *others = invalid_values(name)
    with raises(ValueError, match=f"^{flag} must be .*, got ") as raised:
        SCHEMA.parse([flag, value], Config(), "")
    assert float(str(raised.value).rpartition("got ")[2].rstrip(".")) == pytest.approx(
        float(value), nan_ok=True
    )
    assert not [other for other in others if is_within(RANGES[name], kind(other))]


def test_accepts_ends_of_closed_ranges():
    flags = ["--alpha", "0.5", "--tau-plus", "0", "--weight-decay", "0", "--seed", "4294967295",
             "--drop-rate", "1", "--checkpoint-seconds", "0", "--k", "1"]  # fmt: skip
    config = SCHEMA.parse(flags, Config(), "")
    assert (config.objective.alpha, config.protocol.seed) == (0.5, 2**32 - 1)
    assert config.protocol.k == (1,)


def test_ranges_may_depend_on_other_flags():
    assert SCHEMA.parse(["--loss", "hard", "--beta", "0.1"], Config(), "").objective.beta == 0.1
    with raises(ValueError, match=r"^--beta must be a number in \[0\.5, 1\], got 0\.1"):
        SCHEMA.parse(["--loss", "bayesian", "--beta", "0.1"], Config(), "")
    with raises(ValueError, match="--seed 4294967295 --seeds 2"):
        SCHEMA.parse(["--seed", "4294967295", "--seeds", "2"], Config(), "")


STORED = to_json(Config())
# Flags of all entries that the default configuration does not select.
UNSELECTED_FLAGS = {
    name
    for section, choice, entries in SCHEMA.choices
    for entry in entries.values()
    for name in entry.flags
    if name not in entries[getattr(getattr(Config(), section), choice)].flags
}
WHERE = Path("config.json")


def error_message(function: Callable[..., Any], *arguments: Any) -> str:
    """Returns the one-line error of a call, or an empty string if the arguments are valid."""
    try:
        function(*arguments)
    except ValueError as error:
        message = str(error)
    else:
        return ""
    assert "\n" not in message
    return message


def stored_config_error(stored: Any) -> str:
    """Returns the error for a stored configuration, or an empty string if it is valid."""
    message = error_message(SCHEMA.from_json, stored, WHERE)
    assert not message or message.startswith("config.json: ")
    return message


@pytest.mark.parametrize("name", ["simulated", "tfds:x", "movielens:100k", "toy"])
def test_dataset_names_are_not_resolved_as_paths(name, monkeypatch):
    monkeypatch.setitem(DATASETS, "toy", DATASETS["movielens:100k"])
    config = Config(source=DataOptions(data=name))
    assert anchor(config) == config
    absolute_path = anchor(Config(source=DataOptions(data="toys.csv"))).source.data
    assert absolute_path == str(Path("toys.csv").absolute())


def test_config_round_trips_through_json():
    assert SCHEMA.from_json(STORED, WHERE) == Config()
    assert not stored_config_error(STORED | {"environment": {"python": "3.11"}})


LATER = {
    "baselines": "none", "batches": "device", "cold_items": None, "mesh": None,
    "model": "trained", "processes": None, "search": "grid", "test_rating": None,
    "tune": None, "keep": (), "lr_scale": 1.0, "debias": "given", "blend": 1,
}  # fmt: skip
"""Flags added later, with the values that older configurations imply."""


@pytest.mark.parametrize(("section", "name"), FIELDS)
def test_reports_damaged_fields(section, name):
    kind = SECTIONS[section][name]

    def changed(value):
        return STORED | {section: STORED[section] | {name: value}}

    optional = type(None) in getattr(kind, "__args__", ())
    numeric = name in RANGES
    bad: list[Any] = [{}, {"a": 1}, [None], [[1]], "abc\0"]
    bad += [] if optional else [None]
    bad += ["abc", ""] if numeric else [0, -1, 10**400, math.nan, 1.5]
    bad += [] if bool in (kind, *getattr(kind, "__args__", ())) else [True]
    bad += ([math.nan, math.inf, 10**400] if name != "k" else [[], [0], [1.5]]) if numeric else []
    for value in bad:
        message = stored_config_error(changed(value))
        assert message.startswith(f"config.json: {section}.{name}: expected "), (value, message)
    remaining = {other: value for other, value in STORED[section].items() if other != name}
    without = STORED | {section: remaining}
    if name in UNSELECTED_FLAGS:
        assert SCHEMA.from_json(without, WHERE) == Config()
    elif name in LATER:
        assert getattr(getattr(SCHEMA.from_json(without, WHERE), section), name) == LATER[name]
    else:
        missing = f"config.json: {section}: expected the field {name}, which is missing."
        assert stored_config_error(without) == missing


def test_rejects_missing_flag_of_selected_loss():
    assert "tau_plus" in UNSELECTED_FLAGS
    debiased = STORED["objective"] | {"loss": "debiased"}
    without = {name: value for name, value in debiased.items() if name != "tau_plus"}
    assert SCHEMA.from_json(STORED | {"objective": debiased}, WHERE).objective.loss == "debiased"
    assert stored_config_error(STORED | {"objective": without}).endswith(
        "field tau_plus, which is missing."
    )


def test_reports_missing_sections_and_unknown_fields():
    for section in SECTIONS:
        assert section in stored_config_error({k: v for k, v in STORED.items() if k != section})
        for value in (None, [], "abc", 3):
            assert stored_config_error(STORED | {section: value}).startswith(
                f"config.json: {section}: expected"
            )
        unknown = STORED | {section: STORED[section] | {"colour": 1}}
        assert 'got the field "colour"' in stored_config_error(unknown)
    assert 'got the field "colour"' in stored_config_error(STORED | {"colour": 1})
    for value in (None, [], "abc", 3):
        assert stored_config_error(value).startswith("config.json: expected {…}, got ")


def test_reports_damaged_file_on_one_line(tmp_path):
    path = tmp_path / "config.json"
    good = json.dumps(STORED, indent=2).encode()
    texts = damaged_copies(good, 30, 60)
    texts += [b"", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b'{"a": 1, "a": 1}', b"NaN"]
    messages = []
    for text in texts:
        path.write_bytes(text)
        messages.append(error_message(rundir.open_run, tmp_path, SCHEMA))
    errors = [line for line in messages if line]
    assert len(errors) > 60
    assert all(line.startswith(str(path)) for line in errors)


FLAGS = {
    **{f"--loss {loss}": ["--loss", loss] for loss in OBJECTIVES},
    **{f"--sampler {name}": ["--sampler", name] for name in SAMPLERS},
    "posterior": ["--loss", "bprac", "--confidence-rule", "posterior"],
    "given": ["--loss", "debiased", "--n-pos", "0", "--tau-plus", "0", "--temperature", "0.5"],
    "staged": ["--sampler", "bns", "--rns-epochs", "3", "--risk-lambda", "2"],
    "swept": ["--sampler", "aobpr", "--sweep", "rank_scale=9", "--sweep", "temperature=1,2"],
}


@pytest.mark.filterwarnings("ignore::crl_jax.data.DataWarning")
@pytest.mark.parametrize("name", FLAGS)
def test_filled_defaults_match_implicit_defaults(name):
    config = SCHEMA.parse(FLAGS[name], Config(), "")
    swept = tuple(spec.partition("=")[0] for spec in config.protocol.sweep)
    log = Interactions.from_arrays([0, 0, 1, 2], [0, 1, 2, 3])

    def resolve_parts(config):
        objective = resolve(config.objective, swept)
        context = Context(log, "", objective.count("n_neg"))
        sampler, values = resolve_sampler(config.sampling, context, swept, own=objective.sampler)
        return objective, sampler, values

    def effective_parts(config):
        objective, sampler, _ = resolve_parts(config)
        parts = (sampler, objective.confidence(log, config.training))
        leaves = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(parts)]
        return objective, jax.tree.structure(parts), leaves

    completed = dataclasses.replace(
        config,
        objective=filled(config.objective, resolve_parts(config)[0].values, swept),
        sampling=filled(config.sampling, resolve_parts(config)[2], swept),
    )
    assert SCHEMA.from_json(to_json(completed), WHERE) == completed
    assert effective_parts(completed) == effective_parts(config)
    flags = dataclasses.asdict(completed.objective) | dataclasses.asdict(completed.sampling)
    assert all(flags[name] is None for name in swept)
    if config.sampling.sampler == "bns":
        assert completed.sampling.prior == "popularity"
        assert completed.sampling.candidates == 5
    if config.objective.loss == "bprac":
        assert (completed.objective.score_distribution, completed.objective.distribution_scale) == (
            "smoothed",
            None,
        )
        assert completed.objective.confidence_every == 10
    if config.objective.loss == "dpl":
        # The density of the training part, known with the data.
        assert (completed.objective.tau_plus, completed.objective.n_pos) == (None, 5)
