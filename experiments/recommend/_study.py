"""Study of ``python -m experiments.recommend``, see :mod:`experiments._study`.

Unlike the other commands, it trains all points and seeds of a phase in one vectorised call, with
early stopping, and then trains the selected point for the selected number of epochs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from crl_jax import losses, metrics, models, samplers, serving, tasks, train
from crl_jax.models import Tables

from .._mesh import check_devices, mesh_of
from .._processes import gathered
from .._program import flag
from .._progress import Display, reading
from .._registry import filled
from .._rundir import write_csv
from .._screen import cell, of_seeds
from .._study import Evaluation, Member, OnEntry, SearchResult, Study, no_finite_score, no_search
from . import _baselines as baselines
from ._advice import advise_on_search
from ._blending import check_blend, describe_blend
from ._config import SCHEMA, Config, anchor
from ._features import cold_metrics, cold_references, feature_models, tables_of
from ._problem import OnStage, Problem, load_problem, named, source_name
from ._ranking import (
    VALIDATION_K,
    fit_defaults,
    model_on,
    objective_of,
    sampler_on,
    settle_options,
    swept_names,
    train_points,
    train_runs,
)
from ._saved import RECOMMENDER, Learned, Model, save_model, scored
from ._tuning import PHASE as TUNE
from ._tuning import Space, tune
from ._update import choose_optimizer_mode
from .fitted import BEST, COMPETITORS, MODELS, TRAINED, settle_model
from .objectives import OBJECTIVES
from .presets import auto_batch_size, preset_of
from .recipes import RECIPES
from .start import (
    AUTO,
    default_batch_size,
    kind_of,
    may_add_models,
    searched,
    spaces,
    start,
)

BASELINES, COLD = "baselines.csv", "cold_baselines.csv"
_OF_USERS = "ndcg", "recall", "precision", "f1", "map", "mrr", "hit_rate", "auc"
METRICS = (
    *_OF_USERS[:-1], "coverage", "auc",
    *(f"{what}_{name}" for what in ("exposed", "cold", "cold_all") for name in _OF_USERS),
)  # fmt: skip
"""Test metrics, in display order; those named exposed rank the items of the test part only, those
named cold rank the items held out by ``--cold-items``."""
_DESCRIPTION = """Train a recommender on implicit feedback with a pairwise or contrastive loss,
choose on validation data, and score it once on test data.

  {program}                              simulated data
  {program} --data u.data --loss dpl     your own file, one loss
  {program} --data u.data --tune 5       a blend of the best models, in five minutes
  {program} --data u.data --model ease   a baseline instead of a training
  {program} --recipe NAME [flags]        a tuned configuration:
      {recipes}
  {program} --config FILE [flags]        a configuration in JSON, TOML or YAML
  {program} topk --run DIR --user ID     recommendations of a run
      (topk --help for more)
"""


class Recommend(Study[Config, Problem]):
    """Recommenders of implicit feedback. A learned model is the serving tables of one seed.

    The phase ``"use"`` of ``--final-training all`` trains a model on all data, which is not
    evaluated.
    """

    schema, recipes, description = SCHEMA, RECIPES, _DESCRIPTION
    unit, scores, score = "triplets", (f"valid_ndcg@{VALIDATION_K}",), f"NDCG@{VALIDATION_K}"

    def for_config(self, config: Config) -> Study[Any, Any]:
        """See :meth:`Study.for_config`."""
        from ._fit import Fit  # inherits from this class

        return self if config.encoding.model in (TRAINED, BEST) else Fit()

    def start(self, given: Mapping[str, str]) -> Config:
        """See :meth:`Study.start`."""
        if given.get("model", TRAINED) in (TRAINED, BEST):
            return start(given)
        return replace(Config(), source=start({}).source)  # the split of trained models

    def folder_name(self, config: Config) -> str:
        """See :meth:`Study.folder_name`."""
        return config.objective.loss

    def check(self, config: Config) -> None:
        """See :meth:`Study.check`."""
        if config.protocol.tune and config.source.valid_fraction == 0:
            raise ValueError("--valid-fraction 0 leaves no data to decide a --tune on.")
        if config.objective.loss == AUTO:
            if config.protocol.sweep or config.protocol.tune == 0 or not _halves(config):
                raise ValueError(
                    f"--loss {AUTO} chooses the loss by a search: name a loss for --sweep, or for "
                    "--tune 0."
                )
            if config.source.valid_fraction == 0:
                raise ValueError(
                    f"--valid-fraction 0 leaves no data to decide a --loss {AUTO} on: name a loss."
                )
        if config.encoding.model == BEST:
            for name in ("mesh", "processes"):
                if (value := getattr(config.output, name)) is not None:
                    raise ValueError(
                        f"--model {BEST} fits baselines on the host: omit {flag(name)} {value}, or "
                        f"choose --model {TRAINED}."
                    )
            if not _halves(config):
                raise ValueError(
                    f"--model {BEST} chooses by a search: add --tune 5 or --search halving, or "
                    f"choose --model {TRAINED}."
                )
        if unknown := sorted(set(config.protocol.keep) - searched()):
            raise ValueError(
                f"--keep takes some of {', '.join(sorted(searched()))}, got {unknown[0]!r}."
            )
        if config.protocol.debias == "auto":
            _check_debias(config)
        if _halves(config) and "epochs" in swept_names(config):
            raise ValueError(
                "--sweep epochs: a search by halving decides on the epochs; omit it, or choose "
                "--search grid without --tune."
            )
        if config.protocol.blend > 1:
            check_blend(config)
        for each, _ in _spaces(config):
            self._check_one(each)

    def check_resumed(self, before: Config, config: Config) -> None:
        """See :meth:`Study.check_resumed`."""
        is_changed = len(_spaces(before)) != len(_spaces(config)) or (
            config.protocol.blend > 1 and may_add_models(before) != may_add_models(config)
        )
        if is_changed:
            raise ValueError(
                f"--mesh {config.output.mesh}: the run also searches models that are fitted on the "
                "host; resume it without --mesh."
            )

    def _check_one(self, config: Config) -> None:
        settle_options(config)
        settle_model(config.encoding, swept_names(config))
        loss, contrast = config.objective.loss, config.contrasting.contrast
        entry = objective_of(config).entry
        if entry.term is not None and contrast != "none":
            raise ValueError(f"--contrast {contrast}: --loss {loss} has its own auxiliary loss.")
        if config.training.batches == "host" and entry.confidence is not None:
            raise ValueError(
                f"--batches host: --loss {loss} weighs each interaction, so they must be on the "
                "device."
            )
        if config.protocol.sweep and config.source.valid_fraction == 0:
            raise ValueError("--valid-fraction 0 leaves no data to decide a --sweep on.")

    def load(self, config: Config, on_stage: OnStage) -> Problem:
        """See :meth:`Study.load`."""
        return load_problem(config.source, on_stage)

    def load_shown(self, config: Config, shown: Display) -> Problem:
        """See :meth:`Study.load_shown`."""
        return load_problem(config.source, shown.stage, reading(shown))

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        config = anchor(config)
        if config.objective.loss == AUTO:
            for each, _ in _spaces(config, problem):  # before the run directory is created
                self.complete(each, problem)
            return config
        config = settle_options(fit_defaults(config, problem.train))
        objective = objective_of(config)
        sampler, values = sampler_on(problem.train, config)
        if config.training.batch_size == "auto":
            config = _with_batch_size(config, sampler, problem)
        if sampler.is_shared and not losses.accepts_where(objective.entry.loss):
            raise ValueError(
                f"--sampler {config.sampling.sampler} needs a loss that takes `where`; --loss "
                f"{config.objective.loss} does not."
            )
        objective.confidence(problem.train, config.training)
        mode, _ = choose_optimizer_mode(config, objective, sampler, problem.n_rows)
        return replace(
            config,
            training=replace(config.training, optimizer_mode=mode),
            sampling=filled(config.sampling, values, swept_names(config)),
        )

    def check_step(self, config: Config, problem: Problem) -> None:
        """Creates the auxiliary loss and reads features, which may be invalid for the data."""
        config, _ = _spaces(config)[0]
        if config.contrasting.contrast != "none" or config.encoding.encoder == "features":
            model_on(
                problem.train, config.encoding, config.contrasting, config.training.dim,
                swept_names(config),
            )  # fmt: skip

    def phases(self, config: Config) -> tuple[str, ...]:
        """See :meth:`Study.phases`."""
        search = TUNE if _halves(config) else "search"
        return search, "final", *(("use",) if config.protocol.final_training == "all" else ())

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """Returns the number of triplets per epoch."""
        parts = problem.learned(phase, config.protocol.final_training)
        size = sum(len(getattr(problem, part)) for part in parts)
        return objective_of(_spaces(config)[0][0]).count("n_neg") * size

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        if config.objective.loss == AUTO:
            made = [each for each, _ in _spaces(config)]
            names = [*dict.fromkeys(each.objective.loss for each in made)]
            names += COMPETITORS if config.encoding.model == BEST else ()
            return f"the best of {', '.join(names)}"
        objective, swept = objective_of(config), swept_names(config)
        given = objective.hyperparams.items()
        chosen = [f"{name}={value}" for name, value in objective.choices.items()]
        numbers = [f"{name}={value:g}" for name, value in given if name not in swept]
        fixed = ", ".join(chosen + numbers)
        negatives = "its own negatives" if objective.sampler else config.sampling.sampler
        if objective.entry.term is not None:  # an auxiliary loss replaces the negatives
            negatives = "no negatives"
        loss = config.objective.loss
        said = [f"{loss} ({fixed})" if fixed else loss, negatives, config.encoding.encoder]
        contrasting = config.contrasting
        if contrasting.contrast != "none":
            said.append(f"{contrasting.contrast} ({contrasting.contrast_loss})")
        return ", ".join(said)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """Returns the sizes of the data, the columns read, and the rows that a step updates."""
        yield from self.describe_problem(problem)
        if config.objective.loss != AUTO:
            sampler, _ = sampler_on(problem.train, config)
            yield choose_optimizer_mode(config, objective_of(config), sampler, problem.n_rows)[1]
        training = config.training
        if training.batch_size == "auto":
            yield f"batch size by the loss, at most {preset_of().growth} × its default"
        elif training.lr_scale != 1:
            size, scale = training.batch_size, training.lr_scale
            yield f"{size:,} interactions per step; learning rates × {scale:g}"
        if problem.tau_plus is not None:
            yield f"simulated data: the true τ⁺ is {problem.tau_plus:.4f}"

    def describe_problem(self, problem: Problem) -> Iterable[str]:
        """Returns the sizes of the data, and the columns read."""
        sizes = [f"{len(problem.train):,} train"]
        if problem.valid is not None:
            sizes.append(f"{len(problem.valid):,} validation")
        sizes.append(f"{len(problem.test):,} test")
        if problem.exposed is not None:
            sizes[-1] += f" of {len(problem.exposed):,} exposed"
        if problem.cold is not None:
            sizes.append(f"{len(problem.cold):,} of {problem.cold.n_items:,} cold items")
        yield (
            f"{problem.known.n_users:,} users × {problem.known.n_items:,} items; interactions: "
            f"{', '.join(sizes)}"
        )
        for columns in problem.columns:
            yield f"columns of {Path(columns.origin).name}: {columns}"

    def search(
        self, config: Config, problem: Problem, checkpoints: Path, on_entry: OnEntry,
        on_stage: OnStage,
    ) -> SearchResult:  # fmt: skip
        """Trains all points and seeds in parallel, with early stopping on validation data.

        Without ``--sweep`` the search selects the number of epochs. With ``--tune``, it is by
        successive halving.
        """
        if problem.valid is None:
            assert config.training.epochs is not None
            return no_search(config.training.epochs)
        if _halves(config):
            found = [self._space(each, names, problem) for each, names in _spaces(config, problem)]
            fit = partial(train_points, problem)
            tuned = tune(found, fit, checkpoints, on_entry, on_stage, _gathered_tables)
            from ._fit import select  # inherits from this class

            return select(tuned, config, problem, on_entry, on_stage)
        protocol, axes = config.protocol, SCHEMA.axes(config)
        n_seeds = protocol.search_seeds if axes else protocol.seeds
        runs = train.grid(axes, range(protocol.seed, protocol.seed + n_seeds))
        on_stage("search: compiling and first epoch")
        path = checkpoints / "search.npz"
        searched = train_runs(config, problem, "search", runs, path, on_entry)
        choice = train.select_best(searched, n_seeds)
        if not np.isfinite(choice.score):
            raise no_finite_score()
        points = [
            {name: float(runs[name][i]) for name in axes}
            for i in range(0, searched.n_runs, n_seeds)
        ]
        final = None
        if protocol.final_training == "train" and n_seeds >= protocol.seeds:
            start = choice.point * n_seeds
            final = [_gathered_tables(searched, start + i) for i in range(protocol.seeds)]
        return SearchResult(points, choice, final)

    def train_models(
        self, config: Config, problem: Problem, phase: str, searched: SearchResult,
        checkpoints: Path, on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """Trains all seeds in parallel, for the selected number of epochs.

        Models of a blend are trained one after the other.
        """
        from ._fit import fitted_tables  # inherits from this class

        if phase == "final" and searched.models is not None:
            yield searched.models
            return
        choice, protocol, found = searched.choice, config.protocol, []
        members = searched.blend or (Member(config, choice.point, choice.epochs),)
        seeds = range(protocol.seed, protocol.seed + protocol.seeds)
        for place, (own, point, epochs, _) in enumerate(members):
            values = {name: searched.points[point][name] for name in swept_names(own)}
            which = f" model {place + 1} of {len(members)}" if len(members) > 1 else ""
            if epochs == 0:
                on_stage(f"{phase}{which}: fitting {own.encoding.model}")
                found.append([fitted_tables(own, problem, phase, values, seed) for seed in seeds])
                continue
            on_stage(f"{phase}{which}: compiling and first epoch")
            numbers: dict[str, Any] = {n: np.float32(value) for n, value in values.items()}
            numbers["seeds"] = np.array(seeds)
            path = checkpoints / (f"{phase}-{place}.npz" if place else f"{phase}.npz")
            fitted = train_runs(
                own, problem, phase, numbers, path, on_entry, stop_at=epochs, place=place
            )
            found.append([_gathered_tables(fitted, i) for i in range(fitted.n_runs)])
        if len(members) == 1:
            yield found[0]
            return
        yield [models.blend(of_seed) for of_seed in zip(*found, strict=True)]

    def _space(self, config: Config, names: dict[str, Any], problem: Problem) -> Space:
        """Returns the points of the sweep of a configuration, without a grid if there is none."""
        config = self.prepare(config, problem)
        runs = train.grid(SCHEMA.axes(config))
        points = [
            {name: float(runs[name][i]) for name in SCHEMA.axes(config)}
            for i in range(len(runs["seeds"]))
        ]
        return Space(config, points, names, kind_of(config))

    def evaluate(
        self, config: Config, problem: Problem, learned: Learned, seed: int,
        on_stage: OnStage,
    ) -> Evaluation:  # fmt: skip
        """Computes the ranking metrics of the test set."""
        # Each of several processes has the whole tables by now and evaluates independently.
        mesh = mesh_of(config.output.mesh) if jax.process_count() == 1 else None
        ks = config.protocol.k
        values = metrics.evaluate(*scored(learned), problem.layout, ks=ks, mesh=mesh)
        found = metrics.summarize(values)
        found |= problem.exposed_metrics(*scored(learned), ks, mesh)
        found |= cold_metrics(config.encoding, problem, learned, ks)
        shown = [name for name in found if name.partition("@")[0] in METRICS]
        return Evaluation(
            {name: found[name] for name in sorted(shown, key=_display_order)},
            np.asarray(values[_compared(config)], np.float64),
        )

    def compare(
        self, config: Config, problem: Problem, cases: list[np.ndarray], folder: Path,
        on_stage: OnStage,
    ) -> Iterable[str | Table]:  # fmt: skip
        """Fits the cheap baselines to the same interactions, and writes their metrics."""
        if config.protocol.baselines == "none":
            return
        own, metric = np.mean(cases, axis=0), _compared(config)
        part = problem.joined(problem.learned("final", config.protocol.final_training))
        found = [
            *baselines.compare(
                part, problem, config.protocol.k, metric, own, on_stage,
                MODELS[config.encoding.model].source,
            )
        ]  # fmt: skip
        baselines.write(folder / BASELINES, found)
        yield baselines.table(found, metric, float(own.mean()))
        if (advice := baselines.advice(found, self.improvement(config))) is not None:
            yield f"hint: {advice}"
        if references := cold_references(config.encoding, problem, config.protocol.k):
            yield _cold_table(folder / COLD, references)

    def improvement(self, config: Config) -> str:
        """Returns the advice for a run with lower metrics than a baseline."""
        del config
        return baselines.TRAINING_ADVICE

    def save_models(
        self, config: Config, problem: Problem, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Saves the tables of all seeds, and the recommender of the first that has not diverged."""
        tables = [Tables(each.users, each.items) for each in models]
        stacked = jax.tree.map(lambda *of_seeds: np.stack(of_seeds), *tables)
        learned = problem.learned(phase, config.protocol.final_training)
        save_model(folder, Model(stacked, problem.known, problem.test, learned), config)
        finite = (t for t in models if all(np.isfinite(x).all() for x in jax.tree.leaves(t)))
        if (first := next(finite, None)) is not None:  # otherwise `topk` reports the divergence
            encoding = config.encoding
            known = problem.joined(problem.learned("use", "all"))
            serving.Recommender.from_tables(
                first,
                known,
                similarity=encoding.serve_similarity or encoding.similarity or "inner",
                **feature_models(encoding, known, first),
            ).save(folder / RECOMMENDER)

    def draw_curves(
        self, config: Config, problem: Problem, searched: SearchResult,
        history: list[dict[str, Any]], title: str, path: Path,
    ) -> None:  # fmt: skip
        """See :meth:`Study.draw_curves`."""
        from .._plots import draw_curves  # Matplotlib is slow to import

        final_training = config.protocol.final_training
        learned = {
            phase: named(problem.learned(phase, final_training)) for phase in self.phases(config)
        }
        draw_curves(
            path, history, f"{title}, {source_name(config.source)}", points=searched.points,
            choice=searched.choice, learned=learned,
        )  # fmt: skip

    def summary(
        self, config: Config, problem: Problem, searched: SearchResult,
        per_seed: list[dict[str, float]], history: list[dict[str, Any]],
    ) -> dict[str, Any]:  # fmt: skip
        """See :meth:`Study.summary`.

        ``chosen`` also has the number of ``epochs``, and ``trained_on`` the data parts that the
        evaluated and the saved model were trained on.
        """
        found = super().summary(config, problem, searched, per_seed, history)
        scored, saved = _trained_on(config, problem)
        trained_on = {"scored_model": scored, "saved_model": saved}
        seconds, chosen = found.pop("seconds"), found.pop("chosen")
        chosen = {"epochs": searched.choice.epochs, **chosen}
        if searched.blend:
            chosen["blend"] = [
                {**searched.points[each.point], "epochs": each.epochs} for each in searched.blend
            ]
        return {**found, "chosen": chosen, "trained_on": trained_on, "seconds": seconds}

    def describe_choice(self, searched: SearchResult) -> str:
        """Returns a line about the result of the search."""
        choice = searched.choice
        if np.isnan(choice.score):
            return f"trained for {choice.epochs} epochs, without validation data"
        return (
            f"chosen on validation data: {choice.epochs} epochs, {self.score} "
            f"{choice.score:.4f} (mean with the validations just before and after)"
        )

    def report(
        self, config: Config, problem: Problem, searched: SearchResult,
        per_seed: list[dict[str, float]],
    ) -> Iterable[str | Table]:  # fmt: skip
        """See :meth:`Study.report`."""
        choice, (scored, saved) = searched.choice, _trained_on(config, problem)
        if searched.said:
            yield searched.said
        yield self.describe_choice(searched)
        if searched.blend:
            yield describe_blend(searched)
        yield _metrics_table(per_seed)
        yield f"scored: a model trained on {named(scored)}"
        if saved != scored:
            yield f"saved for use: a model trained on {named(saved)}"
        if problem.valid is not None:
            n_users = int(np.count_nonzero(problem.valid.degrees))
            epochs = None if _halves(config) else int(config.training.epochs or 0)
            axes = SCHEMA.axes(config)
            for line in advise_on_search(axes, searched.points, choice, epochs, n_users):
                yield f"hint: {line}"


def _gathered_tables(fitted: tasks.RankingResult, run: int) -> Any:
    return gathered(tables_of(fitted, run))


def _check_debias(config: Config) -> None:
    """Checks that ``--debias auto`` has hyper-parameters to estimate, and no other search."""
    loss, takes = config.objective.loss, OBJECTIVES[config.objective.loss].flags
    if "tau_plus" not in takes:
        debiased = ", ".join(name for name, of in OBJECTIVES.items() if "tau_plus" in of.flags)
        raise ValueError(f"--debias auto needs one of the losses {debiased}, got {loss}.")
    if config.protocol.tune:
        raise ValueError("--debias auto decides on beta by the default search: omit --tune.")
    if "alpha" in swept_names(config):
        raise ValueError("--debias auto measures alpha: omit --sweep alpha.")


def _halves(config: Config) -> bool:
    """Whether the search is by successive halving."""
    protocol = config.protocol
    has_points = config.objective.loss == AUTO or bool(protocol.sweep)
    return bool(protocol.tune) or (protocol.search == "halving" and has_points)


def _spaces(config: Config, problem: Problem | None = None) -> list[tuple[Config, dict[str, Any]]]:
    """Returns the configurations whose sweeps a search tries, and how they differ."""
    is_searched = config.objective.loss == AUTO or bool(config.protocol.tune)
    if not is_searched or config.protocol.sweep:
        return [(config, {})]
    return spaces(config, None if problem is None else len(problem.train))


def _trained_on(config: Config, problem: Problem) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the data parts that the evaluated and the saved models are trained on."""
    final_training = config.protocol.final_training
    scored = problem.learned("final", final_training)
    return scored, problem.learned("use", final_training) if final_training == "all" else scored


def _with_batch_size(config: Config, sampler: samplers.Sampler, problem: Problem) -> Config:
    """Resolves ``--batch-size auto`` by the preset of the first device.

    Raises:
      ValueError: If a batch cannot be sharded over the devices of ``--mesh``.
    """
    training, objective = config.training, objective_of(config)
    base, n_neg = default_batch_size(config.encoding.encoder), objective.count("n_neg")
    counts = n_neg, objective.count("n_pos"), objective.count("n_group")
    n_rows = tasks.count_row_reads(sampler, base, *counts) / base
    n_runs = config.protocol.seeds * math.prod(map(len, SCHEMA.axes(config).values()))
    size = auto_batch_size(
        preset_of(), base, len(problem.train), int(training.epochs or 1),
        bytes_per_example=4 * n_runs * (training.dim * n_rows + n_neg),
    )  # fmt: skip
    check_devices(config.output.device, config.output.mesh, size)
    lr_scale = training.lr_scale * math.sqrt(size / base)
    training = replace(training, batch_size=size, lr_scale=lr_scale)
    return replace(config, training=training)


def _compared(config: Config) -> str:
    """Returns the metric by which a run is compared with baselines."""
    ks = config.protocol.k
    return f"ndcg@{VALIDATION_K if VALIDATION_K in ks else max(ks)}"


def _by_cut_off(name: str) -> tuple[str, int]:
    metric, _, k = name.partition("@")
    return metric, int(k or 0)


def _cold_table(path: Path, references: dict[str, dict[str, float]]) -> Table:
    """Writes the metrics of references for cold items, and returns their NDCG as a table."""
    names = sorted(next(iter(references.values())), key=_by_cut_off)
    rows = ([name, *(found[n] for n in names)] for name, found in references.items())
    write_csv(path, ["model", *names], rows)
    made = Table(title="References for cold items, without training")
    shown = [name for name in names if "_ndcg@" in name]
    for column in ("model", *shown):
        made.add_column(column, justify="left" if column == "model" else "right")
    for name, found in references.items():
        made.add_row(name, *(f"{found[column]:.4f}" for column in shown))
    return made


def _display_order(name: str) -> tuple[int, int]:
    metric, k = _by_cut_off(name)
    return METRICS.index(metric), k


def _metrics_table(per_seed: list[dict[str, float]]) -> Table:
    """Metrics by rows, cut-offs by columns; those without a cut-off in the first column."""
    table = Table(title=f"Test set{of_seeds(len(per_seed))}")
    ks = sorted({int(name.partition("@")[2]) for name in per_seed[0] if "@" in name})
    table.add_column("metric")
    for k in ks:
        table.add_column(f"@{k}", justify="right")
    for name in dict.fromkeys(name.partition("@")[0] for name in per_seed[0]):
        keys = [name] if name in per_seed[0] else [f"{name}@{k}" for k in ks]
        table.add_row(name, *(cell([metrics[key] for metrics in per_seed]) for key in keys))
    return table
