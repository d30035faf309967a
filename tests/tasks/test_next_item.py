"""Next-item prediction: batches and losses against loops in NumPy, evaluation and serving."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers.programs import in_one
from _helpers.refusals import raises
from flax import nnx

from crl_jax import data, losses, metrics, models, train
from crl_jax.models import Network, SASRec
from crl_jax.tasks import NextItem

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

N_ITEMS, WINDOW = 9, 4
NET = Network(SASRec(N_ITEMS, width=6, n_layers=1, n_positions=WINDOW, dropout=0.0))
TASK = NextItem(NET, N_ITEMS, WINDOW)
ROWS = jnp.array(
    [[-1, -1, -1, 2, 5, 7], [8, 0, 1, 2, 3, 4], [-1, 6, 0, 3, 8, 1], [-1, -1, -1, -1, -1, 4]]
)
REAL = jnp.array([True, True, False, True])


def batch_of(task, seed=0):
    index = jnp.arange(len(ROWS))
    return in_one(task.batch, jax.random.key(seed), train.Batch(index, ROWS))


def loss_of(task, batch, variables):
    zero = jnp.float32(0)
    ctx = train.StepContext(jax.random.key(1), jnp.int32(0), zero, REAL, jnp.float32(3))
    return in_one(lambda b, v: task.loss(*v, b, ctx)[0], batch, variables)


@pytest.fixture(scope="module")
def variables():
    params, rest = jax.jit(TASK.init)(jax.random.key(0))
    return jax.tree.map(lambda x: 9 * x, params), rest


def anchors(variables):
    """Vector, next item and row of each position of the real users, in float64."""
    inputs = np.asarray(ROWS[:, 1:-1])
    hidden = np.asarray(NET.apply(*variables, jnp.asarray(inputs))[0], np.float64)
    return [
        (hidden[b, t], ROWS[b, 2 + t], b, t)
        for b in range(4) if REAL[b] for t in range(WINDOW) if inputs[b, t] >= 0
    ]  # fmt: skip


def test_window_holds_last_items():
    np.testing.assert_array_equal(batch_of(TASK).items, ROWS[:, 1:])
    np.testing.assert_array_equal(batch_of(replace(TASK, window=9)).items, ROWS)


def test_negatives_are_uniform_over_candidates():
    """Items unseen in the whole sequence, not only in its window."""
    unseen = batch_of(replace(TASK, n_neg=4000)).neg
    other = batch_of(replace(TASK, n_neg=4000, negatives="any")).neg
    assert unseen.shape == other.shape == (4, WINDOW, 4000)
    assert batch_of(replace(TASK, negatives="all")).neg is None
    for b in range(4):
        absent = np.setdiff1d(np.arange(N_ITEMS), ROWS[b])
        for t in range(WINDOW):
            values, counts = np.unique(unseen[b, t], return_counts=True)
            np.testing.assert_array_equal(values, absent)
            assert np.abs(counts / 4000 - 1 / len(absent)).max() < 0.03
            if (target := int(ROWS[b, 2 + t])) >= 0:
                values, counts = np.unique(other[b, t], return_counts=True)
                np.testing.assert_array_equal(values, np.delete(np.arange(N_ITEMS), target))
                assert np.abs(counts / 4000 - 1 / 8).max() < 0.03
    assert not np.array_equal(unseen, batch_of(replace(TASK, n_neg=4000), seed=1).neg)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("negatives", ["unseen", "any"])
def test_sampled_bce_matches_float64_formula(variables, negatives):
    task = replace(TASK, n_neg=3, negatives=negatives)
    batch, items = batch_of(task), np.asarray(variables[0]["item_embedding"], np.float64)
    want = [
        -np.log(sigmoid(h @ items[i])) - np.log(sigmoid(-items[batch.neg[b, t]] @ h)).mean()
        for h, i, b, t in anchors(variables)
    ]
    np.testing.assert_allclose(loss_of(task, batch, variables), np.mean(want), rtol=1e-5)


@pytest.mark.parametrize("tile", [None, 3])
def test_all_negatives_match_full_softmax(variables, tile):
    task = replace(
        TASK, loss_fn=losses.info_nce, hyperparams={"temperature": 0.7}, negatives="all", tile=tile
    )
    items = np.asarray(variables[0]["item_embedding"], np.float64)
    want = []
    for h, i, _, _ in anchors(variables):
        s = items @ h / 0.7
        want.append(np.log(np.exp(s).sum()) - s[i])
    got = loss_of(task, batch_of(task), variables)
    np.testing.assert_allclose(got, np.mean(want), rtol=1e-5)


@pytest.mark.parametrize(
    ("loss", "hyper"),
    [
        (losses.bpr, {}),
        (losses.gbce, {"sampling_rate": 0.25, "calibration": 0.75}),
        (losses.debiased_pairwise, {"tau_plus": 0.1}),
        (losses.bayesian_contrastive, {"tau_plus": 0.1, "beta": 0.7}),
    ],
)
def test_loss_is_mean_over_positions(variables, loss, hyper):
    """The mean of the loss over all positions; all items are the negatives of a tile."""
    items = np.asarray(variables[0]["item_embedding"])
    task = replace(TASK, loss_fn=loss, hyperparams=hyper, n_neg=3)
    batch = batch_of(task)
    own = [(h, i, batch.neg[b, t]) for h, i, b, t in anchors(variables)]
    every = [(h, i, np.delete(np.arange(N_ITEMS), i)) for h, i, _, _ in anchors(variables)]
    for each, found in ((task, own), (replace(task, negatives="all"), every)):
        pos = jnp.float32([h @ items[i] for h, i, _ in found])
        neg = jnp.float32([items[j] @ h for h, _, j in found])
        got = loss_of(each, batch_of(each), variables)
        np.testing.assert_allclose(got, loss(pos, neg, **hyper), rtol=1e-5)


def test_ignores_users_without_unseen_items(variables):
    rows = jnp.array([[*range(N_ITEMS)], [-1] * 7 + [0, 1]])
    batch = in_one(TASK.batch, jax.random.key(0), train.Batch(jnp.arange(2), rows))
    ctx = train.StepContext(
        jax.random.key(1), jnp.int32(0), jnp.float32(0), jnp.ones(2, bool), jnp.float32(2)
    )
    both = TASK.loss(*variables, batch, ctx)[0]
    alone = TASK.loss(*variables, batch, ctx._replace(where=jnp.array([False, True])))[0]
    assert np.isfinite(both)
    np.testing.assert_allclose(both, alone, rtol=1e-6)


HISTORIES = np.array([[-1, -1, -1, -1, 2], [8, 0, 1, 2, 3], [-1, -1, -1, -1, -1]], np.int32)


@pytest.mark.parametrize("exclude_seen", [True, False])
def test_top_k_matches_reference_for_new_histories(variables, exclude_seen):
    values, items = in_one(
        TASK.top_k, *variables, jnp.asarray(HISTORIES), k=N_ITEMS, exclude_seen=exclude_seen
    )
    vectors = np.asarray(variables[0]["item_embedding"])
    for row in range(2):
        window = HISTORIES[row : row + 1, -WINDOW:]
        last = np.asarray(NET.apply(*variables, jnp.asarray(window))[0])[0, -1]
        scores = vectors @ last
        left = np.setdiff1d(np.arange(N_ITEMS), HISTORIES[row] if exclude_seen else [])
        want = left[np.argsort(-scores[left])]
        np.testing.assert_array_equal(items[row][: len(want)], want)
        np.testing.assert_allclose(values[row][: len(want)], scores[want], rtol=1e-4, atol=1e-4)
        assert (items[row][len(want) :] == -1).all()


def test_block_size_does_not_change_tables(variables):
    want = in_one(TASK.tables, *variables, jnp.asarray(HISTORIES))
    got = in_one(TASK.tables, *variables, jnp.asarray(HISTORIES), block_size=2)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), got, want)


def test_training_learns_item_transitions():
    """Popularity does not reveal them; the history of a user determines the next item."""
    log = data.simulate_sequences(n_users=300, n_items=30, length=10, noise=0.0)
    split = data.leave_one_out(data.item_sequences(log))
    task = NextItem(
        Network(SASRec(30, width=16, n_layers=1, n_positions=7, dropout=0.0)), 30, 7,
        losses.info_nce, negatives="all",
    )  # fmt: skip
    fitted = train.fit(
        task, train.Optimizer(5e-3), train.ArrayBatches(jnp.asarray(split.train)),
        train.TrainConfig(64), epochs=20, seeds=0,
    )  # fmt: skip
    state = jax.tree.map(lambda x: x[0], fitted.state.model_state)
    tables = task.tables(fitted.get_params(), state, jnp.asarray(split.test_histories))
    n = len(split.users)
    test = data.Interactions.from_arrays(
        np.arange(n), split.test_items, user_ids=np.arange(n), item_ids=np.arange(30)
    )
    nothing = test.select(np.zeros(n, bool))
    layout = metrics.eval_layout(nothing, test)
    found = metrics.summarize(metrics.evaluate(models.inner_scores, tables, layout, ks=(1,)))
    assert found["recall@1"] > 0.9


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((2, 3)), r"`data` must be integers \[n, width\]"),
        (np.zeros(3, int), r"`data` must be integers \[n, width\]"),
        ([[1, 2]], r"`data` must be integers \[n, width\], got list"),
        (np.array([[3, 9]]), "`data` must have items below `n_items` 9, got 9"),
        (np.array([[-1, 3], [3, -1]]), "`data` must have padding on the left of the items alone"),
        (np.array([[-1, 3], [-1, -1]]), "`data` must have a sequence of two items or more"),
    ],
)
def test_check_data_rejects_invalid_sequences(rows, message):
    with raises(ValueError, match=message):
        TASK.check_data(rows)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[1, 50]]), f"items below `n_items` {N_ITEMS}, got 50"),
        (np.array([[1, -1]]), "padding on the left of the items alone"),
        (np.array([1, 2]), "must be integers"),
        (np.array([[1.0, 2.0]]), "must be integers"),
    ],
)
def test_top_k_rejects_invalid_histories(variables, rows, message):
    with raises(ValueError, match=f"`histories` .*{message}"):
        TASK.top_k(*variables, rows, 3)


def test_top_k_accepts_empty_histories(variables):
    scores, items = TASK.top_k(*variables, jnp.zeros((0, 3), jnp.int32), 3)
    assert scores.shape == items.shape == (0, 3)


def test_rejects_invalid_arguments():
    with raises(ValueError, match="`network` must be a models.Network"):
        NextItem(nnx.Linear, 5)
    with raises(ValueError, match="`negatives` must be one of unseen, any, all, got 'some'"):
        replace(TASK, negatives="some")
    with raises(ValueError, match="`n_items` must be 9, the number of items of the network, got 8"):
        replace(TASK, n_items=8).tables(*TASK.init(jax.random.key(0)), jnp.asarray(HISTORIES))
