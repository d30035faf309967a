"""Schema of a command's flags and of a run's configuration: parsing and validation."""

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

import tyro

from . import _ranges as ranges
from ._program import flag, named_values, program
from ._ranges import Range
from ._registry import (
    ENTRIES,
    LEGACY_VALUE,
    Entries,
    Registry,
    flag_ranges,
    is_import_path,
    rejected_flags,
    resolve_flags,
    sweepable,
    with_entry,
    with_entry_help,
)

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True)
class Schema(Generic[C]):
    """Schema of the flags of one command.

    Attributes:
      command: The name of the command.
      kind: The dataclass of a configuration. Its fields are sections, which are dataclasses too,
        each with a default.
      numbers: Names of the fields that a sweep can set, in addition to those of the entries.
      check: Raises a ``ValueError`` if fields contradict each other.
      renamed: Field by library argument, for fields that have another name than their argument.
    """

    command: str
    kind: type[C]
    numbers: tuple[str, ...]
    check: Callable[[C], None]
    renamed: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def sections(self) -> dict[str, Any]:
        """Classes of the sections, by name."""
        fields: tuple[Any, ...] = dataclasses.fields(self.kind)  # type: ignore[arg-type]
        return {field.name: type(field.default) for field in fields}

    @cached_property
    def choices(self) -> tuple[tuple[str, str, Entries], ...]:
        """Fields that name an entry, as tuples of section, field name and entries."""
        return tuple(
            (section, field.name, field.metadata[ENTRIES])
            for section, kind in self.sections.items()
            for field in dataclasses.fields(kind)
            if ENTRIES in field.metadata
        )

    @cached_property
    def flags(self) -> dict[str, str]:
        """Flags, by the name of the library argument that they set."""
        kinds = self.sections.values()
        by_field = {
            field.name: flag(field.name) for kind in kinds for field in dataclasses.fields(kind)
        }
        renamed = {"learning_rate": "lr", "source": "data", **self.renamed}
        return by_field | {argument: by_field[name] for argument, name in renamed.items()}

    def extended(self, chosen: Mapping[str, str]) -> "Schema[C]":
        """Returns the schema extended by the flags of entries that are chosen by import path.

        Args:
          chosen: The name of the entry by choice, such as ``{"loss": "package.module:name"}``.

        Raises:
          ValueError: If the module or object does not exist, or one of its hyper-parameters has the
            name of another flag.
        """
        sections = dict(self.sections)
        for section, choice, entries in self.choices:
            name = chosen.get(choice, "")
            if is_import_path(name) and isinstance(entries, Registry):
                entries.add(name)
                for other, kind in sections.items():
                    taken = {f.name for f in dataclasses.fields(kind)} if other != section else ()
                    if clash := sorted(set(taken) & {*entries[name].flags}):
                        raise ValueError(
                            f"{name}: its hyper-parameter {clash[0]} has the name of another flag, "
                            f"{flag(clash[0])}; rename it."
                        )
                sections[section] = with_entry(sections[section], choice, entries, name)
        return self._with_sections(sections)

    def _for_help(self, chosen: Mapping[str, str]) -> "Schema[C]":
        """Returns the schema whose help shows only the flags of the chosen entries."""
        sections = dict(self.sections)
        for section, choice, entries in self.choices:
            if (name := chosen.get(choice)) in entries:
                sections[section] = with_entry_help(sections[section], entries, str(name))
        return self._with_sections(sections)

    def _with_sections(self, sections: Mapping[str, Any]) -> "Schema[C]":
        if sections == self.sections:
            return self
        fields: list[Any] = [(name, kind, field(default=kind())) for name, kind in sections.items()]
        kind: Any = make_dataclass(self.kind.__name__, fields, bases=(self.kind,), frozen=True)
        kind.__doc__ = self.kind.__doc__
        return dataclasses.replace(self, kind=kind)

    def _converted(self, config: C) -> C:
        """Converts a configuration to this schema's class, whose sections may have more flags."""
        sections = self.sections.items()
        return self.kind(**{name: kind(**vars(getattr(config, name))) for name, kind in sections})

    @property
    def sweepable(self) -> tuple[str, ...]:
        """Names of the numbers that a sweep can set."""
        entry_flags = (name for *_, entries in self.choices for name in sweepable(entries))
        return (*self.numbers, *entry_flags)

    def field_ranges(self, **chosen: Any) -> dict[str, Range]:
        """Returns the ranges of all numeric fields, given the choices, such as ``loss="bpr"``."""
        limits: dict[str, Range] = {}
        for kind in self.sections.values():
            limits |= ranges.declared_ranges(kind)
        for _, choice, entries in self.choices:
            limits |= flag_ranges(entries, chosen.get(choice))
        return limits

    def parse(self, arguments: list[str], default: C, description: str) -> C:
        """Parses flags into a configuration, with the defaults of ``default``.

        Raises:
          ValueError: If a number is out of range; the message names the flag. If flags contradict
            each other.
        """
        options = {choice: getattr(default, section) for section, choice, _ in self.choices}
        chosen = {name: value for name, value in named_values(arguments) if name in options}
        default_choices = {
            choice: str(getattr(section_options, choice))
            for choice, section_options in options.items()
        }
        schema = self.extended(default_choices).extended(chosen)
        if {"-h", "--help"} & {*arguments}:
            schema = schema._for_help(chosen)
        if schema is not self:
            default = schema._converted(default)
        config = tyro.cli(
            schema.kind,
            prog=program(self.command),
            description=description,
            default=default,
            args=arguments,
            config=(tyro.conf.FlagConversionOff, tyro.conf.OmitArgPrefixes),
        )
        ranges.refuse_empty_paths(arguments, *self.sections.values())
        for section in self.sections:
            ranges.check_flags(getattr(config, section), schema._ranges_with(config))
        self.check(config)
        return config

    def from_json(self, stored: Any, where: Path, base: C | None = None) -> C:
        """Returns the configuration stored by :func:`to_json`, validated in the same way as flags.

        Configurations of older runs may lack a flag if their entries do not accept it, or if its
        field has the metadata :data:`LEGACY_VALUE`.

        Args:
          stored: The parsed JSON. A section ``environment`` is ignored.
          where: The file it was read from.
          base: Provides the values of missing fields; by default no field may be missing.

        Raises:
          ValueError: If a field is missing, unknown, of another type or out of range. The message
            names the file and the field.
        """
        names = list(self.sections)
        if base is not None and isinstance(stored, dict):
            stored = {**{name: {} for name in names}, **stored}
        section_values = _fields(stored, names, str(where), optional=("environment",))
        if base is not None:
            for name in names:
                if isinstance(section_values[name], dict):
                    section_values[name] = {**to_json(getattr(base, name)), **section_values[name]}
        for section, kind in self.sections.items():
            if isinstance(section_values[section], dict):
                fields = dataclasses.fields(kind)
                legacy = {
                    field.name: field.metadata[LEGACY_VALUE]
                    for field in fields
                    if LEGACY_VALUE in field.metadata
                }
                section_values[section] = {**legacy, **section_values[section]}
        chosen = {
            choice: str(section_values[section].get(choice))
            for section, choice, _ in self.choices
            if isinstance(section_values[section], dict)
        }
        for section, choice, entries in self.choices:
            if choice in chosen:
                section_values[section] = {
                    **rejected_flags(entries, chosen[choice]),
                    **section_values[section],
                }
        try:
            schema = self.extended(chosen)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        table, sections = schema.field_ranges(**chosen), {}
        for section, kind in schema.sections.items():
            hints = get_type_hints(kind)
            values = _fields(section_values[section], list(hints), f"{where}: {section}")
            for name, value in values.items():
                try:
                    values[name] = ranges.read(hints[name], table.get(name), value)
                except ValueError as expected:
                    raise ValueError(
                        f"{where}: {section}.{name}: expected {expected}, "
                        f"got {ranges.shorten(value)}."
                    ) from None
            sections[section] = kind(**values)
        config = schema.kind(**sections)
        try:
            self.check(config)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        return config

    def resolve_flags(self, config: C) -> dict[str, dict[str, Any]]:
        """Returns the values of the flags of every entry that ``config`` chooses, by choice.

        Raises:
          ValueError: If a flag is passed, or swept, that its entry does not accept.
        """
        swept = tuple(self.axes(config))
        return {
            choice: resolve_flags(choice, getattr(config, section), entries, swept)
            for section, choice, entries in self.choices
        }

    def axes(self, config: Any) -> dict[str, list[float]]:
        """Parses the arguments of ``--sweep``, such as ``lr=1e-3,3e-3``, into values by name.

        Raises:
          ValueError: If an argument does not have that form, names a number that cannot be swept or
            is swept already, repeats a value, or has one out of range.
        """
        axes: dict[str, list[float]] = {}
        for spec in config.protocol.sweep:
            name, _, values = spec.partition("=")
            name = name.replace("-", "_")
            if name not in self.sweepable:
                known = ", ".join(self.sweepable)
                raise ValueError(f"--sweep takes one of {known}, got {name!r}.")
            if name in axes:
                raise ValueError(f"--sweep {name} is given twice.")
            try:
                axes[name] = [float(value) for value in values.split(",")]
            except ValueError:
                raise ValueError(f"--sweep must be NAME=NUMBER,NUMBER,…, got {spec!r}.") from None
            if len({*axes[name]}) < len(axes[name]):
                raise ValueError(f"--sweep {name} must have distinct values, got {spec!r}.")
            hints = (get_type_hints(type(getattr(config, section))) for section in self.sections)
            kind = ranges.strip_optional(
                next(section_hints[name] for section_hints in hints if name in section_hints)
            )
            for value in axes[name]:
                number = int(value) if value.is_integer() else value
                try:
                    ranges.read(kind, self._ranges_with(config)[name], number)
                except ValueError as expected:
                    raise ValueError(
                        f"--sweep {name} must be {expected}, got {value:g} in {spec!r}."
                    ) from None
        return axes

    def _ranges_with(self, config: C) -> dict[str, Range]:
        chosen = (
            (choice, getattr(getattr(config, section), choice))
            for section, choice, _ in self.choices
        )
        return self.field_ranges(**dict(chosen))


def to_json(config: Any) -> dict[str, Any]:
    """Returns a configuration as nested dictionaries of JSON values."""
    return json.loads(json.dumps(dataclasses.asdict(config), default=str, allow_nan=False))


def absolute(options: T, *names: str, but: tuple[str, ...] = ()) -> T:
    """Returns options with absolute paths, which are independent of the working directory.

    Args:
      options: A section of a configuration.
      *names: Fields that may hold a path.
      but: Values that are not paths; ``tfds:NAME`` never is.
    """
    values = {name: getattr(options, name) for name in names}
    paths = {
        name: type(value)(Path(value).absolute())
        for name, value in values.items()
        if value is not None and value not in but and not str(value).startswith("tfds:")
    }
    return dataclasses.replace(options, **paths)  # type: ignore[type-var]


def _fields(
    stored: Any, names: list[str], where: str, optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the values of exactly these names; optional ones are allowed but omitted."""
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
