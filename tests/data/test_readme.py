"""The page on data says what is so."""

import doctest
import inspect
import re
from pathlib import Path
from typing import get_args
from unittest import mock

from crl_jax import data
from crl_jax.data import _splits
from crl_jax.data._readers import Format

PAGE = Path(data.__file__).with_name("README.md")


def test_its_examples_run():
    with mock.patch.dict(data.DATASETS):
        assert doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8").failed == 0


def test_it_names_what_there_is():
    text = PAGE.read_text()
    for name, thing in vars(data).items():
        if name[0] != "_" and getattr(thing, "__module__", "").startswith("crl_jax"):
            assert re.search(rf"\b{name}\b", text), name


def test_it_names_every_dataset_format_and_split():
    text = PAGE.read_text()
    for name in data.DATASETS:
        here = all(part in text for part in name.split(":"))
        assert here, f"name {name} in the table of sources in {PAGE}"
    for name in get_args(Format):
        assert name in text.lower(), name
    for name, rule in vars(_splits).items():
        if inspect.isfunction(rule) and rule.__module__ == _splits.__name__ and name[0] != "_":
            assert f"`{name}`" in text, name
