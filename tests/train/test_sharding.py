"""Tables sharded by rows over several devices: training and ranking as on a single device."""

import json
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _helpers import jobs
from _helpers.ranking import fit
from _helpers.refusals import raises
from jax.sharding import Mesh

from crl_jax import losses, metrics, models, samplers, stats, tasks, train
from crl_jax.data import simulate, with_validation
from crl_jax.train import _fit, _sharding

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles", "narrow_blocks")

# Many items: weights by rank are discontinuous at equal scores, and an item that is sampled
# twice for an anchor may get two scores that differ by rounding.
N_USERS, N_ITEMS = 101, 9001
SPLIT = with_validation(
    simulate(n_users=N_USERS, n_items=N_ITEMS, n_exposed=30, seed=3).interactions, valid=0.2
)
SETTINGS = {
    "bpr": {"seeds": np.arange(2), "valid": SPLIT.valid},
    "in the batch": {"loss": losses.info_nce, "sampler": samplers.InBatch()},
    "adam by rows": {"by_rows": True, "weight_decay": None, "valid": SPLIT.valid},
    "adagrad by rows, scores of candidates": {
        "by_rows": True, "weight_decay": None, "rule": train.rows.rowwise_adagrad,
        "sampler": samplers.DNS(3), "init_scale": 0.5,
    },
    "confidence": {
        "confidence": tasks.ConfidenceEM(jnp.full(N_ITEMS, 0.5), stats.VarianceGamma(32, 0.02)),
    },
    "lightgcn and bcl": {
        "encoder": partial(models.LightGCN.from_interactions, dim=8, n_layers=2),
        "loss": losses.bayesian_contrastive, "n_neg": 4,
        "hyperparams": {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.9},
    },
}  # fmt: skip


def mesh_of(**axes):
    devices = np.array(jax.devices()[: np.prod(list(axes.values()))])
    return Mesh(devices.reshape(list(axes.values())), tuple(axes))


LAYOUTS = {
    "by examples and rows": mesh_of(data=2, table=4),
    "by rows": mesh_of(data=1, table=8),
}


def train_with(setting, mesh=None, **more):
    settings = {"batch_size": 64, "epochs": 1, "learning_rate": 1e-2, **setting, **more}
    return fit(SPLIT.train, mesh=mesh, **settings)


class Shapes(train.Callback):
    """Records the global and local shape of each leaf of the training state."""

    def on_report(self, loop):
        self.held = {
            jax.tree_util.keystr(path, simple=True, separator="."): (
                leaf.shape, leaf.addressable_shards[0].data.shape,
            )
            for path, leaf in jax.tree.leaves_with_path(loop.state)
        }  # fmt: skip


@cache
def sharded(name):
    """Trains with sharded examples and rows; returns result, leaf shapes and collective shapes."""
    texts, run_epochs, shapes = [], _fit.run_epochs, Shapes()

    class RunEpochs:
        trace = run_epochs.trace

        def __call__(self, *args, **kwargs):
            if not texts:
                texts.append(run_epochs.lower(*args, **kwargs).compile().as_text())
            return run_epochs(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fit, "run_epochs", RunEpochs())
        fitted = train_with(SETTINGS[name], LAYOUTS["by examples and rows"], hooks=[shapes])
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    found = re.findall(rf"= (.+?) (?:{kinds})(?:-start)?\(", texts[0])
    assert found
    sent = [
        tuple(map(int, shape.split(",")))
        for each in found
        for shape in re.findall(r"\w+\[([\d,]+)\]", each)
    ]
    return fitted, shapes.held, sent


def assert_same(fitted, one):
    for got, want in zip(jax.tree.leaves(fitted.params), jax.tree.leaves(one.params), strict=True):
        assert got.shape == want.shape
        # A thousandth of an Adam step, whose sign is arbitrary if the gradient is near 0.
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    for entry, wanted in zip(fitted.history, one.history, strict=True):
        for name in {"loss", "valid_ndcg@20"} & wanted.keys():
            np.testing.assert_allclose(entry[name], wanted[name], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings(
    "ignore:The distribution of `confidence`"
)  # its test reads the whole tables
@pytest.mark.parametrize("name", ["in the batch", "adam by rows", "confidence", "lightgcn and bcl"])
def test_mesh_matches_single_device(name, unchecked):
    assert_same(sharded(name)[0], train_with(SETTINGS[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bpr", "adam by rows"])
def test_each_device_holds_its_rows(name, unchecked):
    """Tables, their optimiser state and the best tables are sharded; all else is replicated.

    With row updates, over all eight devices, otherwise along the axis of tables.
    """
    parts = {"bpr": 4, "adam by rows": 8}[name]
    fitted, shapes, _ = sharded(name)
    table_shapes = {path: x for path, x in shapes.items() if re.search("users|items", path)}
    assert len(table_shapes) == {"bpr": 8, "adam by rows": 16}[name]
    for path, (whole, held) in table_shapes.items():
        n = 101 if "users" in path else 9001
        full = parts * -(-n // parts)
        assert whole[:2] == (fitted.n_runs, full)
        assert held[:2] == (fitted.n_runs, full // parts)
    for path in shapes.keys() - table_shapes.keys():
        whole, held = shapes[path]
        assert whole == held, path
    assert fitted.get_params()["users"].shape == (101, 32)


def test_large_tables_are_padded_to_tpu_tiles(monkeypatch):
    monkeypatch.setattr(_sharding, "IN_PLACE", 100)
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "table"))
    table = ((jax.tree_util.DictKey("users"),), 801)
    assert _sharding.Sharding(mesh, (table,), spread=True).padded_rows(801) == 808
    monkeypatch.setattr(_sharding, "_platform", lambda mesh: "tpu")
    assert _sharding.Sharding(mesh, (table,), spread=True).padded_rows(801) == 1024
    assert _sharding.Sharding(mesh, (table,), spread=True).padded_rows(799) == 800
    assert _sharding.Sharding(mesh, (table,)).padded_rows(801) == 804
    sharding = _sharding.Sharding(mesh, (table,), spread=True)
    padded = jax.jit(sharding.pad)({"users": jnp.ones((1, 801, 2))})
    assert padded["users"].shape == (1, 1024, 2)
    assert padded["users"].sum() == 2 * 801
    assert jax.jit(sharding.unpad)(padded)["users"].shape == (1, 801, 2)


@pytest.mark.parametrize("name", ["bpr", "in the batch"])
def test_no_table_is_gathered(name, unchecked):
    """Devices send only gradients of their local rows, and the rows that a batch reads."""
    fitted, _, sent = sharded(name)
    assert max(map(np.prod, sent)) <= fitted.n_runs * 32 * -(-N_ITEMS // 4)


def test_propagation_sends_one_shard_at_a_time(unchecked):
    """The local shard with a padding row, and gradients of as many rows as a device holds."""
    _, _, sent = sharded("lightgcn and bcl")
    part = (-(-N_ITEMS // 4) + 1, 8)
    assert part in sent
    assert max(map(np.prod, sent)) == np.prod(part)


def test_row_updates_send_only_rows_of_batch(unchecked):
    """Devices send only the gradients of an anchor's user and two items, not of all local rows."""
    _, _, sent = sharded("adam by rows")
    # Validation gathers the item rows that a device has along the axis of tables.
    part = -(-N_ITEMS // 8)
    valid_shapes = {(256, 80), (128, 80), (128, 32), (256, 32), (32, part), (32, 2 * part)}
    assert max(np.prod(shape) for shape in sent if shape[-2:] not in valid_shapes) <= 2 * 64 * 32


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "name", "first", "second"),
    [
        (train.SharedCheckpoint, "bpr", LAYOUTS["by rows"], LAYOUTS["by examples and rows"]),
        (
            train.Checkpoint, "adagrad by rows, scores of candidates",
            LAYOUTS["by examples and rows"], None,
        ),
    ],
)  # fmt: skip
def test_run_resumes_on_other_devices(kind, name, first, second, tmp_path):
    whole = train_with(SETTINGS[name], epochs=2)
    hooks = [kind(tmp_path / "state", 0.0)]
    with pytest.raises(Interruption):
        train_with(SETTINGS[name], first, epochs=2, hooks=[*hooks, StopAt(1)])
    last = train_with(SETTINGS[name], second, epochs=2, hooks=hooks)
    assert_same(last, whole)
    assert [entry["epoch"] for entry in last.history] == [1, 2]


def test_rejects_damaged_or_mismatched_shared_checkpoint(tmp_path):
    hooks = [train.SharedCheckpoint(tmp_path / "state")]
    train_with({}, hooks=hooks)
    with raises(ValueError, match="belongs to another training"):
        train_with({"n_neg": 2}, hooks=hooks)
    for path in (tmp_path / "state").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    with raises(ValueError, match="state: expected a complete checkpoint, got"):
        train_with({}, hooks=hooks)


@pytest.mark.slow
def test_two_processes_match_single_process():
    """The second has fewer batches than the first: its slots in the last one are masked."""
    port = str(jobs.free_port())
    both = jobs.start([jobs.__file__, str(i), port] for i in range(2))
    one = jobs.train_from_host(0, 1)
    outputs = [job.communicate(timeout=300) for job in both]
    assert [job.returncode for job in both] == [0, 0], outputs
    for stdout, _ in outputs:
        got = json.loads(stdout.splitlines()[-1])
        assert got == pytest.approx(one, rel=1e-5)


class Interruption(Exception):
    pass


class StopAt(train.Callback):
    def __init__(self, epoch):
        self.epoch = epoch

    def on_report(self, loop):
        if loop.epoch == self.epoch:
            raise Interruption


@pytest.mark.parametrize(("layout", "k"), [("by examples and rows", 20), ("by rows", 50)])
def test_rankings_do_not_depend_on_the_devices(layout, k):
    """Bit for bit, with ties across shard boundaries, and users with hardly any items left."""
    mesh = LAYOUTS[layout]
    users, items = np.random.default_rng(0).integers(-2, 3, (2, 97, 4)).astype(np.float32)
    tables = models.Tables(jnp.asarray(users), jnp.asarray(items[:53]))
    log = simulate(n_users=97, n_items=53, n_exposed=30, seed=1).interactions
    split = with_validation(log, valid=0.3)
    plan = metrics.eval_layout(split.train, split.valid, block_size=24)
    evaluate_on = partial(metrics.evaluate, models.inner_scores, tables, plan, ks=(k,))
    jax.tree.map(np.testing.assert_array_equal, evaluate_on(mesh=mesh), evaluate_on())
    recommend_on = partial(
        metrics.recommend, models.inner_scores, tables, np.arange(97), split.train, k=k
    )
    jax.tree.map(np.testing.assert_array_equal, recommend_on(mesh=mesh), recommend_on())
    _, scores = recommend_on(mesh=mesh, recall_target=0.9)  # exact on CPUs, up to the order of ties
    np.testing.assert_array_equal(scores, recommend_on()[1])
