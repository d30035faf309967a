"""Draws false negatives of simulated data, and the weights that correct for them.

Trains InfoNCE and BCL on simulated interactions, whose true preferences are known, and writes
``docs/_static/false_negatives-light.svg`` and ``-dark.svg``. The numbers in their titles, and the
precision that ``docs/index.md`` quotes, are printed.

    python docs/_figures/false_negatives.py
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from crl_jax import data, losses, models, tasks, train, weights

STATIC = Path(__file__).parents[1] / "_static"
TEMPERATURE, SEEDS, N_NEG, K = 0.2, 3, 256, 10
THEMES = {  # background and text of furo, and colours that are distinct on both backgrounds
    "light": {"background": "#ffffff", "text": "#24292f", "grid": "#d0d7de"},
    "dark": {"background": "#131416", "text": "#cfd0d0", "grid": "#3a3d42"},
}
TRUE, FALSE, BCL = "#3b8ed0", "#e8743b", "#2aa876"


def score(simulated: data.SimulatedInteractions, loss: Any, **hyperparams: Any) -> np.ndarray:
    """Trains cosines with a loss and returns all scores, ``[n_seeds, n_users, n_items]``."""
    log = simulated.interactions
    cut = data.with_validation(log, valid=0.1)
    scores = []
    for seed in range(SEEDS):
        fitted = tasks.fit_ranking(
            cut.train,
            cut.valid,  # selects the epoch
            loss=loss,
            hyperparams={"temperature": TEMPERATURE, **hyperparams},
            encoder=models.MatrixFactorization(log.n_users, log.n_items, 16, "cosine"),
            n_neg=64,
            optimizer=train.Optimizer(5e-3),
            epochs=60,
            seeds=seed,
        )
        users, items = (losses.normalize(jnp.asarray(table)) for table in fitted.tables())
        scores.append(users @ items.T)
    return np.stack(scores)


def precision(scores: np.ndarray, liked: np.ndarray, unlabelled: np.ndarray) -> np.ndarray:
    """Returns the fraction of liked items among the K best unlabelled ones, for each seed."""
    best = np.argsort(-np.where(unlabelled, scores, -np.inf), axis=-1)[..., :K]
    return np.take_along_axis(np.broadcast_to(liked, scores.shape), best, -1).mean((1, 2))


def measure() -> dict[str, Any]:
    """Trains both losses, and measures true and false negatives under the scores of InfoNCE."""
    simulated = data.simulate(seed=0)
    log, likes, tau_plus = simulated.interactions, simulated.likes, simulated.tau_plus
    unlabelled = np.ones(likes.shape, bool)
    unlabelled[log.users, log.items] = False
    scores = {
        "InfoNCE": score(simulated, losses.info_nce),
        "BCL": score(
            simulated, losses.bayesian_contrastive, tau_plus=tau_plus, alpha=0.9, beta=0.5
        ),
    }
    # Uniform negatives of each user, as in training.
    order = np.random.default_rng(0).random(likes.shape) + ~unlabelled
    negatives = np.argsort(order, axis=1)[:, :N_NEG]
    neg = jnp.asarray(np.take_along_axis(scores["InfoNCE"][0], negatives, 1))
    true = jnp.asarray(~np.take_along_axis(likes, negatives, 1))
    posterior = weights.true_negative_posterior(neg, tau_plus=tau_plus, alpha=0.9)
    softmax = jax.nn.softmax(neg / TEMPERATURE)
    return {
        "tau_plus": tau_plus,
        "neg": np.asarray(neg),
        "true": np.asarray(true),
        "posterior": np.asarray(posterior),
        "share": {
            "InfoNCE": float(weights.false_negative_share(softmax, true)),
            "BCL": float(weights.false_negative_share(softmax * posterior, true)),
        },
        "precision": {name: precision(s, likes, unlabelled) for name, s in scores.items()},
    }


def draw(measured: dict[str, Any], theme: str) -> None:
    """Writes the figure of one theme."""
    colors = THEMES[theme]
    mpl.rcParams.update({
        "svg.hashsalt": "crl_jax", "font.size": 10.5, "axes.spines.top": False,
        "axes.spines.right": False, "axes.titlelocation": "left", "axes.titlesize": 11,
        "figure.facecolor": colors["background"], "axes.facecolor": colors["background"],
        "savefig.facecolor": colors["background"], "text.color": colors["text"],
        "axes.labelcolor": colors["text"], "axes.edgecolor": colors["grid"],
        "xtick.color": colors["text"], "ytick.color": colors["text"],
    })  # fmt: skip
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.5), layout="constrained")
    neg, true, posterior = (measured[name] for name in ("neg", "true", "posterior"))

    bins = np.linspace(neg.min(), neg.max(), 45)
    left.hist(
        [neg[true], neg[~true]], bins, density=True, histtype="stepfilled", alpha=0.65,
        color=[TRUE, FALSE], label=["true negatives: not liked", "false negatives: liked, unseen"],
    )  # fmt: skip
    left.set(
        title=f"{measured['tau_plus']:.0%} of the unlabelled items are false negatives",
        xlabel="score of the encoder", ylabel="density of each group",
    )  # fmt: skip
    left.set(xlim=(bins[0], bins[-1]), ylim=(0, left.get_ylim()[1] * 1.25))
    left.legend(frameon=False, labelcolor=colors["text"], loc="upper left")

    # Mean over users at each rank; rank 1 is the highest score.
    order = np.argsort(-neg, axis=1)
    steps = np.arange(0.5, N_NEG) / N_NEG * 100
    groups = np.take_along_axis(true, order, 1).mean(0).reshape(32, -1).mean(1)
    right.axhline(1, color=TRUE, lw=2, label="InfoNCE: all are true negatives")
    right.plot(
        steps, np.take_along_axis(posterior, order, 1).mean(0), color=BCL, lw=2,
        label="BCL: posterior from the rank",
    )  # fmt: skip
    right.plot(steps.reshape(32, -1).mean(1), groups, "o", color=FALSE, ms=4, label="true fraction")
    share = measured["share"]
    right.set(
        title=f"Gradient on false negatives: {share['InfoNCE']:.0%} → {share['BCL']:.0%}",
        xlabel="rank of the negative, % from the highest score",
        ylabel="probability of a true negative", ylim=(0, 1.08),
    )  # fmt: skip
    right.legend(frameon=False, labelcolor=colors["text"], loc="lower right")
    figure.savefig(STATIC / f"false_negatives-{theme}.svg", metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    measured = measure()
    print({name: round(value, 3) for name, value in measured["share"].items()})
    for name, values in measured["precision"].items():
        print(f"{name}: precision@{K} {values.mean():.3f} ± {values.std(ddof=1):.3f}")
    STATIC.mkdir(exist_ok=True)
    for theme in THEMES:
        draw(measured, theme)
