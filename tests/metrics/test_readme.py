"""The page on metrics says what is so."""

import doctest
import inspect
import re
from pathlib import Path

from crl_jax import metrics
from crl_jax.metrics import _evaluate, _ranking

PAGE = Path(metrics.__file__).with_name("README.md")


def test_its_examples_run():
    assert doctest.testfile(str(PAGE), module_relative=False, encoding="utf-8").failed == 0


def test_its_table_has_every_metric_with_its_function():
    rows = re.findall(r"^\| `(\w+)(?:@k)?` \| (?:`(\w+)` )?\|", PAGE.read_text(), re.MULTILINE)
    told = dict(rows)
    for name, function in _evaluate._METRICS.items():
        assert told.pop(name) == function.__name__
    assert told == {"coverage": "", "auc": "auc"}
    public = {n for n, f in vars(_ranking).items() if inspect.isfunction(f) and n[0] != "_"}
    assert public - {"at_least_float32", "check_shape"} == {f for _, f in rows if f}
