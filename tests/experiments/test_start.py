"""Tests of the defaults that a run without a recipe starts from, and of their search."""

import csv
import math

import numpy as np
import pytest
from _helpers.studies import history, kill, prepare, read, refused, resume

from crl_jax import baselines, models, serving, train
from experiments._study import SearchResult
from experiments._study_command import configure
from experiments.recommend import main
from experiments.recommend._config import SCHEMA
from experiments.recommend._saved import load_model
from experiments.recommend._study import Recommend
from experiments.recommend.objectives import OBJECTIVES
from experiments.recommend.sampling import SAMPLERS
from experiments.recommend.start import default_epochs, may_add_models, may_change_encoder, spaces

pytestmark = pytest.mark.usefixtures("standard_promotion", "quick_compiles")

LOSSES = [name for name, of in OBJECTIVES.items() if not of.candidates]


def checked_config(*flags):
    """Returns the configuration of a command line, after its checks."""
    config, _, _ = configure(Recommend(), [*flags[:-1], *flags[-1].split()])
    Recommend().check(config)
    return config


def swept_names(config):
    """Returns the names of the numbers that each part of a search tries."""
    parts = [of for of, _ in spaces(config)] if config.protocol.tune else [config]
    return [{*SCHEMA.axes(of)} for of in parts]


@pytest.mark.parametrize("tune", ["", "--tune 0", "--tune 1"])
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_has_defaults(loss, tune):
    config = checked_config(f"--loss {loss} {tune}")
    assert config.objective.loss == loss
    if tune == "--tune 0":
        assert swept_names(config) == [set()]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("loss", ["info_nce", "auto"])
def test_each_sampler_has_defaults(loss, sampler):
    config = checked_config(f"--loss {loss} --sampler {sampler}")
    parts = [of for of, _ in spaces(config)] if loss == "auto" else [config]
    softmax = [of for of in parts if of.objective.loss == "info_nce"]
    assert all((of.objective.n_neg is None) == (sampler == "in-batch") for of in softmax)
    if sampler == "shared":  # that of --loss auto, which pairwise losses replace
        parts = softmax
    assert {of.sampling.sampler for of in parts} == {sampler}


@pytest.mark.parametrize(
    "flags",
    [
        "--loss info_nce",
        "--loss hard --encoder lightgcn --layers 1",
        "--loss debiased --sampler in-batch",
        "--loss bayesian --sampler bns",
        "--loss dpl",
        "--loss mpr",
        "--loss directau",
        "--loss bprac",
    ],
)
def test_defaults_are_resolved_from_data(flags, ratings):
    config, problem = prepare(Recommend(), ["--data", str(ratings), *flags.split()])
    train = problem.train
    assert config.training.epochs == 60  # 1.2 million interactions of this small part are more
    assert config.training.optimizer_mode in ("dense", "rows")
    density = len(train) / (train.n_users * train.n_items)
    has_prior = "tau_plus" in OBJECTIVES[config.objective.loss].flags
    assert config.objective.tau_plus == (density if has_prior else None)


def test_given_tau_plus_overrides_density(ratings):
    flags = ["--data", str(ratings), "--loss", "dpl"]
    config, _ = prepare(Recommend(), [*flags, "--tau-plus", "0.2"])
    assert config.objective.tau_plus == 0.2
    config, _ = prepare(Recommend(), [*flags, "--sweep", "tau_plus=0.1,0.2"])
    assert config.objective.tau_plus is None


def test_lightgcn_uses_inner_products_unless_loss_needs_cosine():
    for loss, similarity in (("info_nce", None), ("hard", None), ("bsl", "cosine")):
        config = checked_config(f"--loss {loss} --encoder lightgcn")
        assert config.encoding.similarity == similarity
        assert ("weight_decay" in swept_names(config)[0]) == (similarity is None)
    config = checked_config("--loss info_nce --encoder lightgcn --similarity cosine")
    assert swept_names(config) == [{"temperature"}]


def test_default_epochs_depend_on_dataset_size():
    """1.2 million interactions, within bounds."""
    assert default_epochs(100) == default_epochs(20_000) == 60
    assert default_epochs(40_000) == default_epochs(40_001) == 30
    assert default_epochs(39_999) == 32
    assert default_epochs(10**5) == default_epochs(10**9) == 16


def test_given_hyperparams_are_not_searched():
    assert swept_names(checked_config("--loss info_nce")) == [{"temperature"}]
    assert swept_names(checked_config("--loss info_nce --temperature 0.5")) == [set()]
    assert swept_names(checked_config("--loss bpr --weight-decay 0.1")) == [set()]
    assert swept_names(checked_config("--loss bpr --lr 0.1")) == [{"weight_decay"}]
    graph = checked_config("--loss info_nce --encoder lightgcn --weight-decay 0.1")
    assert swept_names(graph) == [{"temperature"}]
    config = checked_config("--loss info_nce --sweep lr=1e-3,1e-2")
    assert (config.protocol.sweep, config.protocol.search) == (("lr=1e-3,1e-2",), "grid")
    assert swept_names(checked_config("--loss info_nce --tune 0")) == [set()]
    assert swept_names(checked_config("--loss info_nce --valid-fraction 0.0")) == [set()]


@pytest.mark.parametrize(
    ("flags", "size", "want"),
    [
        ("--tune 5", 10_000, {"mf", "lightgcn"}),
        ("--loss auto --tune 5", None, {"mf", "lightgcn"}),
        ("--tune 5", 600_000, {"mf"}),  # each step would cost a propagation over all of them
        ("", 10_000, {"mf"}),
        ("--encoder mf --loss auto --tune 5", 10_000, {"mf"}),
        ("--encoder lightgcn --loss auto --tune 5", 10_000, {"lightgcn"}),
        ("--loss bpr --tune 5", 10_000, {"mf"}),
        ("--loss auto --dropout 0.1 --tune 5", 10_000, {"mf"}),
        ("--loss auto --optimizer-mode rows --tune 5", 10_000, {"mf"}),
        ("--loss auto --similarity inner --tune 5", 10_000, {"mf", "lightgcn"}),
    ],
)
def test_long_search_tries_other_encoder_on_small_data(flags, size, want):
    found = [of for of, _ in spaces(checked_config(flags), size)]
    assert {of.encoding.encoder for of in found} == want
    for of in found:
        assert of.training.dim == (64 if of.encoding.encoder == "lightgcn" else of.training.dim)


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        ("", "best"), ("--k 5 --seeds 2 --tune 1", "best"), ("--lr 0.1 --model best", "best"),
        ("--loss auto", "trained"), ("--dim 16", "trained"), ("--encoder lightgcn", "trained"),
        ("--mesh data=2", "trained"), ("--model trained", "trained"), ("--loss bpr", "trained"),
    ],
)  # fmt: skip
def test_baselines_compete_unless_flags_configure_training(flags, model):
    config = checked_config(flags)
    assert config.encoding.model == model
    assert ("ease" in Recommend().describe_training(config)) == (model == "best")


@pytest.mark.parametrize(
    ("score", "other", "wins"),
    [(0.0, np.nan, "baseline"), (1.0, np.nan, "trained"), (0.0, 1.0, "trained")],
)
def test_best_model_on_validation_data_is_selected(
    score, other, wins, ratings, tmp_path, monkeypatch
):
    """The search over trained models returns a fixed score, above or below all baselines."""
    scores = np.array([score, other])
    selection = train.Selection(0, 4, score, scores, np.array([4, 0]))
    points = [{"loss": "bpr", "weight_decay": 0.1}, {"loss": "bpr", "weight_decay": 0.2}]

    def tune(spaces, *_):
        own = next(each.config for each in spaces if each.names["loss"] == "bpr")
        return SearchResult(points, selection, config=own, description="searched")

    monkeypatch.setattr("experiments.recommend._study.tune", tune)
    out = tmp_path / "run"
    assert main(["--data", str(ratings), "--out", str(out), "--baselines", "none"]) == 0
    rows = rows_of(out)
    scores = [float(row["valid_ndcg@20"]) for row in rows]
    assert [row["model"] for row in rows] == [
        *[""] * 2, *["item-knn"] * 2, *["ease"] * 3, *["ials"] * 4,
    ]  # fmt: skip
    (best,) = [row for row in rows if row["chosen"] == "1"]
    assert float(best["valid_ndcg@20"]) == (score if wins == "trained" else np.nanmax(scores))
    assert (best["model"] == "") == (wins == "trained")
    chosen = read(out, "metrics.json")["chosen"]["point"]
    saved = serving.load(out / "recommender.npz")
    if wins == "trained":
        assert chosen == points[0]
        assert isinstance(saved, serving.Recommender)
        return
    assert chosen["model"] == best["model"]
    assert isinstance(saved, serving.BaselineRecommender)
    known = prepare(Recommend(), ["--data", str(ratings)])[1].known
    values = {"item-knn": lambda x: baselines.ItemKNN(shrinkage=x), "ease": baselines.EASE}
    number = float(best["model_l2"] or best["model_shrinkage"])
    fitted = values[best["model"]](number).fit(known)
    # The saved model does not recommend test items either.
    want, _ = fitted.recommend(np.arange(5), 3, exclude=saved.known)
    np.testing.assert_array_equal(
        saved.recommend(known.user_ids[:5], 3).items, known.item_ids[want]
    )


@pytest.mark.parametrize("loss", ["info_nce", "bpr", "auto"])
def test_long_search_keeps_given_hyperparams(loss):
    def values(name, *flags):
        return {getattr(of.training, name) for of, _ in spaces(checked_config(*flags))}

    flags = f"--loss {loss} --tune 1"
    assert len(values("lr", flags)) > 1
    assert values("lr", f"{flags} --lr 0.02") == {0.02}
    assert values("dim", f"{flags} --dim 16") == {16}
    assert not {"weight_decay"} & set().union(
        *swept_names(checked_config(f"{flags} --weight-decay 0.2"))
    )
    assert values("weight_decay", f"{flags} --weight-decay 0.2") == {0.2}
    if loss == "info_nce":
        config = checked_config(f"{flags} --temperature 0.5")
        assert {of.objective.temperature for of, _ in spaces(config)} == {0.5}
        assert "temperature" not in set().union(*swept_names(config))


@pytest.mark.parametrize(
    ("text", "flags", "want"),
    [
        ("[objective]\nloss = 'dpl'", "", {"weight_decay"}),
        ("[objective]\nloss = 'dpl'", "--tune 0", set()),
        ("[objective]\nloss = 'dpl'", "--valid-fraction 0", set()),
        ("[objective]\nloss = 'dpl'", "--loss info_nce", {"temperature"}),
        ("[objective]\nloss = 'dpl'\n[training]\nweight_decay = 0.1", "", set()),
        ("[objective]\nloss = 'dpl'\n[protocol]\ntune = 0", "", set()),
        ("[objective]\nloss = 'dpl'\n[source]\nvalid_fraction = 0", "", set()),
        ("[objective]\nloss = 'dpl'\n[protocol]\nsweep = ['lr=1,2']", "", {"lr"}),
        ("[objective]\nloss = 'info_nce'\ntemperature = 0.5", "", set()),
        ("[training]\nlr = 0.1", "--loss bpr", {"weight_decay"}),
    ],
)
def test_config_file_fixes_hyperparams_like_flags(text, flags, want, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    config = checked_config("--config", str(path), flags)
    assert swept_names(config) == [want]
    named = flags.split()[1] if "--loss" in flags else text.split("'")[1]
    assert config.objective.n_neg == checked_config(f"--loss {named}").objective.n_neg


def test_config_file_and_flags_fix_hyperparams_in_search(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[objective]\nloss = 'info_nce'\n[training]\ndim = 16\n[protocol]\ntune = 5")
    found = [of.training for of, _ in spaces(checked_config("--config", str(path), "--lr 0.02"))]
    assert {(of.dim, of.lr) for of in found} == {(16, 0.02)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--loss auto --tune 0", "--loss auto"),
        ("--loss auto --sweep lr=1e-3,1e-2", "--loss auto"),
        ("--loss auto --valid-fraction 0", "--valid-fraction 0 leaves no data"),
        ("--loss info_nce --tune 1 --valid-fraction 0", "--valid-fraction 0 leaves no data"),
        ("--loss info_nce --tune -1", "--tune must be a number of at least 0, got -1"),
        ("--model best --tune 0", "--model best chooses by a search"),
        ("--model best --loss bpr --sweep lr=0.1,0.2", "--model best chooses by a search"),
        ("--model best --mesh data=2", "--model best fits baselines on the host: omit --mesh"),
        ("--loss bpr --tune 1 --blend 2", "--blend 2 sums models of several losses"),
        (
            "--encoder features --item-features x --loss auto --blend 2",
            "--blend 2 needs one vector",
        ),
        ("--model ease --blend 2", "--model ease trains nothing: omit --blend 2"),
        ("--loss auto --temperature 0.2", "--loss auto has no --temperature; it takes no numbers"),
    ],
)
def test_rejects_invalid_searches(flags, message, tmp_path, capsys):
    out = tmp_path / "run"
    assert message in refused(main, [*flags.split(), "--out", str(out)], capsys)
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "want"),
    [
        ("", 3), ("--tune 5", 6), ("--loss auto --tune 5", 6), ("--loss bpr --tune 5", 1),
        ("--tune 5 --blend 1", 1), ("--loss auto --blend 2", 2),
        ("--encoder lightgcn --loss auto --tune 5", 6), ("--encoder lightgcn", 3),
        ("--encoder lightgcn --lr 0.01", 1), ("--encoder lightgcn --blend 1", 1),
        ("--encoder features --item-features x --loss auto --tune 5", 1),
    ],
)  # fmt: skip
def test_blend_size_depends_on_search_flags(flags, want):
    assert checked_config(flags).protocol.blend == want


@pytest.mark.parametrize(
    ("flags", "encoders", "models"),
    [
        ("", True, True), ("--tune 5", True, True), ("--encoder lightgcn", False, True),
        ("--encoder mf --tune 5", False, True), ("--loss auto --mesh data=2", False, False),
        ("--encoder lightgcn --loss auto --contrast simgcl --tune 5", False, False),
    ],
)  # fmt: skip
def test_flags_restrict_added_encoders_and_models(flags, encoders, models):
    config = checked_config(flags)
    assert (may_change_encoder(config), may_add_models(config)) == (encoders, models)


SMALL = ["--epochs", "3", "--eval-every", "1", "--batch-size", "256", "--dim", "8",
         "--baselines", "none"]  # fmt: skip


def rows_of(folder):
    with (folder / "sweep.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_loss_is_selected_on_validation_data(ratings, tmp_path, capsys):
    out = tmp_path / "run"
    flags = ["--data", str(ratings), *SMALL, "--loss", "auto", "--tune", "0.05", "--blend", "1"]
    assert main([*flags, "--out", str(out)]) == 0
    rows, chosen = rows_of(out), read(out, "metrics.json")["chosen"]
    tried = [SCHEMA.axes(of).values() for of, _ in spaces(checked_config(*flags, ""))]
    assert len(rows) == sum(math.prod(map(len, values)) for values in tried)
    (best,) = [row for row in rows if row["chosen"] == "1"]
    assert best["loss"] == chosen["point"]["loss"] in OBJECTIVES["auto"].candidates
    assert chosen["valid_ndcg@20"] == float(best["valid_ndcg@20"])
    assert {line["phase"] for line in history(out)} == {"tune", "final"}
    assert "Search, decided on validation data" in capsys.readouterr().out
    assert main(["topk", "--run", str(out), "--user", "u7"]) == 0


def blended_scores(folder, tables):
    """Returns centred scores of the saved model, and summed standardised scores of ``tables``."""
    served = serving.load(folder / "recommender.npz")
    saved = served.users.astype(np.float64) @ served.items.astype(np.float64).T
    want = 0.0
    for each in tables:
        scores = np.asarray(each.users, np.float64) @ np.asarray(each.items, np.float64).T
        want += (scores - scores.mean(1, keepdims=True)) / scores.std(1, keepdims=True)
    return saved - saved.mean(1, keepdims=True), want


@pytest.fixture
def all_candidates(monkeypatch):
    """Blends all candidates, whatever their validation scores."""

    def choose(score_fn, start, is_own, most):
        assert not all(start) or len(start) == 2  # a fitted model is no part of the start
        return np.ones(len(start), bool), score_fn(np.ones(len(start), bool))

    monkeypatch.setattr("experiments.recommend._blending.choose", choose)


@pytest.fixture
def trained_tables(monkeypatch):
    """Collects the tables that trainings return, in order."""
    found = []

    def tables_of(fitted, run):
        found.append(fitted.tables(run))
        return found[-1]

    monkeypatch.setattr("experiments.recommend._study.serving_tables", tables_of)
    return found


@pytest.mark.usefixtures("all_candidates")
def test_blend_sums_standardized_scores_and_resumes_after_kill(
    ratings, tmp_path, monkeypatch, trained_tables, capsys
):
    """A pairwise and a softmax loss; the run ends the same if it is killed in the second model."""
    flags = ["--data", str(ratings), *SMALL, "--loss", "auto", "--model", "trained"]
    flags += ["--blend", "2", "--checkpoint-seconds", "0"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert main([*flags, "--out", str(whole)]) == 0
    screen = capsys.readouterr().out
    np.testing.assert_allclose(*blended_scores(whole, trained_tables[-2:]), rtol=1e-3, atol=1e-3)
    chosen = read(whole, "metrics.json")["chosen"]
    assert [each["loss"] for each in chosen["blend"]] in (["bpr", "info_nce"], ["info_nce", "bpr"])
    assert chosen["blend"][0] == {**chosen["point"], "epochs": chosen["epochs"]}
    assert "blended, each standardised by user: loss=" in " ".join(screen.split())
    assert [line.get("run", 0) for line in history(whole) if line["phase"] == "final"][-1] == 1
    kill(
        main,
        [*flags, "--out", str(out)],
        monkeypatch,
        lambda checkpoint, _: checkpoint._path.stem == "final-1",
    )
    resume(main, out, monkeypatch)
    assert history(out) == history(whole)
    got, want = (serving.load(of / "recommender.npz") for of in (out, whole))
    np.testing.assert_array_equal(got.users, want.users)
    np.testing.assert_array_equal(got.items, want.items)


@pytest.mark.usefixtures("all_candidates")
def test_blend_includes_fitted_models(ratings, tmp_path, trained_tables, capsys):
    flags = ["--data", str(ratings), *SMALL, "--loss", "auto", "--model", "trained"]
    out = tmp_path / "run"
    assert main([*flags, "--tune", "0.001", "--out", str(out)]) == 0
    model = load_model(out)
    chosen, rows = read(out, "metrics.json")["chosen"], rows_of(out)
    screen = " ".join(capsys.readouterr().out.split())
    n_trained = sum("loss" in each for each in chosen["blend"])
    assert n_trained >= 1
    tables = trained_tables[-n_trained:]
    for name, kind, n_points in (("ease", baselines.EASE, 3), ("ials", baselines.IALS, 4)):
        (l2,) = [each["model_l2"] for each in chosen["blend"] if each.get("model") == name]
        own = [row for row in rows if row["model"] == name]
        best = max(own, key=lambda row: float(row["valid_ndcg@20"]))
        assert (len(own), float(best["model_l2"])) == (n_points, l2)
        tables.append(models.Tables(*kind(l2=l2).fit(model.known).vectors()))
        assert f"model={name} model_l2={l2:g} (" in screen
    np.testing.assert_allclose(*blended_scores(out, tables), rtol=2e-3, atol=2e-3)


@pytest.mark.usefixtures("all_candidates")
@pytest.mark.parametrize("flags", [("--model", "best"), ("--encoder", "lightgcn")], ids=" ".join)
def test_blend_adds_fitted_models_to_selected_run(ratings, tmp_path, monkeypatch, flags):
    monkeypatch.setattr("experiments.recommend._alongside._competitors", lambda *_: [])
    out = tmp_path / "run"
    flags = ["--data", str(ratings), *SMALL, "--loss", "auto", "--blend", "3", *flags]
    assert main([*flags, "--out", str(out)]) == 0
    selected, *fitted = read(out, "metrics.json")["chosen"]["blend"]
    assert selected["loss"] in ("bpr", "info_nce")
    assert [each["model"] for each in fitted] == ["ease", "ials"]
    assert [line.get("run", 0) for line in history(out) if line["phase"] == "final"][-1] == 0


def test_blend_may_keep_only_fitted_model(ratings, tmp_path, monkeypatch):
    def choose(score_fn, start, is_own, most):
        chosen = np.arange(len(start)) == len(start) - 1
        return chosen, score_fn(chosen)

    monkeypatch.setattr("experiments.recommend._blending.choose", choose)
    out = tmp_path / "run"
    flags = ["--data", str(ratings), *SMALL, "--loss", "auto", "--model", "trained"]
    assert main([*flags, "--tune", "0.001", "--out", str(out)]) == 0
    chosen = read(out, "metrics.json")["chosen"]
    assert chosen["point"]["model"] == "ials"
    assert "blend" not in chosen
    assert isinstance(serving.load(out / "recommender.npz").fitted.model, baselines.IALS)
    assert main(["topk", "--run", str(out), "--user", "u7"]) == 0


def test_killed_search_resumes_to_same_result(ratings, tmp_path, monkeypatch):
    """Killed in each rung of the search, and in the final training."""
    flags = ["--data", str(ratings), *SMALL, "--loss", "info_nce", "--search", "halving"]
    flags += ["--sweep", "temperature=0.1,0.2,0.3,0.4", "--checkpoint-seconds", "0"]
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert main([*flags, "--out", str(whole)]) == 0
    assert [line["phase"] for line in history(whole)][:4] == ["tune"] * 4
    start = [*flags, "--out", str(out)]
    for _ in range(3):
        kill(main, start, monkeypatch, lambda checkpoint, loop: loop.epoch == 1)
        start = ["--resume", str(out)]
    resume(main, out, monkeypatch)
    assert history(out) == history(whole)
    assert rows_of(out) == rows_of(whole)
    got, want = (read(of, "metrics.json") | {"seconds": 0} for of in (out, whole))
    assert got == want
