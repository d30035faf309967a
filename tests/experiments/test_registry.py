"""A single registry entry adds a loss, a sampler or an encoder to the command line."""

import contextlib
import io
import re
from dataclasses import dataclass, field, replace
from typing import Literal, get_type_hints

import pytest
import tyro
from _helpers.refusals import raises

from crl_jax import hyperparams, losses, models, samplers, summary
from crl_jax.data import Interactions
from experiments._ranges import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Range, is_within
from experiments._registry import (
    Entry,
    Hyperparam,
    count,
    definitions_by_flag,
    filled,
    flag_ranges,
    resolve_flags,
    sweepable,
    with_flags,
    words,
)
from experiments.recommend._config import SCHEMA, SamplerOptions
from experiments.recommend.encoders import ENCODERS, EncoderEntry
from experiments.recommend.objectives import OBJECTIVES, Objective
from experiments.recommend.sampling import (
    SAMPLERS,
    Context,
    SamplerEntry,
    discover,
    resolve_sampler,
)

MARGIN = Hyperparam(1.0, "Margin of the positive", POSITIVE)


@dataclass(frozen=True, kw_only=True)
class WidthEntry(Entry):
    """Entry whose default depends on another flag."""

    def complete(self, values, swept):
        return {**values, "width": values["width"] or 2 * values["depth"]}


ENTRIES = {
    "hinge": Entry(help="a margin", hyperparams={"margin": MARGIN, "slack": MARGIN}),
    "soft": Entry(
        help="no margin",
        hyperparams={"slack": Hyperparam(0.5, "What is let through", SHARE)},
    ),
    "deep": WidthEntry(
        help="layers",
        hyperparams={
            "depth": count(3, "Layers"),
            "width": count(0, "Units of a layer", Range(0, 9)),
            "shape": words("round", "How it looks", ("round", "square")),
        },
    ),
}


@dataclass(frozen=True)
class KindOptions:
    """Options of a stub component."""

    kind: str = field(default="hinge", metadata={"help": "The kind."})


KindFlags = with_flags(KindOptions, "kind", ENTRIES)


def parse(*flags):
    return tyro.cli(KindFlags, args=list(flags))


def test_flags_and_types_come_from_entries():
    hints = get_type_hints(KindFlags)
    assert hints["kind"] == Literal["hinge", "soft", "deep"]
    assert hints["margin"] == float | None
    assert hints["depth"] == int | None
    assert hints["shape"] == Literal["round", "square"] | None
    assert parse() == KindFlags()
    assert parse("--kind", "deep", "--depth", "4").depth == 4
    assert parse("--kind", "soft").kind == "soft"
    with raises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as printed:
        parse("--kind", "sofd")
    text = re.sub(r"[\s│]+", " ", printed.getvalue())
    assert "--kind: expected one of hinge, soft, deep, got 'sofd'. Did you mean soft?" in text


def test_help_lists_entries_ranges_and_defaults(monkeypatch):
    monkeypatch.setenv("COLUMNS", "500")
    with raises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as printed:
        parse("--help")
    text = re.sub(r"[\s│]+", " ", printed.getvalue())
    assert "The kind. hinge: a margin; soft: no margin; deep: layers." in text
    assert "Margin of the positive. For hinge (above 0, by default 1.0)." in text
    assert "hinge (above 0, by default 1.0); soft (in [0, 1], by default 0.5)." in text
    assert "Layers. For deep (at least 1, by default 3)." in text
    assert "How it looks. For deep (by default round)." in text


def test_resolved_values_are_flags_or_defaults():
    assert resolve_flags("kind", parse("--margin", "2"), ENTRIES) == {"margin": 2.0, "slack": 1.0}
    assert resolve_flags("kind", parse("--kind", "soft"), ENTRIES) == {"slack": 0.5}
    deep = parse("--kind", "deep", "--depth", "5")
    values = resolve_flags("kind", deep, ENTRIES)
    assert values == {"depth": 5, "width": 10, "shape": "round"}
    assert filled(deep, values, ("width",)) == KindFlags("deep", depth=5, shape="round")


@pytest.mark.parametrize("swept", [(), ("margin",)])
def test_rejects_flags_of_another_entry(swept):
    flags = () if swept else ("--margin", "2")
    with raises(ValueError, match=r"^--kind soft has no --margin; it takes --slack\. --marg"):
        resolve_flags("kind", parse("--kind", "soft", *flags), ENTRIES, swept)


def test_error_names_entries_that_accept_flag():
    with raises(ValueError, match=r" --slack is for hinge, soft\.$"):
        resolve_flags("kind", parse("--kind", "deep", "--slack", "1"), ENTRIES)


def test_ranges_come_from_chosen_entry():
    assert flag_ranges(ENTRIES, "soft")["slack"] == SHARE
    assert flag_ranges(ENTRIES, "hinge")["slack"] == POSITIVE
    assert flag_ranges(ENTRIES, "deep")["slack"] == POSITIVE  # range of its first entry
    assert flag_ranges(ENTRIES, "nothing")["depth"] == COUNT
    assert "shape" not in flag_ranges(ENTRIES, "deep")


def test_sweeps_exclude_hyperparams_that_change_shapes():
    assert sweepable(ENTRIES) == ("margin", "slack")
    assert "n_neg" not in sweepable(OBJECTIVES)
    assert {"temperature", "tau_plus", "beta"} <= {*sweepable(OBJECTIVES)}
    assert "distribution_scale" not in sweepable(OBJECTIVES)
    assert {"gamma", "contrast_weight", "contrast_alpha"} < {*SCHEMA.sweepable}
    assert not {"noise", "augmentation_rate", "rank", "contrast_layer"} & {*SCHEMA.sweepable}
    assert {"rank_scale", "variance_weight", "log_q", "risk_lambda"} <= {*sweepable(SAMPLERS)}
    assert "candidates" not in sweepable(SAMPLERS)


def test_loss_settings_are_not_sweepable():
    mine = Objective(help="mine", loss=losses.bpr, settings={"margin": MARGIN})
    assert mine.sweepable == {"temperature"}
    assert sweepable({"mine": mine}) == ("temperature",)


def test_encoder_flags_are_not_sweepable():
    narrow = EncoderEntry(
        source=models.MatrixFactorization,
        hyperparams={"share": MARGIN},
        make=lambda log, **_: models.MatrixFactorization(log.n_users, log.n_items),
    )
    assert sweepable({"narrow": narrow}) == ()
    assert not {*definitions_by_flag(ENCODERS)} & {*SCHEMA.sweepable}


@dataclass(frozen=True)
class Powered(samplers.RNS):
    """Sampler with a hyper-parameter."""

    power: float = 1.0


def test_swept_sampler_flag_requires_field(monkeypatch):
    monkeypatch.setitem(
        SAMPLERS,
        "mine",
        SamplerEntry(
            source=Powered,
            hyperparams={
                "risk_lambda": MARGIN,
                "variance_weight": replace(MARGIN, field="power"),
            },
            make=lambda context, **_: Powered(),
        ),
    )
    context = Context(Interactions.from_arrays([0, 1], [0, 1]), "", 1)
    options = replace(SamplerOptions(), sampler="mine")
    sampler, _ = resolve_sampler(options, context, ("variance_weight",))
    assert sampler == Powered()
    with raises(
        ValueError,
        match=r"^--sweep risk_lambda: expected a field of Powered \(it has power\), got "
        r"risk_lambda\. Mark the flag sweeps=False",
    ):
        resolve_sampler(options, context, ("risk_lambda",))


def test_objective_flags_include_counts_and_temperature():
    mine = Objective(loss=losses.triplet_margin, defaults={"margin": 0.5}, n_neg=7)
    assert list(mine.flags) == ["n_neg", "margin", "temperature"]
    assert mine.flags["n_neg"].default == 7
    assert mine.flags["margin"].default == 0.5
    assert mine.flags["margin"].limits == hyperparams(losses.triplet_margin)["margin"].range
    assert mine.help == summary(losses.triplet_margin)
    assert mine.flags["n_neg"].limits == COUNT
    fixed = OBJECTIVES["mpr"].flags
    assert fixed["n_neg"].limits == fixed["n_pos"].limits == Range(2, 2)


@pytest.mark.parametrize(
    "entries",
    [entries for *_, entries in SCHEMA.choices],
    ids=[choice for _, choice, _ in SCHEMA.choices],
)
def test_entry_defaults_lie_in_their_ranges(entries):
    for name, of in definitions_by_flag(entries).items():
        for hyperparam in of.values():
            if hyperparam.limits is not None and hyperparam.default is not None:
                assert is_within(hyperparam.limits, hyperparam.default), name


def test_swept_value_sets_its_sampler_field():
    assert SAMPLERS["aobpr"].swept_fields({"rank_scale": 3, "lr": 1}) == {"scale": 3}
    assert SAMPLERS["srns"].swept_fields({"variance_weight": 3}) == {"variance_weight": 3}
    assert SAMPLERS["bns"].flags["risk_lambda"].limits == NOT_NEGATIVE


def test_discovers_library_losses_and_samplers():
    found = OBJECTIVES["triplet_margin"]
    assert found.loss is losses.triplet_margin
    assert list(found.flags) == ["n_neg", "margin", "temperature"]
    offered = [entry.loss for name, entry in OBJECTIVES.items() if name not in ("bprac", "auto")]
    assert len(set(offered)) == len(offered)
    assert losses.punce not in offered, "it needs labels"
    assert losses.clip_contrastive not in offered, "it takes a matrix of scores"
    assert {entry.source for entry in SAMPLERS.values()} == {
        samplers.RNS, samplers.PNS, samplers.AOBPR, samplers.DNS, samplers.SRNS, samplers.InBatch,
        samplers.SharedRNS, samplers.BNS,
    }  # fmt: skip


def test_discovers_new_library_sampler(monkeypatch):
    monkeypatch.setattr(samplers, "Powered", Powered, raising=False)
    (entry,) = discover({entry.source for entry in SAMPLERS.values()}).values()
    context = Context(Interactions.from_arrays([0, 1], [0, 1]), "", 1)
    assert entry.make(context) == Powered()
