"""Registered classes support JAX's pytree operations and validate numbers when constructed."""

import copy
import dataclasses
import importlib
import inspect
import math
import pickle
import pkgutil
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.refusals import raises

import crl_jax
from crl_jax import Range, pytree_dataclass
from crl_jax._hyperparams import get_choices, get_range
from crl_jax._pytree import STATIC


def registered_classes() -> dict[str, type]:
    """Returns all pytree dataclasses of the library, by module and name."""
    found = {}
    for info in pkgutil.walk_packages(crl_jax.__path__, "crl_jax."):
        module = importlib.import_module(info.name)
        for name, thing in vars(module).items():
            own = inspect.isclass(thing) and thing.__module__ == module.__name__
            concrete = own and dataclasses.is_dataclass(thing) and not inspect.isabstract(thing)
            if concrete and not jax.tree_util.all_leaves([blank(thing)]):
                found[f"{info.name.removeprefix('crl_jax.')}.{name}"] = thing
    return found


def fields_of(cls, *, static):
    return [f for f in dataclasses.fields(cls) if f.metadata.get("static", False) == static]


def blank(cls):
    """Returns an instance with an array in each leaf and a string in each static field."""
    instance = object.__new__(cls)
    for number, field in enumerate(fields_of(cls, static=False)):
        object.__setattr__(instance, field.name, jnp.full(2, float(number)))
    for field in fields_of(cls, static=True):
        object.__setattr__(instance, field.name, f"static {field.name}")
    return instance


CLASSES = registered_classes()
each_class = pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)


def test_finds_registered_classes():
    names = {name.rsplit(".", 1)[1] for name in CLASSES}
    assert names >= {"Ranking", "SimCLR", "BNS", "LightGCN", "VarianceGamma", "Optimizer"}


@each_class
@pytest.mark.parametrize(
    "change",
    [lambda x: None, str, lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), lambda x: object()],
    ids=["None", "str", "ShapeDtypeStruct", "object"],
)
def test_leaves_accept_arbitrary_objects(cls, change):
    changed = jax.tree.map(change, blank(cls))
    assert type(changed) is cls
    for field in fields_of(cls, static=True):
        assert getattr(changed, field.name) == f"static {field.name}"


@each_class
def test_unflatten_restores_instance(cls):
    tree = blank(cls)
    with_paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    leaves = jax.tree.leaves(tree)
    names = [f.name for f in fields_of(cls, static=False)]
    assert [path[0].name for path, _ in with_paths] == names
    again = structure.unflatten(leaves)
    assert jax.tree.structure(again) == structure
    assert [getattr(again, name) is leaf for name, leaf in zip(names, leaves)] == [True] * len(
        names
    )


@each_class
def test_supports_eval_shape_and_vmap_axes(cls):
    tree = blank(cls)
    shapes = jax.eval_shape(lambda x: x, tree)
    assert all(leaf.shape == (2,) for leaf in jax.tree.leaves(shapes))
    axes = jax.tree.map(lambda x: 0, tree)
    mapped = jax.vmap(lambda x: x, in_axes=(axes,), axis_size=2)(tree)
    jax.tree.map(np.testing.assert_array_equal, mapped, tree)
    nothing = jax.tree.map(lambda x: None, tree)
    out = jax.vmap(lambda x, i: i, in_axes=(nothing, 0))(tree, jnp.arange(3))
    np.testing.assert_array_equal(out, np.arange(3))


def pickle_round_trip(tree):
    return pickle.loads(pickle.dumps(tree))  # noqa: S301


@each_class
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle_round_trip])
def test_supports_copy_and_pickle(cls, duplicate):
    tree = blank(cls)
    again = duplicate(tree)
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    jax.tree.map(np.testing.assert_array_equal, again, tree)


RANGED = [
    pytest.param(cls, field.name, found, id=f"{name}.{field.name}")
    for name, cls in CLASSES.items()
    for field in dataclasses.fields(cls)
    if field.init and (found := get_range(field.type)) is not None and math.isfinite(found.low)
]


@pytest.mark.parametrize(("cls", "name", "allowed"), RANGED)
def test_constructor_rejects_values_out_of_range(cls, name, allowed):
    with raises(ValueError, match=rf"`{name}` must"):
        dataclasses.replace(blank_numbers(cls), **{name: allowed.low - 1})


def blank_numbers(cls):
    """Returns :func:`blank` with None, valid for each range, and with one of the choices."""
    instance = blank(cls)
    for field in dataclasses.fields(cls):
        choices = get_choices(field.type)
        if get_range(field.type) is not None or choices:
            object.__setattr__(instance, field.name, choices[0] if choices else None)
    return instance


def test_validates_only_on_construction():
    calls = []

    @pytree_dataclass
    class Parent:
        rate: Annotated[Any, Range(0, 1)] = 0.5

        def __post_init__(self):
            calls.append(self.rate)

    @pytree_dataclass
    class Child(Parent):
        size: int = dataclasses.field(default=3, metadata=STATIC)

    child = Child(0.25)
    assert set(calls) == {0.25}
    n_calls = len(calls)
    assert jax.tree.map(lambda x: x + 1, child) == jax.tree_util.tree_unflatten(
        jax.tree.structure(child), [1.25]
    )
    assert len(calls) == n_calls
    with raises(ValueError, match=r"`rate` must lie in \[0, 1\], got 2\."):
        dataclasses.replace(child, rate=2.0)


def test_traced_values_skip_range_check():
    @pytree_dataclass
    class Scale:
        rate: Annotated[Any, Range(0, 1)] = 0.5

    assert jax.jit(lambda r: Scale(r).rate * 2)(5.0) == 10.0
    assert jax.jit(lambda s: s.rate)(Scale(1)) == 1
