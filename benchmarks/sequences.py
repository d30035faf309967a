r"""Sequential recommendation: test metrics of runs of ``experiments.sequences``, in two protocols.

Each run is evaluated among all items, with the items of the history excluded from the ranking, as
by the code of gSASRec, and ranked as well, as by RecBole. ``popularity`` ranks by the number of
training interactions. The encoder is that of the first seed.

    python -m experiments.sequences --data ml-100k/u.data --core 5 --loss softmax --n-heads 2 \
        --batch-size 16 --epochs 60 --patience 20 --eval-every 5 --out runs/softmax
    python -m benchmarks.sequences --runs runs/softmax --out benchmarks/results/sequences.csv
"""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from crl_jax import metrics, models
from experiments._rundir import HISTORY, open_run
from experiments.sequences._config import SCHEMA
from experiments.sequences._recommend import load_task
from experiments.sequences._study import Problem, compute_tables, load_problem, rank

from ._report import Report, Row, one_line_errors, parser

SHOWN_METRICS = ("ndcg@10", "recall@10", "mrr@10")


@one_line_errors
def main() -> None:
    """Evaluates the runs that the flags name, and popularity on the data of the last one."""
    flags = parser(__doc__)
    flags.add_argument("--runs", type=Path, nargs="+", required=True, help="run directories")
    options = flags.parse_args()
    report = Report(options.out, "jax", "flax")
    *_, (source, problem) = [evaluate_run(folder, report) for folder in options.runs]
    counts = jnp.asarray(problem.popularity)[:, None]
    popular = models.Tables(jnp.ones((len(problem.split.users), 1)), counts)
    about = {**source, "loss": "popularity"}
    report.add([{**about, **scores} for scores in evaluate(problem, popular)])


def evaluate_run(folder: Path, report: Report) -> tuple[Row, Problem]:
    """Adds the rows of a run; returns the columns of its data, and the data."""
    config = open_run(folder, SCHEMA)
    problem = load_problem(config.source, lambda _: None)
    source = {"dataset": Path(config.source.data).parent.name, "core": config.source.core}
    objective, training = config.objective, config.training
    about = {
        **source, "loss": objective.loss, "negatives": objective.negatives or "all",
        "n_neg": objective.n_neg or problem.log.n_items - 1,
        **best_epoch(folder, training.patience),
        "batch_size": training.batch_size, "window": training.window,
    }  # fmt: skip
    task, variables, _ = load_task(folder)
    tables = compute_tables(task, *variables, jnp.asarray(problem.held_out("test")[0]))
    report.add([{**about, **scores} for scores in evaluate(problem, tables)], hide=["dataset"])
    return source, problem


def best_epoch(folder: Path, patience: int | None) -> Row:
    """Returns the epoch of the encoder of the first seed, and its NDCG on the validation part.

    Args:
      folder: Run directory.
      patience: That of early stopping, which keeps the best epoch; None keeps the last one.
    """
    lines = [json.loads(line) for line in (folder / HISTORY).read_text().splitlines()]
    final = [line for line in lines if (line["phase"], line["run"]) == ("final", 0)]
    best = final[-1] if patience is None else max(final, key=lambda line: line["valid_ndcg@10"])
    return {"best_epoch": best["epoch"], "valid_ndcg@10": best["valid_ndcg@10"]}


def evaluate(problem: Problem, tables: models.Tables) -> list[Row]:
    """Returns the test metrics in both protocols, with the standard error of the NDCG."""
    rows: list[Row] = []
    for exclude_seen in (True, False):
        values: dict[str, Any] = rank(tables, problem.layout("test", exclude_seen))
        means = metrics.summarize({name: values[name] for name in SHOWN_METRICS})
        user_ndcg = np.asarray(values["ndcg@10"], np.float64)
        error = float(user_ndcg.std(ddof=1) / np.sqrt(len(user_ndcg)))
        rows.append({"seen_items": "excluded" if exclude_seen else "ranked", **means,
                     "ndcg@10_error": error, "users": len(user_ndcg)})  # fmt: skip
    return rows


if __name__ == "__main__":
    main()
