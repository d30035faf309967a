"""Error messages of training for arguments of the wrong kind, before anything is compiled."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import optax
import pytest
from _helpers.ranking import split
from _helpers.refusals import raises
from _helpers.views import LINEAR

from crl_jax import losses, models, samplers, tasks, train
from crl_jax.data import Split
from crl_jax.samplers import sample_unseen

pytestmark = pytest.mark.usefixtures("standard_promotion")


@dataclasses.dataclass(frozen=True)
class Unregistered(samplers.Sampler):
    def propose(self, key, users, positives, n):
        return sample_unseen(key, users, positives, n)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Double(samplers.Sampler):
    """Returns twice as many items as requested."""

    def propose(self, key, users, positives, n):
        return sample_unseen(key, users, positives, 2 * n)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stateless(samplers.Sampler):
    def propose(self, key, users, positives, n):
        return sample_unseen(key, users, positives, n)

    def select(self, proposals, batch, state):
        return proposals


@dataclasses.dataclass(frozen=True)
class Plain(models.MatrixFactorization):
    """An encoder that is not a pytree."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pair(models.MatrixFactorization):
    def encode(self, params, key=None):
        return params["users"], params["items"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uneven(models.MatrixFactorization):
    def encode(self, params, key=None):
        return models.Tables(params["users"], params["items"][:, :3])


def mean_alone(pos, neg, *, reduce_fn=None):
    return jnp.mean(neg - pos[:, None])


def without_where(pos, neg, *, reduce_fn=None):
    return jnp.mean(neg, axis=-1) - pos


INVALID_ARGUMENTS = {
    "a whole split": (
        {"train": Split(split().train, split().valid, None)},
        "`train` must be Interactions, such as the `train` of a split, got Split",
    ),
    "no seed": ({"seeds": []}, "`seeds` must have at least one value, got none"),
    "no value of a sweep": (
        {"sweep": {"optimizer.learning_rate": []}},
        "`learning_rate` must have at least one value, got none",
    ),
    "a name of a loss": ({"loss": "bpr"}, "`loss` must be a function of scores.*got 'bpr'"),
    "a mean": (
        {"loss": mean_alone},
        r"`loss` must return one number per anchor with `reduce_fn=None`.*got \(\)",
    ),
    "a loss that wants a group": (
        {"loss": functools.partial(losses.gbpr, rho=0.4)},
        "`hyperparams` must hold group, required by `loss`, got \\[\\]",
    ),
    "a loss without its noise distribution": (
        {"loss": losses.nce},
        "`hyperparams` must hold neg_log_noise, pos_log_noise, required by `loss`",
    ),
    "a loss without a mask, in the batch": (
        {"loss": without_where, "sampler": samplers.InBatch()},
        "`loss` must accept a `where` mask with InBatch",
    ),
    "a name of a sampler": ({"sampler": "rns"}, "`sampler` must be a sampler.*got 'rns'"),
    "a class of samplers": ({"sampler": samplers.RNS}, "`sampler` must .*got the class RNS"),
    "an unregistered sampler": (
        {"sampler": Unregistered()},
        "`sampler` must be a pytree: decorate it with @crl_jax.pytree_dataclass, got Unregistered",
    ),
    "too many negatives": (
        {"sampler": Double(), "n_neg": 3},
        r"must return `n_neg` = 3 items for each of 64 anchors, got \(64, 6\) from Double",
    ),
    "negatives without a state": (
        {"sampler": Stateless()},
        "`select` of Stateless must return ids and a state",
    ),
    "a name of an encoder": ({"encoder": "mf"}, "`encoder` must be an encoder.*got 'mf'"),
    "a class of encoders": (
        {"encoder": models.MatrixFactorization},
        "`encoder` must .*got the class MatrixFactorization",
    ),
    "an unregistered encoder": (
        {"encoder": Plain(60, 80)},
        "`encoder` must be a pytree: decorate it with @crl_jax.pytree_dataclass, got Plain",
    ),
    "a pair for tables": (
        {"encoder": Pair(60, 80)},
        "`encode` of Pair must return Tables of 60 users and 80 items.*got tuple",
    ),
    "tables of two widths": (
        {"encoder": Uneven(60, 80)},
        r"`encode` of Uneven must return Tables.*with one width, got \(\(60, 32\), \(80, 3\)\)",
    ),
    "a size for a plan": ({"config": 256}, "`config` must be a train.TrainConfig, got 256"),
    "a dictionary of options": (
        {"options": {"n_pos": 1}},
        "`options` must be a tasks.RankingOptions, got dict",
    ),
    "a number for a stopping": ({"stopping": 5}, "`stopping` must be a tasks.Stopping, got 5"),
    "a sweep without its part": (
        {"sweep": {"learning_rate": [0.1]}},
        "`sweep` must name .*got 'learning_rate'",
    ),
    "a rate for an optimiser": (
        {"optimizer": 1e-3},
        "`optimizer` must be a train.Optimizer, train.RowOptimizer or Optax optimizer, got 0.001",
    ),
}


@pytest.mark.parametrize(("changes", "message"), INVALID_ARGUMENTS.values(), ids=INVALID_ARGUMENTS)
def test_fit_ranking_rejects_arguments_of_wrong_type(changes, message):
    given = {"train": split().train, "loss": losses.bpr, "config": train.TrainConfig(64), **changes}
    with raises(ValueError, match=message):
        tasks.fit_ranking(given.pop("train"), epochs=1, **given)


def test_accepts_optax_optimizer():
    fitted = tasks.fit_ranking(split().train, loss=losses.bpr, optimizer=optax.sgd(0.1), epochs=1)
    assert jnp.isfinite(fitted.history[0]["loss"][0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_pos": -1}, "`n_pos` must be"),
        ({"n_pos": 1, "n_group": 1}, "`n_group` must be 0 with extra positives"),
        ({"anchors": "items"}, "`anchors` must be one of interactions, users, got 'items'"),
        ({"l2_target": "table"}, "`l2_target` must be one of tables, rows, encoded, got 'table'"),
        ({"auxiliary_loss": "sgl"}, "`auxiliary_loss` must be an AuxiliaryLoss, such as .*'sgl'"),
    ],
)
def test_options_reject_invalid_fields(fields, message):
    with raises(ValueError, match=message):
        tasks.RankingOptions(**fields)


@pytest.mark.parametrize("field", ["patience", "k"])
def test_stopping_rejects_invalid_fields(field):
    with raises(ValueError, match=f"`{field}` must be"):
        tasks.Stopping(**{field: 0})


def test_bpr_rejects_scores_without_negatives_axis():
    with raises(ValueError, match="`neg` must have one axis more than `pos`"):
        losses.bpr(jnp.zeros(4), jnp.zeros(4))


def identity(key, example):
    return example


TASKS = {
    "SimCLR": lambda **given: tasks.SimCLR(LINEAR, identity, **given),
    "MoCo": lambda **given: tasks.MoCo(LINEAR, identity, **given),
    "SupCon": lambda **given: tasks.SupCon(LINEAR, identity, **given),
    "CLIP": lambda **given: tasks.CLIP(LINEAR, LINEAR, **given),
}


@pytest.mark.parametrize("make", TASKS.values(), ids=TASKS)
@pytest.mark.parametrize(
    ("hyperparams", "message"),
    [
        ({"temperature": -0.2}, "`temperature` must lie in"),
        ({"temperature": None}, "`temperature` must be a number"),
        ({"temprature": 0.2}, "`hyperparams` must hold arguments of the loss.*got 'temprature'"),
    ],
)
def test_tasks_reject_invalid_hyperparameters(make, hyperparams, message):
    with raises(ValueError, match=message):
        make(hyperparams=hyperparams)


def test_static_arguments_must_be_bound_with_partial():
    binned = functools.partial(losses.bayesian_contrastive, bins=16)
    tasks.SimCLR(LINEAR, identity, {"tau_plus": 0.1}, binned)
    with raises(ValueError, match="`hyperparams` must hold numbers.*got bins=16.*partial"):
        tasks.SimCLR(LINEAR, identity, {"bins": 16}, losses.bayesian_contrastive)
    with raises(ValueError, match="`hyperparams` must hold numbers.*got bins=16.*partial"):
        tasks.fit_ranking(
            split().train, loss=losses.bayesian_contrastive, hyperparams={"bins": 16}, epochs=1
        )


def test_rejects_swept_hyperparameters_out_of_range():
    task = tasks.SimCLR(
        LINEAR, identity, {"tau_plus": 0.1, "temperature": 0.5}, losses.debiased_contrastive
    )
    with raises(ValueError, match="`tau_plus` must lie in"):
        train.fit(
            task, train.Optimizer(1e-3), train.ArrayBatches(jnp.ones((8, 6))), train.TrainConfig(4),
            epochs=1, sweep={"task.hyperparams.tau_plus": [0.1, -1.0]},
        )  # fmt: skip
