"""Tuned configurations by name, for ``python -m experiments.recommend --recipe NAME``.

MovieLens 100K, matrix factorisation of width 32, batches of 1,024, Adam with L2: for each loss

* ``ml-100k-LOSS-search`` is its search: a grid of 8 points of 300 epochs, as many for every loss,
  the scale of the initial values among what is tried, decided on a fifth of the training
  interactions;
* ``ml-100k-LOSS`` is the point that search chose, with five seeds;
* ``ml-100k-lightgcn-LOSS-search`` and ``ml-100k-lightgcn-LOSS`` are the same on LightGCN, with 8
  points of 150 epochs.

``gowalla-lightgcn-bsl`` and ``yelp2018-lightgcn-bsl`` are LightGCN of width 64 with the bilateral
softmax loss, in the standard splits, with one layer and with three; ``gowalla-bsl`` is matrix
factorisation with it. These three train on the whole training part for a fixed number of epochs
and choose nothing. ``gowalla-LOSS`` for another loss, the softmax loss or one of its debiased
weights, is the point that ``gowalla-LOSS-search`` chose among four, by a twentieth of the training
part. All read the folders ``gowalla`` and ``yelp2018``, unless ``--data`` names one.

The recipes of MovieLens download the data unless ``--data`` names a folder with a split, such as
the published one:
``python -m experiments.recommend --recipe ml-100k-dpl --data ml-100k --out runs/dpl``.
"""

from dataclasses import replace
from typing import Any

from ._config import Config, EncoderOptions, LossOptions, SamplerOptions
from ._options import DataOptions, ProtocolOptions, TrainOptions

# What is fixed for each loss, and its grid. With many negatives an epoch carries more gradient:
# those losses take smaller steps and stronger regularisation.
_INIT = "init_scale=0.1,1"
_FEW = ("lr=1e-3,2e-3", "weight_decay=1e-5,3e-5", _INIT)
_MANY = ("weight_decay=6e-5,1e-4", _INIT)
_GRIDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bpr": ({"n_neg": 1}, _FEW),
    "bce": ({"n_neg": 1}, _FEW),
    "info_nce": ({"n_neg": 10}, ("temperature=0.7,1", *_MANY)),
    "debiased": (
        {"n_neg": 10, "n_pos": 0, "min_score": -2.0},
        ("tau_plus=0.005,0.02", *_MANY),
    ),
    "hard": (
        {"n_neg": 10, "n_pos": 0, "min_score": -2.0, "tau_plus": 0.005},
        ("beta=0.3,1", *_MANY),
    ),
    "bayesian": ({"n_neg": 10, "tau_plus": 0.05, "alpha": 0.9}, ("beta=0.95,1", *_MANY)),
    "dpl": (
        {"n_neg": 5, "n_pos": 10},
        ("tau_plus=0.07,0.15", "weight_decay=1e-5,2e-5", _INIT),
    ),
}
# What the searches chose; NDCG@20 on validation data stands in benchmarks/results.
_CHOSEN: dict[str, dict[str, Any]] = {
    "bayesian": {"beta": 1.0, "weight_decay": 1e-4, "init_scale": 0.1},
    "bce": {"lr": 1e-3, "weight_decay": 3e-5, "init_scale": 0.1},
    "bpr": {"lr": 1e-3, "weight_decay": 3e-5, "init_scale": 1.0},
    "debiased": {"tau_plus": 0.005, "weight_decay": 6e-5, "init_scale": 0.1},
    "dpl": {"tau_plus": 0.15, "weight_decay": 1e-5, "init_scale": 0.1},
    "hard": {"beta": 1.0, "weight_decay": 6e-5, "init_scale": 0.1},
    "info_nce": {"temperature": 0.7, "weight_decay": 1e-4, "init_scale": 0.1},
}


def _base(loss: Any) -> Config:
    options, _ = _GRIDS[loss]
    return Config(
        source=DataOptions(data="movielens:100k", valid=0.2),
        objective=LossOptions(loss=loss, **options),
        training=TrainOptions(
            eval_every=5, epochs=300, decay=0.3, lr=5e-4 if options["n_neg"] == 10 else 1e-3
        ),
    )


def _tuned(base: Config, chosen: dict[str, Any]) -> Config:
    chosen = dict(chosen)
    training = {
        name: chosen.pop(name) for name in ("lr", "weight_decay", "init_scale") if name in chosen
    }
    return replace(
        base,
        objective=replace(base.objective, **chosen),
        training=replace(base.training, **training),
        protocol=ProtocolOptions(seeds=5),
    )


# The same for LightGCN with two layers. Its L2 is a mean over the rows of a batch, and greater.
_LAYERS: dict[str, Any] = {"encoder": "lightgcn", "layers": 2}
_RATES = "lr=3e-3,6e-3"
_STRONG = ("weight_decay=1e-2,3e-2", _RATES)
_GRAPH_GRIDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bpr": ({"n_neg": 1}, ("weight_decay=1e-3,2e-3,3e-3,5e-3", _RATES)),
    "info_nce": ({"n_neg": 10}, ("temperature=0.7,1", *_STRONG)),
    "debiased": (
        {"n_neg": 10, "n_pos": 0, "min_score": -2.0},
        ("tau_plus=0.005,0.02", *_STRONG),
    ),
    "hard": (
        {"n_neg": 10, "n_pos": 0, "min_score": -2.0, "tau_plus": 0.005},
        ("beta=0.3,1", *_STRONG),
    ),
    "bayesian": ({"n_neg": 10, "tau_plus": 0.05, "alpha": 0.9}, ("beta=0.95,1", *_STRONG)),
    "dpl": (
        {"n_neg": 5, "n_pos": 10},
        ("tau_plus=0.07,0.15", "weight_decay=3e-4,1e-3", _RATES),
    ),
}
_GRAPH_CHOSEN: dict[str, dict[str, Any]] = {
    "bayesian": {"beta": 1.0, "weight_decay": 1e-2, "lr": 3e-3},
    "bpr": {"weight_decay": 3e-3, "lr": 6e-3},
    "debiased": {"tau_plus": 0.005, "weight_decay": 1e-2, "lr": 6e-3},
    "dpl": {"tau_plus": 0.07, "weight_decay": 3e-4, "lr": 6e-3},
    "hard": {"beta": 1.0, "weight_decay": 1e-2, "lr": 3e-3},
    "info_nce": {"temperature": 1.0, "weight_decay": 1e-2, "lr": 6e-3},
}


def _on_graph(loss: Any) -> Config:
    options, _ = _GRAPH_GRIDS[loss]
    return Config(
        source=DataOptions(data="movielens:100k", valid=0.2),
        objective=LossOptions(loss=loss, **options),
        encoding=EncoderOptions(**_LAYERS),
        training=TrainOptions(l2_target="rows", eval_every=10, epochs=150, decay=0.3),
    )


def _standard(
    dataset: str,
    loss: dict[str, Any],
    of_sampler: dict[str, Any],
    of_encoder: dict[str, Any],
    training: TrainOptions,
) -> Config:
    """A standard split, with cosines of width 64."""
    return Config(
        source=DataOptions(data=dataset, valid=0.0),
        objective=LossOptions(**loss),
        sampling=SamplerOptions(**of_sampler),
        encoding=EncoderOptions(similarity="cosine", **of_encoder),
        training=replace(training, dim=64, l2_target="rows", eval_every=5),
        protocol=ProtocolOptions(refit="none", k=(20,)),
    )


def _standard_graph(
    dataset: str, layers: int, repulsion: float, temperature: float, lr: float, epochs: int
) -> Config:
    """LightGCN, with the loss, the negatives and the L2 of the published code of BSL.

    The learning rate stays: where it falls, the loss ends lower and the test score too.
    """
    return _standard(
        dataset,
        {"loss": "bsl", "repulsion": repulsion, "temperature": temperature},
        {"sampler": "in-batch", "batch_mask": "self"},
        {"encoder": "lightgcn", "layers": layers, "serve_similarity": "inner"},
        TrainOptions(
            init_scale=0.08, lr=lr, weight_decay=1e-5, schedule="constant", epochs=epochs,
            batch_size=2048,
        ),
    )  # fmt: skip


def _standard_mf() -> Config:
    """Matrix factorisation on Gowalla, with all numbers of the published code of BSL.

    That draws negatives for each anchor alone. With 16 anchors to a pool the loss falls almost as
    in the published log; with 256 it stays higher. 160 epochs take it to where the log is after
    115, which goes on to rise for longer than the 240 here.
    """
    return _standard(
        "gowalla",
        {"loss": "bsl", "repulsion": 1.22, "temperature": 0.08, "n_neg": 800},
        {"sampler": "shared", "pool_mask": "none", "pool_anchors": 16},
        {"encoder": "mf", "dropout": 0.1, "serve_similarity": "cosine"},
        TrainOptions(lr=1e-4, weight_decay=1e-9, schedule="constant", epochs=240, batch_size=1024),
    )


# The softmax loss and its debiased weights on Gowalla: four points each. Of all pairs there, a
# share of 0.0007 are known positives.
_SOFTMAX = "temperature=0.08,0.12"
_SOFTMAX_GRIDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "info_nce": ({}, ("temperature=0.06,0.08,0.1,0.12",)),
    "debiased": ({"n_pos": 0}, (_SOFTMAX, "tau_plus=2e-4,2e-3")),
    "hard": ({"n_pos": 0, "tau_plus": 2e-4}, (_SOFTMAX, "beta=0.3,1")),
    "bayesian": ({"tau_plus": 2e-4, "alpha": 0.9}, (_SOFTMAX, "beta=0.6,0.9")),
}
_SOFTMAX_CHOSEN: dict[str, dict[str, Any]] = {
    "info_nce": {"temperature": 0.1},
    "debiased": {"temperature": 0.12, "tau_plus": 2e-3},
    "hard": {"temperature": 0.12, "beta": 0.3},
    "bayesian": {"temperature": 0.12, "beta": 0.9},
}


def _softmax(loss: str, chosen: dict[str, Any]) -> Config:
    """Matrix factorisation on Gowalla: losses differ in nothing but the weights."""
    fixed, _ = _SOFTMAX_GRIDS[loss]
    return _standard(
        "gowalla",
        {"loss": loss, "n_neg": 512, **fixed, **chosen},
        {"sampler": "shared", "pool_mask": "seen", "pool_anchors": 256},
        {"encoder": "mf", "serve_similarity": "cosine"},
        TrainOptions(
            lr=2e-3, weight_decay=1e-9, schedule="cosine", decay=0.0, epochs=30, batch_size=2048
        ),
    )


def _softmax_search(loss: str) -> Config:
    base = _softmax(loss, {})
    return _searched(
        replace(
            base,
            source=replace(base.source, valid=0.05),
            training=replace(base.training, epochs=10, eval_every=10),
        ),
        _SOFTMAX_GRIDS[loss][1],
    )


def _searched(base: Config, grid: tuple[str, ...]) -> Config:
    return replace(base, protocol=ProtocolOptions(sweep=grid))


RECIPES: dict[str, Config] = {
    **{f"ml-100k-{loss}": _tuned(_base(loss), _CHOSEN[loss]) for loss in _CHOSEN},
    **{f"ml-100k-{loss}-search": _searched(_base(loss), _GRIDS[loss][1]) for loss in _GRIDS},
    **{
        f"ml-100k-lightgcn-{loss}": _tuned(_on_graph(loss), _GRAPH_CHOSEN[loss])
        for loss in _GRAPH_CHOSEN
    },
    **{
        f"ml-100k-lightgcn-{loss}-search": _searched(_on_graph(loss), _GRAPH_GRIDS[loss][1])
        for loss in _GRAPH_GRIDS
    },
    **{f"gowalla-{loss}": _softmax(loss, chosen) for loss, chosen in _SOFTMAX_CHOSEN.items()},
    **{f"gowalla-{loss}-search": _softmax_search(loss) for loss in _SOFTMAX_GRIDS},
    "gowalla-bsl": _standard_mf(),
    "gowalla-lightgcn-bsl": _standard_graph("gowalla", 1, 0.84, 0.12, lr=1e-3, epochs=100),
    "yelp2018-lightgcn-bsl": _standard_graph("yelp2018", 3, 1.12, 0.15, lr=2e-3, epochs=30),
}
