"""Hyper-parameters and summaries, read from signatures and docstrings."""

import contextlib
import importlib
import inspect
import pkgutil
from typing import Annotated, Any, Literal

from _helpers.refusals import raises

import crl_jax
from crl_jax import Range, hyperparams, pytree_dataclass, samplers, summary
from crl_jax._hyperparams import check_arguments


def scale(x, *, rate: Annotated[float, Range(0, 1)] = 0.5, kind: Literal["a", "b"] = "a", y=2):
    r"""Scales an array by :math:`\tau^+ \ge 0`.

    Args:
      x: Array.
      rate: Rate :math:`\beta \in [0, 1]`, see :func:`scale`; a scalar. More.
      kind: One of two.
      y: Not a hyper-parameter.
    """
    return x, rate, kind, y


def stretch(x, *, rate: Annotated[Any, Range(0)] = 1, by: Annotated[int, Range(1)] = 2):
    """Stretches an array.

    Args:
      by: Factor.

    Other arguments and the result, unlike the
    errors, are those of :func:`scale`.

    References:
      Other arguments.
    """
    return x, rate, by


def shift(x, *, by: Annotated[int | None, Range(1)] = None, rate: Annotated[Any, Range(0)] = 1):
    """Shifts an array.

    Args:
      x: As in :func:`scale`.
      by, other: Number of places.
      rate: As in :func:`scale`. Some remark.
    """
    return x, by, rate


def test_hyperparams_read_signature_and_docstring():
    found = hyperparams(scale)
    assert list(found) == ["rate", "kind"]
    assert found["rate"] == (0.5, float, Range(0, 1), (), "Rate β ∈ [0, 1], see scale")
    assert found["kind"] == ("a", str, None, ("a", "b"), "One of two")
    assert summary(scale) == "Scales an array by τ⁺ ≥ 0"


def test_help_follows_references_to_other_docstrings():
    found = hyperparams(shift)
    assert found["by"] == (None, int, Range(1), (), "Number of places")
    assert found["rate"].help == "Rate β ∈ [0, 1], see scale"
    found = hyperparams(stretch)
    assert [param.help for param in found.values()] == ["Rate β ∈ [0, 1], see scale", "Factor"]


def test_dataclass_fields_are_inherited_and_validated():
    @pytree_dataclass
    class Base:
        """Base.

        Attributes:
          weight: Weight of it.
        """

        weight: Annotated[Any, Range(0)] = 1.0

    @pytree_dataclass
    class Derived(Base):
        """Derived.

        Attributes:
          count: Number of them.
        """

        count: Annotated[int, Range(1)] = 3

    found = hyperparams(Derived)
    assert [(param.default, param.kind, param.help) for param in found.values()] == [
        (1.0, float, "Weight of it"),
        (3, int, "Number of them"),
    ]
    with raises(ValueError, match=r"^`count` must be a whole number, got 1\.5\.$"):
        Derived(count=1.5)  # type: ignore[arg-type]
    with raises(ValueError, match=r"^`count` must be at least 1, got 0\.$"):
        Derived(count=0)


def test_integer_range_may_lack_lower_bound():
    @pytree_dataclass
    class Offset:
        places: Annotated[int, Range(high=5)] = 0

    assert Offset(-(2**40)).places == -(2**40)
    with raises(ValueError, match=r"^`places` must lie in \[-inf, 5\], got 6\.$"):
        Offset(6)


def test_rejects_undeclared_choices():
    checked = check_arguments(scale)
    assert checked(1, kind="b")[2] == "b"
    with raises(ValueError, match=r"^`kind` must be one of a, b, got 'c'\.$"):
        checked(1, kind="c")
    with raises(ValueError, match=r"^`kind` must be one of a, b, got None\.$"):
        checked(1, kind=None)
    with raises(ValueError, match=r"^`criterion` must be one of risk, posterior, got 'x'"):
        samplers.BNS(0.5, criterion="x")  # type: ignore[arg-type]


PUBLIC = {
    thing
    for module in pkgutil.iter_modules(crl_jax.__path__, "crl_jax.")
    if not module.name.startswith(("crl_jax._", "crl_jax.data"))
    for name, thing in vars(importlib.import_module(module.name)).items()
    if name[0] != "_" and (inspect.isfunction(thing) or inspect.isclass(thing))
}
"""Functions and classes that the packages export."""


def declarations():
    for source in PUBLIC:
        with contextlib.suppress(ValueError):  # a built-in has no signature
            yield from ((source, name, param) for name, param in hyperparams(source).items())


def test_every_hyperparameter_has_help_text():
    found = list(declarations())
    assert {"tau_plus", "candidates", "momentum", "edge_dropout"} <= {name for _, name, _ in found}
    missing = [
        f"{source.__module__}.{source.__qualname__}: {name}"
        for source, name, param in found
        if not param.help or param.help.startswith("As ") or "\\" in param.help
    ]
    assert not missing, missing


def test_defaults_lie_within_ranges():
    for _, name, param in declarations():
        if isinstance(param.default, int | float):
            param.range.check(name, param.default)
        elif isinstance(param.default, str):
            assert param.default in param.choices, name
