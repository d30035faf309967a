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

from crl_jax import losses, models, samplers, serving, tasks, train
from crl_jax.models import Tables

from .._mesh import check_devices
from .._processes import gather
from .._program import flag
from .._registry import filled
from .._study import Member, OnEntry, OnStage, SearchResult, grid_points, no_finite_score, no_search
from ._alongside import select
from ._base import RecommenderStudy
from ._baselines import TRAINING_ADVICE
from ._blending import check_blend
from ._config import SCHEMA, Config, anchor
from ._features import feature_models, serving_tables
from ._fit import Fit, fitted_tables
from ._problem import Problem, describe_parts, source_name
from ._ranking import (
    fit_defaults,
    get_objective,
    model_on,
    resolve_options,
    sampler_on,
    swept_names,
    train_points,
    train_runs,
)
from ._saved import RECOMMENDER, Model, save_model
from ._tuning import PHASE as TUNE
from ._tuning import Space, tune
from ._update import choose_optimizer_mode
from .fitted import BEST, COMPETITORS, TRAINED, resolve_model_flags
from .objectives import OBJECTIVES
from .presets import auto_batch_size, device_preset
from .recipes import RECIPES
from .start import AUTO, default_batch_size, may_add_models, model_kind, spaces, start, tuned_flags

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


class Recommend(RecommenderStudy):
    """Recommenders of implicit feedback. A learned model is the serving tables of one seed."""

    recipes, description = RECIPES, _DESCRIPTION

    def for_config(self, config: Config) -> RecommenderStudy:
        """See :meth:`Study.for_config`."""
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
            if config.protocol.sweep or config.protocol.tune == 0 or not _uses_halving(config):
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
            if not _uses_halving(config):
                raise ValueError(
                    f"--model {BEST} chooses by a search: add --tune 5 or --search halving, or "
                    f"choose --model {TRAINED}."
                )
        if unknown := sorted(set(config.protocol.keep) - tuned_flags()):
            raise ValueError(
                f"--keep takes some of {', '.join(sorted(tuned_flags()))}, got {unknown[0]!r}."
            )
        if config.protocol.debias == "auto":
            _check_debias(config)
        if _uses_halving(config) and "epochs" in swept_names(config):
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
        resolve_options(config)
        resolve_model_flags(config.encoding, swept_names(config))
        loss, contrast = config.objective.loss, config.contrasting.contrast
        entry = get_objective(config).entry
        if entry.term is not None and contrast != "none":
            raise ValueError(f"--contrast {contrast}: --loss {loss} has its own auxiliary loss.")
        if config.training.batches == "host" and entry.confidence is not None:
            raise ValueError(
                f"--batches host: --loss {loss} weighs each interaction, so they must be on the "
                "device."
            )
        if config.protocol.sweep and config.source.valid_fraction == 0:
            raise ValueError("--valid-fraction 0 leaves no data to decide a --sweep on.")

    def complete(self, config: Config, problem: Problem) -> Config:
        """See :meth:`Study.complete`."""
        config = anchor(config)
        if config.objective.loss == AUTO:
            for each, _ in _spaces(config, problem):  # before the run directory is created
                self.complete(each, problem)
            return config
        config = resolve_options(fit_defaults(config, problem.train))
        objective = get_objective(config)
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
        search, *trainings = super().phases(config)
        return TUNE if _uses_halving(config) else search, *trainings

    def count(self, config: Config, problem: Problem, phase: str, stage: str) -> int:
        """Returns the number of triplets per epoch."""
        parts = problem.parts_for(phase, config.protocol.final_training)
        size = sum(len(getattr(problem, part)) for part in parts)
        return get_objective(_spaces(config)[0][0]).count("n_neg") * size

    def describe_training(self, config: Config) -> str:
        """See :meth:`Study.describe_training`."""
        if config.objective.loss == AUTO:
            configs = [each for each, _ in _spaces(config)]
            names = [*dict.fromkeys(each.objective.loss for each in configs)]
            names += COMPETITORS if config.encoding.model == BEST else ()
            return f"the best of {', '.join(names)}"
        objective, swept = get_objective(config), swept_names(config)
        hyperparams = objective.hyperparams.items()
        chosen = [f"{name}={value}" for name, value in objective.choices.items()]
        numbers = [f"{name}={value:g}" for name, value in hyperparams if name not in swept]
        fixed = ", ".join(chosen + numbers)
        negatives = "its own negatives" if objective.sampler else config.sampling.sampler
        if objective.entry.term is not None:  # an auxiliary loss replaces the negatives
            negatives = "no negatives"
        loss = config.objective.loss
        parts = [f"{loss} ({fixed})" if fixed else loss, negatives, config.encoding.encoder]
        contrasting = config.contrasting
        if contrasting.contrast != "none":
            parts.append(f"{contrasting.contrast} ({contrasting.contrast_loss})")
        return ", ".join(parts)

    def describe_data(self, config: Config, problem: Problem) -> Iterable[str]:
        """Returns the sizes of the data, the columns read, and the rows that a step updates."""
        yield from super().describe_data(config, problem)
        if config.objective.loss != AUTO:
            sampler, _ = sampler_on(problem.train, config)
            yield choose_optimizer_mode(config, get_objective(config), sampler, problem.n_rows)[1]
        training = config.training
        if training.batch_size == "auto":
            yield f"batch size by the loss, at most {device_preset().growth} × its default"
        elif training.lr_scale != 1:
            size, scale = training.batch_size, training.lr_scale
            yield f"{size:,} interactions per step; learning rates × {scale:g}"
        if problem.tau_plus is not None:
            yield f"simulated data: the true τ⁺ is {problem.tau_plus:.4f}"

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
        if _uses_halving(config):
            search_spaces = [
                self._space(each, names, problem) for each, names in _spaces(config, problem)
            ]
            fit = partial(train_points, problem)
            tuned = tune(search_spaces, fit, checkpoints, on_entry, on_stage, _gather_tables)
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
        final = None
        if protocol.final_training == "train" and n_seeds >= protocol.seeds:
            start = choice.point * n_seeds
            final = [_gather_tables(searched, start + i) for i in range(protocol.seeds)]
        return SearchResult(grid_points(axes), choice, final)

    def train_models(
        self, config: Config, problem: Problem, phase: str, searched: SearchResult,
        checkpoints: Path, on_entry: OnEntry, on_stage: OnStage,
    ) -> Iterator[list[Any]]:  # fmt: skip
        """Trains all seeds in parallel, for the selected number of epochs.

        Models of a blend are trained one after the other.
        """
        if phase == "final" and searched.models is not None:
            yield searched.models
            return
        choice, protocol, member_tables = searched.choice, config.protocol, []
        members = searched.blend or (Member(config, choice.point, choice.epochs),)
        seeds = range(protocol.seed, protocol.seed + protocol.seeds)
        for index, (own, point, epochs, _) in enumerate(members):
            values = {name: searched.points[point][name] for name in swept_names(own)}
            suffix = f" model {index + 1} of {len(members)}" if len(members) > 1 else ""
            if epochs == 0:
                on_stage(f"{phase}{suffix}: fitting {own.encoding.model}")
                member_tables.append(
                    [fitted_tables(own, problem, phase, values, seed) for seed in seeds]
                )
                continue
            on_stage(f"{phase}{suffix}: compiling and first epoch")
            numbers: dict[str, Any] = {n: np.float32(value) for n, value in values.items()}
            numbers["seeds"] = np.array(seeds)
            path = checkpoints / (f"{phase}-{index}.npz" if index else f"{phase}.npz")
            fitted = train_runs(
                own, problem, phase, numbers, path, on_entry, stop_at=epochs, index=index
            )
            member_tables.append([_gather_tables(fitted, i) for i in range(fitted.n_runs)])
        if len(members) == 1:
            yield member_tables[0]
            return
        yield [models.blend(seed_tables) for seed_tables in zip(*member_tables, strict=True)]

    def _space(self, config: Config, names: dict[str, Any], problem: Problem) -> Space:
        """Returns the points of the sweep of a configuration, without a grid if there is none."""
        config = self.prepare(config, problem)
        return Space(config, grid_points(SCHEMA.axes(config)), names, model_kind(config))

    def save_models(
        self, config: Config, problem: Problem, phase: str, models: list[Any], folder: Path
    ) -> None:
        """Saves the tables of all seeds, and the recommender of the first that has not diverged."""
        tables = [Tables(each.users, each.items) for each in models]
        stacked = jax.tree.map(lambda *seeds: np.stack(seeds), *tables)
        learned = problem.parts_for(phase, config.protocol.final_training)
        save_model(folder, Model(stacked, problem.known, problem.test, learned), config)
        finite = (t for t in models if all(np.isfinite(x).all() for x in jax.tree.leaves(t)))
        if (first := next(finite, None)) is not None:  # otherwise `topk` reports the divergence
            encoding = config.encoding
            known = problem.union(problem.parts_for("use", "all"))
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
            phase: describe_parts(problem.parts_for(phase, final_training))
            for phase in self.phases(config)
        }
        draw_curves(
            path, history, f"{title}, {source_name(config.source)}", points=searched.points,
            choice=searched.choice, learned=learned,
        )  # fmt: skip

    def describe_choice(self, searched: SearchResult) -> str:
        """See :meth:`RecommenderStudy.describe_choice`."""
        choice = searched.choice
        if np.isnan(choice.score):
            return f"trained for {choice.epochs} epochs, without validation data"
        return (
            f"chosen on validation data: {choice.epochs} epochs, {self.score} "
            f"{choice.score:.4f} (mean with the validations just before and after)"
        )

    def improvement(self, config: Config) -> str:
        """See :meth:`RecommenderStudy.improvement`."""
        return TRAINING_ADVICE

    def max_epochs(self, config: Config) -> int | None:
        """See :meth:`RecommenderStudy.max_epochs`; halving prefers complete trainings."""
        return None if _uses_halving(config) else int(config.training.epochs or 0)


def _gather_tables(fitted: tasks.RankingResult, run: int) -> Any:
    return gather(serving_tables(fitted, run))


def _check_debias(config: Config) -> None:
    """Checks that ``--debias auto`` has hyper-parameters to estimate, and no other search."""
    loss, loss_flags = config.objective.loss, OBJECTIVES[config.objective.loss].flags
    if "tau_plus" not in loss_flags:
        debiased = ", ".join(
            name for name, entry in OBJECTIVES.items() if "tau_plus" in entry.flags
        )
        raise ValueError(f"--debias auto needs one of the losses {debiased}, got {loss}.")
    if config.protocol.tune:
        raise ValueError("--debias auto decides on beta by the default search: omit --tune.")
    if "alpha" in swept_names(config):
        raise ValueError("--debias auto measures alpha: omit --sweep alpha.")


def _uses_halving(config: Config) -> bool:
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


def _with_batch_size(config: Config, sampler: samplers.Sampler, problem: Problem) -> Config:
    """Resolves ``--batch-size auto`` by the preset of the first device.

    Raises:
      ValueError: If a batch cannot be sharded over the devices of ``--mesh``.
    """
    training, objective = config.training, get_objective(config)
    base, n_neg = default_batch_size(config.encoding.encoder), objective.count("n_neg")
    counts = n_neg, objective.count("n_pos"), objective.count("n_group")
    n_rows = tasks.count_row_reads(sampler, base, *counts) / base
    n_runs = config.protocol.seeds * math.prod(map(len, SCHEMA.axes(config).values()))
    size = auto_batch_size(
        device_preset(), base, len(problem.train), int(training.epochs or 1),
        bytes_per_example=4 * n_runs * (training.dim * n_rows + n_neg),
    )  # fmt: skip
    check_devices(config.output.device, config.output.mesh, size)
    lr_scale = training.lr_scale * math.sqrt(size / base)
    training = replace(training, batch_size=size, lr_scale=lr_scale)
    return replace(config, training=training)
