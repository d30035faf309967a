"""Registry of losses, samplers and encoders by command-line name, with their flags.

A loss, a sampler or an encoder is one :class:`Entry` under one name. Everything else is derived
from the entries: the flags and their help, the ranges of their values, the numbers that a sweep can
set, the defaults that ``config.json`` records, and the error messages.
"""

import dataclasses
import importlib
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, make_dataclass, replace
from inspect import Parameter
from typing import Annotated, Any, Literal, TypeVar

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from crl_jax import hyperparams, summary

from ._program import flag, suggest
from ._ranges import COUNT, MAX_COUNT, Range, help_interval

T = TypeVar("T")

ENTRIES = "entries"
"""Metadata key under which a field that names an entry stores all available entries."""
LEGACY_VALUE = "was"
"""Metadata key for the value that a newly added flag has in configurations of older runs."""


@dataclass(frozen=True)
class Hyperparam:
    """Flag of an entry.

    Attributes:
      default: Default value; None for a default that :meth:`Entry.complete` computes.
      help: One-line help text.
      limits: Range of numeric values; None for strings.
      kind: Type: int, float or a ``Literal`` of strings.
      sweeps: Whether a sweep can set it, see :attr:`Entry.sweepable`. Numbers that change array
        shapes cannot be swept.
      field: Field of a sampler or of an auxiliary loss that a sweep sets, if its name differs from
        the flag's.
      was_missing: Whether configurations of older runs may lack the flag, whose value was None.
    """

    default: Any
    help: str
    limits: Range | None = None
    kind: Any = float
    sweeps: bool = True
    field: str | None = None
    was_missing: bool = False


def declared(
    source: Any,
    *names: str,
    defaults: Mapping[str, Any] | None = None,
    flags: Mapping[str, str] | None = None,
    sweeps: bool = True,
) -> dict[str, Hyperparam]:
    """Returns the hyper-parameters that a function or class of the library declares, as flags.

    Hyper-parameters without a default are omitted: required arguments, and those whose default is
    None.

    Args:
      source: Loss function, or class of a sampler or model.
      *names: Hyper-parameters that become flags; by default all of them.
      defaults: Defaults that differ from those of the signature, by hyper-parameter.
      flags: Names of flags that differ from those of their hyper-parameters.
      sweeps: Whether a sweep can set floating-point numbers; integers are never swept.
    """
    defaults, flags = defaults or {}, flags or {}
    definitions = {}
    for name, hyperparam in hyperparams(source).items():
        is_selected = name in names if names else hyperparam.default not in (None, Parameter.empty)
        if not is_selected and name not in defaults:
            continue
        limits = hyperparam.range
        if hyperparam.kind is int and limits is not None and limits.high == math.inf:
            limits = replace(limits, high=MAX_COUNT)
        flag_name = flags.get(name, name)
        definitions[flag_name] = Hyperparam(
            default=defaults.get(name, hyperparam.default),
            help=hyperparam.help,
            limits=limits,
            kind=literal(hyperparam.choices) if hyperparam.choices else hyperparam.kind,
            sweeps=sweeps and hyperparam.kind is float,
            field=None if flag_name == name else name,
        )
    return definitions


def count(default: int, help: str, limits: Range = COUNT) -> Hyperparam:
    """Returns a flag that takes an integer."""
    return Hyperparam(default, help, limits, int, sweeps=False)


def words(default: str | None, help: str, choices: tuple[str, ...]) -> Hyperparam:
    """Returns a flag that takes one of the given strings."""
    return Hyperparam(default, help, None, literal(choices), sweeps=False)


def literal(choices: tuple[str, ...]) -> Any:
    """Returns the ``Literal`` type of the given strings."""
    make: Any = Literal
    return make[choices]


def entry_name_type(entries: Mapping[str, Any], help: str) -> Any:
    """Returns the type of a flag that takes an entry's name; errors suggest the closest name."""
    names = tuple(entries)

    def read(arguments: list[str]) -> str:
        if arguments[0] not in names:
            raise ValueError(suggest(f"expected one of {', '.join(names)}, got {arguments[0]!r}."))
        return arguments[0]

    spec = PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(names)}}}",
        instance_from_str=read,
        is_instance=lambda value: value in names,
        str_from_instance=lambda name: [name],
    )
    return Annotated[literal(names), tyro.conf.arg(help=help), spec]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Loss, sampler, encoder or other component that a command-line flag selects by name.

    Attributes:
      help: Short description; by default the first line of the docstring of ``source``.
      source: The function or class of the library.
      hyperparams: Its flags, by the names of the fields they set.
    """

    help: str = ""
    source: Any = None
    hyperparams: Mapping[str, Hyperparam] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.help and self.source is not None:
            object.__setattr__(self, "help", summary(self.source))

    @property
    def flags(self) -> Mapping[str, Hyperparam]:
        """Flags of the entry, by name."""
        return self.hyperparams

    @property
    def sweepable(self) -> frozenset[str]:
        """Names of the flags that a sweep can set."""
        return frozenset(name for name, hyperparam in self.flags.items() if hyperparam.sweeps)

    def check(self, values: Mapping[str, Any], given: Collection[str]) -> None:
        """Raises ``ValueError`` if flags contradict each other.

        Args:
          values: The values of all flags, with defaults.
          given: Names of the flags that were passed or are swept.
        """
        del values, given

    def complete(self, values: dict[str, Any], swept: tuple[str, ...]) -> dict[str, Any]:
        """Returns the values of the flags, with defaults that depend on other flags.

        Raises:
          ValueError: If flags contradict each other.
        """
        del swept
        return values


Entries = Mapping[str, Entry]
E = TypeVar("E", bound=Entry)


def is_import_path(name: str) -> bool:
    """Whether a name has the form ``package.module:name``."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


class Registry(dict[str, E]):
    """Registry of entries by name and by import path.

    Args:
      entries: The entries by name.
      make: ``make(component)`` returns the entry of a user-defined function or class.
    """

    def __init__(self, entries: Mapping[str, E], make: Callable[[Any], E]):
        super().__init__(entries)
        self._make = make

    def add(self, path: str) -> None:
        """Imports ``module:name`` and registers its entry under this name.

        Raises:
          ValueError: If the module or object does not exist.
        """
        if path in self:
            return
        module, _, name = path.partition(":")
        if (cwd := os.getcwd()) not in sys.path:  # installed scripts do not search it
            sys.path.append(cwd)
        try:
            component = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{path} cannot be imported: {error}.") from None
        self[path] = self._make(component)


def definitions_by_flag(entries: Entries) -> dict[str, dict[str, Hyperparam]]:
    """Returns, for each flag, its definition in every entry that accepts it."""
    definitions: dict[str, dict[str, Hyperparam]] = {}
    for name, entry in entries.items():
        for flag_name, hyperparam in entry.flags.items():
            definitions.setdefault(flag_name, {})[name] = hyperparam
    return definitions


def sweepable(entries: Entries) -> tuple[str, ...]:
    """Returns the names of the flags that a sweep can set."""
    return tuple(
        name
        for name, by_entry in definitions_by_flag(entries).items()
        if all(name in entries[n].sweepable for n in by_entry)
    )


def flag_ranges(entries: Entries, chosen: Any) -> dict[str, Range]:
    """Returns the ranges of all numeric flags, preferring those of the entry ``chosen``."""
    chosen_flags = entries[chosen].flags if chosen in entries else {}
    definitions = {
        name: chosen_flags.get(name, next(iter(by_entry.values())))
        for name, by_entry in definitions_by_flag(entries).items()
    }
    return {name: h.limits for name, h in definitions.items() if h.limits is not None}


def rejected_flags(entries: Entries, chosen: Any) -> dict[str, None]:
    """Returns the flags that ``chosen`` does not accept; empty if there is no such entry."""
    if chosen not in entries:
        return {}
    return dict.fromkeys(
        name for name, by_entry in definitions_by_flag(entries).items() if chosen not in by_entry
    )


def with_flags(
    base: type[T], choice: str, entries: Entries, *, default: str | None = None
) -> type[T]:
    """Returns a dataclass with the field ``choice`` of ``base`` and one per flag of the entries.

    Omitted flags are None. The help of a flag names the entries that accept it. ``default`` is the
    default of ``choice``, instead of that of ``base``.
    """
    return _with_fields(base, choice, entries, definitions_by_flag(entries), default)


def with_entry(kind: type[T], choice: str, entries: Entries, name: str) -> type[T]:
    """Returns a dataclass of :func:`with_flags`, extended by the flags of a new entry."""
    definitions = definitions_by_flag(entries)
    return _with_fields(
        kind, choice, entries, {n: definitions[n] for n in entries[name].flags}, None
    )


def with_entry_help(base: type[T], entries: Entries, name: str) -> type[T]:
    """Returns a dataclass of :func:`with_flags` whose help shows only the flags of one entry."""
    entry_flags, fields = entries[name].flags, []
    for flag_name, by_entry in definitions_by_flag(entries).items():
        value = entry_flags.get(flag_name) or next(iter(by_entry.values()))
        suffix = f" ({values})" if (values := _values(value)) else ""
        arg = tyro.conf.arg(help=f"{value.help}{suffix}.", help_behavior_hint="")
        hidden = () if flag_name in entry_flags else (tyro.conf.Suppress,)
        kind = Annotated[(value.kind | None, arg, *hidden)]  # type: ignore[misc]
        fields.append((flag_name, kind, field(default=None)))
    new_class: Any = make_dataclass(base.__name__, fields, bases=(base,), frozen=True)
    new_class.__doc__ = base.__doc__
    return new_class


def _with_fields(
    base: type[T],
    choice: str,
    entries: Entries,
    flags: Mapping[str, dict[str, Hyperparam]],
    default: str | None,
) -> type[T]:
    descriptions = "; ".join(f"{name}: {entry.help}" for name, entry in entries.items())
    choice_field = {f.name: f for f in dataclasses.fields(base)}[choice]  # type: ignore[arg-type]
    kind = entry_name_type(entries, f"{choice_field.metadata['help']} {descriptions}.")
    chosen = field(
        default=default or choice_field.default,
        metadata={**choice_field.metadata, ENTRIES: entries},
    )
    fields: list[Any] = [(choice, kind, chosen)]
    for name, by_entry in flags.items():
        arg = tyro.conf.arg(help=_help(by_entry, len(entries)), help_behavior_hint="")
        kind = next(iter(by_entry.values())).kind
        metadata = {LEGACY_VALUE: None} if any(h.was_missing for h in by_entry.values()) else {}
        fields.append((name, Annotated[kind | None, arg], field(default=None, metadata=metadata)))
    new_class: Any = make_dataclass(base.__name__, fields, bases=(base,), frozen=True)
    new_class.__doc__ = base.__doc__
    return new_class


def _help(by_entry: dict[str, Hyperparam], n_entries: int) -> str:
    """Returns the help of a flag: its meaning, and its range and default in each entry."""
    text = next(iter(by_entry.values())).help
    groups: dict[str, list[str]] = {}
    for name, hyperparam in by_entry.items():
        groups.setdefault(_values(hyperparam), []).append(name)
    is_common = len(groups) == 1 and len(by_entry) == n_entries
    parts = (
        f"{'all' if is_common else ', '.join(names)}{f' ({values})' if values else ''}"
        for values, names in groups.items()
    )
    return f"{text}. For {'; '.join(parts)}."


def _values(hyperparam: Hyperparam) -> str:
    default = [] if hyperparam.default is None else [f"by default {hyperparam.default}"]
    if hyperparam.limits is None or hyperparam.limits == Range():
        return "".join(default)
    if hyperparam.limits.low == hyperparam.limits.high:
        return f"always {hyperparam.default}"
    return ", ".join([help_interval(hyperparam.limits), *default])


def resolve_flags(
    choice: str, options: Any, entries: Entries, swept: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Returns the values of all flags of the chosen entry: those passed, or else the defaults.

    Args:
      choice: The field of ``options`` that names the entry, such as ``"loss"``.
      options: Instance of a dataclass of :func:`with_flags`.
      entries: The entries.
      swept: Names of numbers that a sweep sets.

    Raises:
      ValueError: If a flag is passed, or swept, that the entry does not accept.
    """
    name = getattr(options, choice)
    flags = entries[name].flags
    values = {flag_name: h.default for flag_name, h in flags.items()}
    passed = set(swept)
    for flag_name, by_entry in definitions_by_flag(entries).items():
        value = getattr(options, flag_name, None)  # flags of entries added later may be missing
        if (value is not None or flag_name in swept) and flag_name not in flags:
            hint = f"it takes {', '.join(map(flag, flags))}" if flags else "it takes no numbers"
            raise ValueError(
                f"{flag(choice)} {name} has no {flag(flag_name)}; {hint}. "
                f"{flag(flag_name)} is for {', '.join(by_entry)}."
            )
        if value is not None:
            values[flag_name] = value
            passed.add(flag_name)
    entries[name].check(values, passed)
    return entries[name].complete(values, swept)


def filled(options: T, values: Mapping[str, Any], swept: tuple[str, ...] = ()) -> T:
    """Returns the options with these values, except for those that a sweep sets."""
    unswept = {name: value for name, value in values.items() if name not in swept}
    return dataclasses.replace(options, **unswept)  # type: ignore[type-var]
