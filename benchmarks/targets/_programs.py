"""The programs: losses, samplers, trainings, evaluation and serving, by group."""

import dataclasses
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from crl_jax import augment, data, losses, metrics, models, samplers, stats, tasks, train

from ._registry import PROGRAMS as PROGRAMS
from ._registry import (
    Case,
    Deferred,
    FirstBatches,
    function_case,
    program,
    shape,
    training_case,
)

WIDTH = 128
"""Dimension of the embeddings of the losses."""
TPUS = ("v5e-1", "v6e-1")
"""Targets of the programs with Pallas kernels."""
STEPS = 16
"""Steps of the trainings of networks: the first ones of an epoch."""

# Losses of two views and of two towers: values and gradients.

LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "infonce": (losses.info_nce, {}),
    "dcl": (losses.debiased_contrastive, {"tau_plus": 0.1}),
    "hcl": (losses.hard_contrastive, {"tau_plus": 0.1, "beta": 0.5}),
    "bcl": (losses.bayesian_contrastive, {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.9}),
    "bcl-bins": (
        partial(losses.bayesian_contrastive, bins=128),
        {"tau_plus": 0.1, "alpha": 0.9, "beta": 0.9},
    ),
}


def loss_case(mesh: Mesh | None, name: str, batch: int, kind: str) -> Case:
    """Value and gradient of a loss of ``batch`` pairs: all scores at once, in tiles, or fused."""
    loss, hyperparams = LOSSES[name]

    def value(x: Any, y: Any) -> Any:
        x, y = losses.normalize(x), losses.normalize(y)
        axis = None if mesh is None else "data"
        if kind in ("tiled", "fused"):
            total = losses.tiled_view_loss if kind == "tiled" else losses.fused_view_loss
            return total(loss, x, y, temperature=0.5, axis_name=axis, **hyperparams)
        if kind == "towers":
            tiled = losses.tiled_tower_loss
            return tiled(loss, x, y, temperature=0.07, axis_name=axis, **hyperparams)
        scores = losses.view_scores(x, y)
        return loss(scores.pos, scores.neg, where=scores.where, temperature=0.5, **hyperparams)

    if mesh is None:
        vectors, total = shape(batch, WIDTH), value
    else:
        spec = PartitionSpec("data")
        vectors = shape(batch, WIDTH, sharding=NamedSharding(mesh, spec))
        total = jax.shard_map(value, mesh=mesh, in_specs=spec, out_specs=PartitionSpec())
    return function_case(jax.value_and_grad(total, (0, 1)), vectors, vectors)


def catalogue_case(mesh: Mesh | None, batch: int, n_items: int) -> Case:
    """Value and gradient of the full softmax over a catalogue, in tiles."""
    del mesh

    def value(x: Any, items: Any, targets: Any) -> Any:
        return losses.tiled_catalogue_loss(losses.info_nce, x, items, targets)

    gradient = jax.value_and_grad(value, (0, 1))
    targets = shape(batch, dtype=jnp.int32)
    return function_case(gradient, shape(batch, 64), shape(n_items, 64), targets)


def _losses() -> None:
    quick = {("infonce", 1024), ("bcl", 1024)}
    for name in LOSSES:
        for batch in (1024,) if name in ("dcl", "hcl", "bcl-bins") else (1024, 4096):
            program(
                f"loss/{name}/{batch}", partial(loss_case, name=name, batch=batch, kind="whole"),
                quick=(name, batch) in quick, family=f"loss/{name}", batch=batch, growth=2,
            )  # fmt: skip
    for name, batches in {
        "infonce": (8192, 65536), "hcl": (8192,), "bcl": (8192,), "bcl-bins": (8192, 65536),
    }.items():  # fmt: skip
        for batch in batches:
            program(
                f"tiled/{name}/{batch}", partial(loss_case, name=name, batch=batch, kind="tiled"),
                quick=batch == 8192 and name in ("infonce", "bcl-bins"), family=f"tiled/{name}",
                batch=batch,
            )  # fmt: skip
    for name, batch in (("infonce", 8192), ("bcl-bins", 8192), ("bcl-bins", 65536)):
        make = partial(loss_case, name=name, batch=batch, kind="fused")
        program(f"fused/{name}/{batch}", make, targets=TPUS)
    program("towers/infonce/8192", partial(loss_case, name="infonce", batch=8192, kind="towers"))
    program("catalogue/infonce/8192x41k", partial(catalogue_case, batch=8192, n_items=40_981))
    for name, batch in (("infonce", 65536), ("bcl-bins", 65536), ("infonce", 2**20)):
        program(
            f"mesh/tiled/{name}/{batch}",
            partial(loss_case, name=name, batch=batch, kind="tiled"),
            quick=(name, batch) == ("infonce", 65536), axes=("data",),
        )  # fmt: skip


# Ranks and distributions of scores.


def _statistics() -> None:
    for rows, n in ((256, 2048), (256, 4096), (64, 16384)):
        program(
            f"ranks/{rows}x{n}", lambda _, r=rows, n=n: function_case(stats.ranks, shape(r, n)),
            quick=n == 4096,
        )  # fmt: skip
    binned = partial(stats.binned_ranks, bins=128)
    program("ranks/binned/256x4096", lambda _: function_case(binned, shape(256, 4096)), quick=True)
    program("ecdf/256x4096", lambda _: function_case(stats.ecdf, shape(256, 4096)))
    cdf = partial(stats.variance_gamma_cdf, dim=64)
    program("variance-gamma/cdf/1M", lambda _: function_case(cdf, shape(2**20)))
    for name, dataset, distribution, rule in (
        ("variance-gamma/ml-100k", "ml-100k", stats.VarianceGamma(27, 0.6), "density"),
        ("smoothed/gowalla", "gowalla", stats.SmoothedEmpirical(), "posterior"),
    ):
        program(
            f"em/{name}", partial(em_case, name=dataset, distribution=distribution, rule=rule),
            quick=dataset == "ml-100k",
        )  # fmt: skip


def em_case(mesh: Mesh | None, name: str, distribution: Any, rule: Any) -> Case:
    """Expectation step of BPRAC over all interactions."""
    del mesh
    log = interactions(name)
    encoder = models.MatrixFactorization(log.n_users, log.n_items, 27)
    em = tasks.ConfidenceEM(np.full(log.n_items, 0.9, np.float32), distribution, rule=rule)
    tables = models.Tables(shape(log.n_users, 27), shape(log.n_items, 27))

    def estimate(key: Any, tables: Any, users: Any, items: Any) -> Any:
        return em.estimate(key, encoder, tables, users, items)

    ids = (np.asarray(x, np.int32) for x in (log.users, log.items))
    return function_case(estimate, jax.random.key(0), tables, *ids)


# Recommenders.

SIZES = {"ml-100k": (943, 1682, 80_000), "gowalla": (29_858, 40_981, 810_128)}
"""Users, items and training interactions of the simulated logs."""


@cache
def interactions(name: str) -> data.Interactions:
    """Returns a log of the size of a dataset, with popular items and active users."""
    n_users, n_items, n = SIZES[name]
    rng = np.random.default_rng(0)
    shares = [(1 + np.arange(size)) ** -0.6 for size in (n_users, n_items)]
    users, items = (rng.choice(len(p), 2 * n, p=p / p.sum()) for p in shares)
    pairs = rng.permutation(np.unique(users.astype(np.int64) * n_items + items))[:n]
    ids = {"user_ids": np.arange(n_users), "item_ids": np.arange(n_items)}
    return data.Interactions.from_arrays(pairs // n_items, pairs % n_items, **ids)


RANKING: dict[str, dict[str, Any]] = {
    "bpr": {"loss": losses.bpr},
    "dpl": {
        "loss": losses.debiased_pairwise, "n_neg": 5, "n_pos": 5, "hyperparams": {"tau_plus": 0.05},
    },
    "infonce": {"loss": losses.info_nce, "n_neg": 20, "hyperparams": {"temperature": 1.0}},
    "bcl": {
        "loss": losses.bayesian_contrastive, "n_neg": 20,
        "hyperparams": {"temperature": 1.0, "tau_plus": 0.05, "alpha": 0.9, "beta": 0.7},
    },
    "varbpr": {"loss": losses.variational_bpr, "n_neg": 4, "hyperparams": {"neg_hardness": 1.0}},
}  # fmt: skip


def ranking_case(
    mesh: Mesh | None, name: str, loss: str = "bpr", batch: int = 2048, layout: Any = None,
    sampler: Any = None, rows: Any = None, with_features: bool = False,
) -> Case:  # fmt: skip
    """An epoch of a recommender: matrix factorisation, LightGCN with a ``layout``, or features."""
    log = interactions(name)

    fields: Any = RANKING[loss] | ({} if rows is None else {"l2_target": "rows"})
    task = tasks.Ranking.from_interactions(
        log,
        encoder=features(log)
        if with_features
        else models.MatrixFactorization(log.n_users, log.n_items, 64),
        sampler=None if sampler is None else sampler(log),
        **fields,
    )
    if layout is not None:
        # The dense adjacency matrix has gigabytes: only its shape is needed to compile.
        encoder = Deferred(partial(models.LightGCN.from_interactions, log, 64, 3, layout=layout))
        task = dataclasses.replace(task, encoder=encoder)
    optimizer = train.Optimizer(1e-3) if rows is None else train.RowOptimizer(1e-3, rule=rows)
    return training_case(task, optimizer, train.ArrayBatches(task.seen), batch, mesh)


def search_case(mesh: Mesh | None, loss: str) -> Case:
    """An epoch of a search: eight temperatures with five seeds, as the 40 runs of a program."""
    log = interactions("ml-100k")
    encoder = models.MatrixFactorization(log.n_users, log.n_items, 128, similarity="cosine")
    shared: Any = RANKING[loss] | {"n_neg": 128}
    task = tasks.Ranking.from_interactions(
        log, encoder=encoder, sampler=samplers.SharedRNS(), l2_target="rows", **shared
    )
    temperatures = np.repeat(np.linspace(0.1, 0.8, 8, dtype=np.float32), 5)
    return training_case(
        task, train.Optimizer(1e-3), train.ArrayBatches(task.seen), 1024, mesh,
        sweep={"task.hyperparams.temperature": temperatures},
    )  # fmt: skip


def features(log: data.Interactions) -> models.FeatureEncoder:
    """Returns an encoder of items with a number and up to three of 18 categories."""
    rng = np.random.default_rng(0)
    years = rng.integers(1930, 2000, log.n_items)
    genres = [[f"g{g}" for g in set(rng.integers(0, 18, 3))] for _ in range(log.n_items)]
    table = data.FeatureTable.from_columns(log.item_ids, {"year": years, "genres": genres})
    items = data.FeatureSchema.fit(table, log.item_ids).transform(table, log.item_ids)
    return models.FeatureEncoder(
        log.n_users, log.n_items, 64, item_features=items, item_id_dropout=0.5
    )


def _prior(log: data.Interactions) -> np.ndarray:
    return np.full(log.n_items, 0.01, np.float32)


SAMPLERS: dict[str, Any] = {
    "pns": samplers.PNS.from_interactions,
    "dns": lambda log: samplers.DNS(),
    "aobpr": lambda log: samplers.AOBPR(),
    "srns": lambda log: samplers.SRNS(),
    "shared": lambda log: samplers.SharedRNS(),
    "in-batch": samplers.InBatch.from_interactions,
    "bns": lambda log: samplers.BNS(_prior(log)),
    "bns-64": lambda log: samplers.BNS(_prior(log), ecdf_samples=64),
}


def _recommenders() -> None:
    for loss in RANKING:
        program(
            f"mf/gowalla/{loss}", partial(ranking_case, name="gowalla", loss=loss),
            quick=loss == "bpr",
        )  # fmt: skip
    program("mf/ml-100k/bpr", partial(ranking_case, name="ml-100k", batch=1024))
    make = partial(ranking_case, name="ml-100k", batch=1024, with_features=True)
    program("features/ml-100k/bpr", make)
    for negatives in ("unseen", "all"):
        program(f"sequences/sasrec/{negatives}/128", partial(sequences_case, negatives=negatives))
    program(
        "mf/gowalla/bns-64",
        partial(ranking_case, name="gowalla", sampler=SAMPLERS["bns-64"]),
    )
    for loss in ("infonce", "bcl"):
        program(f"search/ml-100k/{loss}/40", partial(search_case, loss=loss))
    for name, sampler in SAMPLERS.items():
        program(
            f"sampler/ml-100k/{name}",
            partial(ranking_case, name="ml-100k", batch=1024, sampler=sampler),
            quick=name == "bns",
        )
    for rule in ("adam", "sgd", "rowwise_adagrad"):
        make = partial(ranking_case, name="gowalla", rows=getattr(train.rows, rule))
        program(f"rows/gowalla/{rule}", make, quick=rule == "adam")
    for dim in (64, 128):
        program(
            f"rows/2M+200k/{dim}",
            partial(large_case, n_users=2_000_000, n_items=200_000, dim=dim),
        )
    for layout in ("rows", "dense"):
        program(f"lightgcn/gowalla/{layout}", partial(ranking_case, name="gowalla", layout=layout))
    bits = partial(ranking_case, name="gowalla", layout="bits")
    program("lightgcn/gowalla/bits", bits, targets=TPUS)
    program("lightgcn/ml-100k/dense", partial(ranking_case, name="ml-100k", layout="dense"))
    for axes in (("table",), ("data", "table")):
        make = partial(large_case, n_users=10_000_000, n_items=1_000_000, dim=64)
        name = "+".join(axes)
        program(f"mesh/rows/10M+1M/{name}", make, axes=axes, quick=len(axes) == 1)
        make = partial(large_case, n_users=100_000_000, n_items=10_000_000, dim=64)
        program(f"mesh/rows/100M+10M/{name}", make, axes=axes, targets=("v5e-64",))
    make = partial(large_case, n_users=1_000_000, n_items=1_000_000, dim=64, is_dense=True)
    program("mesh/dense/1M+1M/table", make, axes=("table",))


def large_case(
    mesh: Mesh | None, n_users: int, n_items: int, dim: int, is_dense: bool = False
) -> Case:
    """Steps of BPR on large tables, with 2²⁰ interactions and batches of 8,192."""
    n = 2**20
    small = tasks.Ranking.from_interactions(
        interactions("ml-100k"), loss=losses.bpr, l2_target="tables" if is_dense else "rows"
    )
    rng = np.random.default_rng(0)
    users, items = (rng.integers(0, size, n, dtype=np.int32) for size in (n_users, n_items))
    indptr: Any = shape(n_users + 1, dtype=jnp.int32)
    if n_users <= 10**7:
        indptr = np.searchsorted(np.sort(users), np.arange(n_users + 1)).astype(np.int32)
    positives = dataclasses.replace(
        small.positives, indptr=indptr, items=items, gaps=items, n_items=n_items, rounds=5
    )
    encoder = models.MatrixFactorization(n_users, n_items, dim)
    seen = tasks.PairBatch(users, items)  # type: ignore[arg-type]
    task = dataclasses.replace(small, encoder=encoder, positives=positives, seen=seen)
    optimizer = train.Optimizer(1e-3) if is_dense else train.RowOptimizer(1e-3)
    return training_case(task, optimizer, train.ArrayBatches(seen), 8192, mesh)


def sequences_case(mesh: Mesh | None, negatives: Any) -> Case:
    """Steps of SASRec on the size of MovieLens 1M, with one negative or all items."""
    n_items = 3_416
    task = tasks.NextItem(
        models.Network(models.SASRec(n_items, width=64, n_layers=2, n_positions=200)), n_items,
        loss_fn=losses.bce if negatives == "unseen" else losses.info_nce, negatives=negatives,
    )  # fmt: skip
    batches = FirstBatches(shape(6_040, 201, dtype=jnp.int32), n_steps=STEPS)
    return training_case(task, train.Optimizer(1e-3), batches, 128, mesh)


# Evaluation and serving.


def evaluation_case(mesh: Mesh | None, name: str, auc: bool) -> Case:
    """Ranking metrics of all users over the full catalogue."""
    del mesh
    split = data.split_by_ratio(interactions(name), test=0.2)
    layout = metrics.eval_layout(split.train, split.test)
    tables = models.Tables(*(shape(n, 64) for n in SIZES[name][:2]))
    evaluate = partial(metrics.evaluate, models.inner_scores, ks=(5, 10, 20), auc=auc)
    return function_case(evaluate, tables, layout)


def serving_case(mesh: Mesh | None, n_items: int) -> Case:
    """Top 20 of a catalogue for 64 users."""
    del mesh

    def best(users: Any, items: Any) -> Any:
        scores = models.inner_scores(models.Tables(users, items), jnp.arange(len(users)))
        return metrics.top_k(scores, 20)

    return function_case(best, shape(64, 64), shape(n_items, 64))


def probe_case(mesh: Mesh | None, name: str) -> Case:
    """Evaluation of 50,000 + 10,000 representations of width 512 by labels."""
    del mesh
    rng = np.random.default_rng(0)
    train_labels, labels = (rng.integers(0, 10, n, dtype=np.int32) for n in (50_000, 10_000))

    def evaluate(bank: Any, bank_labels: Any, queries: Any, labels: Any) -> Any:
        if name == "knn":
            return metrics.knn_accuracy(queries, labels, bank, bank_labels, n_classes=10)
        return metrics.linear_probe(
            bank, bank_labels, queries, labels, n_classes=10, key=jax.random.key(0)
        ).accuracy

    return function_case(evaluate, shape(50_000, 512), train_labels, shape(10_000, 512), labels)


def _evaluation() -> None:
    for auc in (False, True):
        program(
            f"evaluate/gowalla{'/auc' if auc else ''}",
            partial(evaluation_case, name="gowalla", auc=auc), quick=not auc,
        )  # fmt: skip
    top_k = partial(metrics.top_k, k=20)
    program("top-k/64x40981", lambda _: function_case(top_k, shape(64, 40_981)), quick=True)
    for n, text in ((40_981, "41k"), (1_000_000, "1M")):
        program(f"serve/{text}", partial(serving_case, n_items=n), quick=n > 10**5)
    program("probe/knn", partial(probe_case, name="knn"))
    make = partial(probe_case, name="linear")
    program("probe/linear", make, targets=("t4", "h100", "v5e-1"))


# Images, graphs, texts and pairs.


def resnet(depth: int) -> Any:
    """Returns a network with SimCLR's projection head."""
    return models.Network(models.BackboneWithHead(models.ResNet(depth), models.Projection()))


def images_case(
    mesh: Mesh | None, method: Any = tasks.SimCLR, depth: int = 18, batch: int = 256,
    dtype: str | None = None, loss: str = "infonce",
) -> Case:  # fmt: skip
    """Steps of SimCLR, MoCo or SogCLR on images of CIFAR-10's size."""
    loss_fn, hyperparams = LOSSES.get(loss, (losses.global_contrastive, {}))
    task = method(
        resnet(depth), augment.ImageAugmentation.cifar10(), {"temperature": 0.5, **hyperparams},
        loss_fn,
    )  # fmt: skip
    batches = FirstBatches(shape(50_000, 32, 32, 3, dtype=jnp.uint8), n_steps=STEPS)
    return training_case(task, train.Optimizer(1e-3), batches, batch, mesh, compute_dtype=dtype)


def represent_case(mesh: Mesh | None) -> Case:
    """Representations of 10,000 images by a ResNet-18."""
    del mesh
    task = tasks.SimCLR(resnet(18), augment.ImageAugmentation.cifar10(), {"temperature": 0.5})
    init = Deferred(task.init, (jax.random.key(0),))

    def represent(state: Any, images: Any) -> Any:
        params, model_state = state
        return task.represent(params, model_state, images)

    return function_case(represent, init, shape(10_000, 32, 32, 3, dtype=jnp.uint8))


def augmentation_case(mesh: Mesh | None) -> Case:
    """A view of each of 256 images."""
    del mesh
    keys = jax.random.split(jax.random.key(0), 256)
    views = jax.vmap(augment.ImageAugmentation.cifar10())
    return function_case(views, keys, shape(256, 32, 32, 3, dtype=jnp.uint8))


@cache
def proteins() -> models.GraphArrays:
    """Returns graphs of the number and the mean size of PROTEINS."""
    rng = np.random.default_rng(0)
    sizes = rng.geometric(1 / 36, 1113) + 3
    edges = []
    for size in sizes:
        pairs = np.sort(rng.integers(0, size, (2 * size, 2)), axis=1)
        edges.append(np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0))
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    ends = np.concatenate(([0], np.cumsum([len(pairs) for pairs in edges]))).astype(np.int32)
    features = np.eye(3, dtype=np.uint8)[rng.integers(0, 3, offsets[-1])]
    labels = rng.integers(0, 2, len(sizes)).astype(np.int32)
    graphs = data.Graphs(
        offsets, ends, np.concatenate(edges).T.astype(np.int32), features, labels, ("a", "b")
    )
    return models.GraphArrays.from_graphs(graphs)


def graphs_case(mesh: Mesh | None) -> Case:
    """An epoch of GraphCL with a GIN."""
    arrays = proteins()
    head = models.Projection((96, 96), norm=False)
    network = models.Network(models.BackboneWithHead(models.GIN(3), head))
    task = tasks.SimCLR(network, augment.GraphAugmentation(arrays), {"temperature": 0.5})
    batches = train.ArrayBatches(jnp.arange(len(arrays.node_offsets) - 1, dtype=jnp.int32))
    return training_case(task, train.Optimizer(1e-3), batches, 128, mesh)


def tokens(n: int, length: int, vocabulary: int) -> data.Tokens:
    """Returns random texts without padding."""
    ids = np.random.default_rng(0).integers(0, vocabulary, (n, length), dtype=np.int32)
    return data.Tokens(ids, np.ones((n, length), bool))


def text_case(mesh: Mesh | None, n_layers: int, batch: int, dtype: str | None) -> Case:
    """Steps of SimCSE with a BERT of the width of BERT base."""
    head = models.Projection((768,), norm=False)
    bert = models.BERT(vocab_size=21_128, n_layers=n_layers)
    network = models.Network(models.BackboneWithHead(bert, head))
    task = tasks.SimCLR(network, unchanged, {"temperature": 0.05})
    batches = FirstBatches(tokens(20_000, 64, 21_128), n_steps=STEPS)
    return training_case(task, train.Optimizer(3e-5), batches, batch, mesh, compute_dtype=dtype)


def unchanged(key: Any, example: Any) -> Any:
    """Returns the example: dropout makes the two views of SimCSE."""
    del key
    return example


def pairs_case(mesh: Mesh | None, batch: int, dtype: str | None = None) -> Case:
    """Steps of CLIP with a ResNet-18 and a BERT of three layers."""
    head = models.Projection((256,), norm=False, last_bias=False)
    task = tasks.CLIP(
        models.Network(models.BackboneWithHead(models.ResNet(18), head)),
        models.Network(models.BackboneWithHead(models.BERT(n_layers=3), head)),
        augment_first=augment.ImageAugmentation(size=64),
    )
    pairs = shape(6000, 80, 80, 3, dtype=jnp.uint8), tokens(6000, 32, 30_522)
    batches = FirstBatches(pairs, n_steps=STEPS)
    return training_case(task, train.Optimizer(1e-3), batches, batch, mesh, compute_dtype=dtype)


def _networks() -> None:
    # Networks take a compiler for a TPU minutes: each is compiled for few targets.
    common_targets = ("t4", "h100", "v5e-1", "v6e-1")
    for dtype, batch, targets in (
        ("float32", 256, common_targets), ("float32", 1024, ("t4", "h100")),
        ("bfloat16", 256, ()), ("bfloat16", 1024, common_targets),
    ):  # fmt: skip
        program(
            f"simclr/resnet18/{dtype}/{batch}", partial(images_case, batch=batch, dtype=dtype),
            family=f"simclr/resnet18/{dtype}", batch=batch, targets=targets,
        )  # fmt: skip
    for dtype, targets in (("float32", ("h100",)), ("bfloat16", ("h100", "v5e-1"))):
        make = partial(images_case, depth=50, dtype=dtype)
        program(f"simclr/resnet50/{dtype}/256", make, targets=targets)
    make = partial(images_case, method=tasks.MoCo, dtype="bfloat16")
    program("moco/resnet18/bfloat16/256", make, targets=common_targets)
    make = partial(images_case, method=partial(tasks.SogCLR, n_examples=50_000), dtype="bfloat16",
                   loss="sogclr")  # fmt: skip
    program("sogclr/resnet18/bfloat16/256", make, targets=("t4", "h100", "v5e-1"))
    make = partial(images_case, dtype="bfloat16", loss="bcl-bins")
    program("simclr-bcl/resnet18/bfloat16/256", make, targets=("h100",))
    program("represent/resnet18/10k", represent_case, targets=common_targets)
    program("augment/images/256", augmentation_case)
    program("graphcl/proteins/128", graphs_case, targets=common_targets)
    for n_layers, targets in ((4, ()), (12, ("h100",))):
        make = partial(text_case, n_layers=n_layers, batch=128, dtype="bfloat16")
        program(f"simcse/bert-{n_layers}-layers/bfloat16/128", make, targets=targets)
    make = partial(pairs_case, batch=256, dtype="bfloat16")
    program("clip/resnet18+bert/bfloat16/256", make, targets=common_targets)
    make = partial(images_case, batch=2048, dtype="bfloat16")
    program("mesh/simclr/resnet18/bfloat16/2048", make, axes=("data",), targets=("h100-8",))


for _group in (_losses, _statistics, _recommenders, _evaluation, _networks):
    _group()
