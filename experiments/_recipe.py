"""Base configurations of ``--recipe NAME`` and ``--config FILE``, which other flags override."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from ._program import fixed_and_swept, flag, named_values
from ._ranges import read_json
from ._schema import Schema

C = TypeVar("C")


def take_base(
    arguments: list[str],
    recipes: Mapping[str, C],
    schema: Schema[C],
    start: Callable[[Mapping[str, str]], C],
) -> tuple[C, list[str]]:
    """Extracts ``--recipe NAME`` or ``--config FILE`` from the arguments.

    Args:
      arguments: The arguments of a command.
      recipes: Configurations by name, each with a section ``protocol`` that has a ``sweep``.
      schema: The flags of the command.
      start: Returns the configuration of a run without a base, given the values of its flags.

    Returns:
      The base configuration, without its sweeps of numbers that the arguments set; and the
      remaining arguments.

    Raises:
      ValueError: If the recipe does not exist, the file is invalid, both are given, or the
        arguments both fix and sweep a number.
    """
    name, arguments = _take(arguments, "--recipe")
    path, arguments = _take(arguments, "--config")
    set_by_flags, flags = _fixed_or_swept(arguments), dict(named_values(arguments))
    if name is None and path is None:
        return _without_sweeps(start(flags), set_by_flags), arguments
    if name is not None and path is not None:
        raise ValueError("--recipe and --config are both what a run starts from: give one of them.")
    if path is not None:
        base = read_config(Path(path), schema, lambda values: start({**values, **flags}))
    elif name is not None and name in recipes:
        base = recipes[name]
    else:
        known = f"takes one of {', '.join(recipes)}" if recipes else "has no choice here"
        raise ValueError(f"--recipe {known}, got {name!r}.")
    return _without_sweeps(base, set_by_flags), arguments


def read_config(path: Path, schema: Schema[C], start: Callable[[Mapping[str, str]], C]) -> C:
    """Reads a configuration from JSON, TOML or YAML; missing fields take those of ``start``.

    As with flags, a number in the file is not swept by default.

    In the ``config.json`` of a run, the run directory is ignored, because it belongs to that run.

    Raises:
      ValueError: If the file is missing or invalid, or its flag does not accept a value; the
        message names the file and the field.
    """
    stored = _read(path)
    if isinstance(stored, dict) and "environment" in stored:
        environment, output = stored["environment"], stored.get("output")
        command = environment.get("command") if isinstance(environment, dict) else None
        if command not in (None, schema.command):
            raise ValueError(f"{path} is a configuration of {command}, not of {schema.command}.")
        if isinstance(output, dict):
            output = {name: x for name, x in output.items() if name not in ("out", "resume")}
        stored = {**stored, "output": output}
    values: dict[str, str] = {}
    for section in stored.values() if isinstance(stored, dict) else ():
        if isinstance(section, dict):
            values |= {name: str(x) for name, x in section.items() if x is not None}
    return schema.from_json(stored, path, base=_without_sweeps(start(values), set(values)))


def _read(path: Path) -> Any:
    if path.suffix not in (".json", ".toml", ".yaml", ".yml"):
        raise ValueError(f"--config takes a file .json, .toml or .yaml, got {path}.")
    if not path.is_file():
        raise ValueError(f"--config {path}: there is no such file.")
    if path.suffix == ".json":
        return read_json(path)
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text) if path.suffix == ".toml" else _load_yaml(text)
    except ValueError as error:  # invalid TOML, or bytes that are not UTF-8
        raise ValueError(f"{path}: {error}") from None


def _load_yaml(text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML loader that parses ``1e-3`` as a number, as in YAML 1.2."""

    number = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        return yaml.load(text, Loader) or {}
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


def _take(arguments: list[str], target: str) -> tuple[str | None, list[str]]:
    """Returns the value of a flag, or None if it is not given, and the remaining arguments."""
    for i, argument in enumerate(arguments):
        name, separator, value = argument.partition("=")
        if name == target:
            remaining = arguments[i + 1 :]
            if not separator:
                value, remaining = (remaining[0], remaining[1:]) if remaining else ("", [])
            return value, arguments[:i] + remaining
    return None, arguments


def _without_sweeps(base: Any, set_by_flags: set[str]) -> Any:
    sweep = tuple(s for s in base.protocol.sweep if s.partition("=")[0] not in set_by_flags)
    return replace(base, protocol=replace(base.protocol, sweep=sweep))


def _fixed_or_swept(arguments: list[str]) -> set[str]:
    """Returns the names of the numbers that the arguments fix or sweep; none may be both."""
    fixed, swept = fixed_and_swept(arguments)
    if conflicts := sorted(fixed & swept):
        raise ValueError(
            f"{flag(conflicts[0])} fixes what --sweep {conflicts[0]} tries: give one of them."
        )
    return fixed | swept
