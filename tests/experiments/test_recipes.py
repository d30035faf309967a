"""What flags make of a recipe."""

import pytest

from experiments._recommend import _configure
from experiments.recipes import RECIPES

SEARCH = ["--recipe", "ml-100k-bpr-search"]
OWN = RECIPES["ml-100k-bpr-search"].protocol.sweep


def others(name: str) -> tuple[str, ...]:
    return tuple(spec for spec in OWN if not spec.startswith(f"{name}="))


@pytest.mark.parametrize(
    ("flags", "sweep"),
    [
        ([], OWN),
        (["--sweep", "lr=5e-4,1e-2"], (*others("lr"), "lr=5e-4,1e-2")),
        (["--sweep=decay=0.1,0.3"], (*OWN, "decay=0.1,0.3")),
        (["--weight-decay", "0"], others("weight_decay")),
        (["--weight_decay=0"], others("weight_decay")),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_flags_set_replaces_the_sweep_of_a_recipe(flags, sweep, first):
    config, _, _ = _configure([*SEARCH, *flags] if first else [*flags, *SEARCH])
    assert config.protocol.sweep == sweep
    if "--weight-decay" in flags:
        assert config.training.weight_decay == 0


def test_flags_change_a_recipe():
    name, recipe = next(iter(RECIPES.items()))
    config, _, resumed = _configure(["--recipe", name, "--epochs", "3", "--seeds", "1"])
    assert not resumed
    assert config.objective == recipe.objective
    assert (config.training.epochs, config.protocol.seeds) == (3, 1)
    assert config.training.lr == recipe.training.lr
