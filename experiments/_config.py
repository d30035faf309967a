"""The configuration of a recommendation run: what flags and files may say."""

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes

from crl_jax.data import DATASETS

from . import _options as options
from . import _ranges as ranges
from ._program import program
from ._ranges import Range
from ._registry import Entries, limits_of, not_taken, sweepable, with_flags
from .contrasts import CONTRASTS
from .contrasts import LOSSES as CONTRAST_LOSSES
from .encoders import ENCODERS
from .objectives import OBJECTIVES
from .sampling import SAMPLERS

LossOptions = with_flags(options.LossOptions, "loss", OBJECTIVES)
SamplerOptions = with_flags(options.SamplerOptions, "sampler", SAMPLERS)
EncoderOptions = with_flags(options.EncoderOptions, "encoder", ENCODERS)
ContrastOptions = with_flags(
    with_flags(options.ContrastOptions, "contrast", CONTRASTS), "contrast_loss", CONTRAST_LOSSES
)
CHOICES: tuple[tuple[str, str, Entries], ...] = (
    ("objective", "loss", OBJECTIVES),
    ("sampling", "sampler", SAMPLERS),
    ("encoding", "encoder", ENCODERS),
    ("contrasting", "contrast", CONTRASTS),
    ("contrasting", "contrast_loss", CONTRAST_LOSSES),
)
"""The fields that name an entry: their section, their name and the entries."""
SWEEPABLE = (
    "lr", "weight_decay", "decay", "init_scale", "epochs",
    *(name for *_, entries in CHOICES for name in sweepable(entries)),
)  # fmt: skip
"""The numbers that a sweep can set."""


@dataclass(frozen=True)
class Config:
    """One run of the main experiment."""

    source: OmitArgPrefixes[options.DataOptions] = field(default_factory=options.DataOptions)
    objective: OmitArgPrefixes[options.LossOptions] = field(default_factory=LossOptions)
    sampling: OmitArgPrefixes[options.SamplerOptions] = field(default_factory=SamplerOptions)
    encoding: OmitArgPrefixes[options.EncoderOptions] = field(default_factory=EncoderOptions)
    contrasting: OmitArgPrefixes[options.ContrastOptions] = field(default_factory=ContrastOptions)
    training: OmitArgPrefixes[options.TrainOptions] = field(default_factory=options.TrainOptions)
    protocol: OmitArgPrefixes[options.ProtocolOptions] = field(
        default_factory=options.ProtocolOptions
    )
    output: OmitArgPrefixes[options.OutputOptions] = field(default_factory=options.OutputOptions)


def to_json(config: Config) -> dict[str, Any]:
    """The configuration as nested dictionaries of JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str, allow_nan=False))


def ranges_of(**chosen: Any) -> dict[str, Range]:
    """Where the numbers of every field lie with what is chosen, such as ``loss="bpr"``."""
    found = dict(options.RANGES)
    for _, choice, entries in CHOICES:
        found |= limits_of(entries, chosen.get(choice))
    return found


def _ranges_with(config: Config) -> dict[str, Range]:
    return ranges_of(
        **{choice: getattr(getattr(config, section), choice) for section, choice, _ in CHOICES}
    )


def anchor(config: Config) -> Config:
    """The configuration with absolute paths, which hold in every working directory."""
    source = config.source
    named = source.data in (*DATASETS, "simulated") or source.data.startswith("tfds:")
    if not named:
        source = dataclasses.replace(source, data=str(Path(source.data).absolute()))
    if source.test_data is not None:
        source = dataclasses.replace(source, test_data=source.test_data.absolute())
    return dataclasses.replace(config, source=source)


def from_json(stored: Any, where: Path) -> Config:
    """The configuration that :func:`to_json` wrote, checked as flags are.

    A run can be read that was made before a flag: one that its loss, sampler, encoder or term does
    not take, or one whose field says what was done without it (:data:`WAS`).

    Args:
      stored: What was read from JSON. A section ``environment`` is not looked at.
      where: The file it was read from.

    Raises:
      ValueError: If a field is missing, unknown, of another type or out of range. The message
        names the file and the field.
    """
    names = [section.name for section in dataclasses.fields(Config)]
    given = _fields(stored, names, str(where), optional=("environment",))
    chosen = {
        choice: str(given[section].get(choice))
        for section, choice, _ in CHOICES
        if isinstance(given[section], dict)
    }
    for section, choice, entries in CHOICES:
        if choice in chosen:
            given[section] = {**not_taken(entries, chosen[choice]), **given[section]}
    for section in dataclasses.fields(Config):
        if isinstance(given[section.name], dict):
            given[section.name] = {**_without(section.default_factory), **given[section.name]}
    table, sections = ranges_of(**chosen), {}
    for section in dataclasses.fields(Config):
        kind: Any = section.default_factory
        hints = get_type_hints(kind)
        values = _fields(given[section.name], list(hints), f"{where}: {section.name}")
        for name, value in values.items():
            try:
                values[name] = ranges.read(hints[name], table.get(name), value)
            except ValueError as wanted:
                raise ValueError(
                    f"{where}: {section.name}.{name}: expected {wanted}, "
                    f"got {ranges.shorten(value)}."
                ) from None
        sections[section.name] = kind(**values)
    config = Config(**sections)
    try:
        _check_together(config)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    return config


def _without(kind: Any) -> dict[str, Any]:
    """What was done before some flags of a section were there."""
    fields = dataclasses.fields(kind)
    return {of.name: of.metadata[options.WAS] for of in fields if options.WAS in of.metadata}


def check_number(name: str, value: float, config: Config) -> float:
    """A number as the field of that name takes it, with what ``config`` chooses.

    Raises:
      ValueError: With what was expected, if it is out of range or not whole where it must be.
    """
    sections: list[Any] = [section.default_factory for section in dataclasses.fields(Config)]
    kind = next(hints[name] for hints in map(get_type_hints, sections) if name in hints)
    whole = int(value) if value.is_integer() else value
    return ranges.read(ranges.required(kind), _ranges_with(config)[name], whole)


def _fields(
    stored: Any, names: list[str], where: str, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The values of just these names; the optional ones may be there, and are left out."""
    if not isinstance(stored, dict):
        raise ValueError(f"{where}: expected {{…}}, got {ranges.shorten(stored)}.")
    for name in names:
        if name not in stored:
            raise ValueError(f"{where}: expected the field {name}, which is missing.")
    for name in stored:
        if name not in (*names, *optional):
            raise ValueError(
                f"{where}: expected {', '.join(names)}, got the field {ranges.shorten(name)}."
            )
    return {name: stored[name] for name in names}


def _check_together(config: Config) -> None:
    protocol = config.protocol
    if protocol.seed + protocol.seeds > 2**32:
        raise ValueError(
            f"the last of the seeds must be below 2^32, got --seed {protocol.seed} "
            f"--seeds {protocol.seeds}."
        )


def parse(arguments: list[str], default: Config, description: str) -> Config:
    """Turns flags into a configuration that starts from ``default``.

    Raises:
      ValueError: If a number is out of range. The message names the flag.
    """
    config = tyro.cli(
        Config,
        prog=program("recommend"),
        description=description,
        default=default,
        args=arguments,
        config=(tyro.conf.FlagConversionOff,),
    )
    for section in dataclasses.fields(Config):
        ranges.check_flags(getattr(config, section.name), _ranges_with(config))
    _check_together(config)
    return config
