"""Uploads to a hub of local folders, their model cards and checksums."""

import json
import shutil
import sys
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from _helpers.refusals import raises

from crl_jax import baselines, serving
from crl_jax.data import Interactions
from crl_jax.serving import BaselineRecommender, Recommender

CARD = dict(
    license="apache-2.0",
    dataset="toy",
    metrics={"NDCG@10": 0.123456, "a|b": 1},
    config={"loss": "bpr", "train": {"epochs": 3}},
    description="Recommends *things*.",
)


class LocalHub:
    """``HfApi`` of folders: a folder per repository and revision."""

    def __init__(self, root):
        self.root, self.repos = root, {}

    def create_repo(self, repo_id, *, private, exist_ok):
        assert exist_ok
        self.repos.setdefault(repo_id, {"private": private, "branches": ["main"]})

    def create_branch(self, repo_id, *, branch, exist_ok):
        assert exist_ok
        self.repos[repo_id]["branches"].append(branch)

    def upload_folder(self, *, repo_id, folder_path, revision, commit_message):
        branch, commit = revision or "main", f"c{len(list(self.root.glob('*/*/*')))}"
        assert branch in self.repos[repo_id]["branches"]
        assert commit_message
        for name in (branch, commit):
            shutil.copytree(folder_path, self.root / repo_id / name, dirs_exist_ok=True)
        return SimpleNamespace(oid=commit)

    def hf_hub_download(self, repo_id, filename, *, revision):
        return str(self.root / repo_id / (revision or "main") / filename)


@pytest.fixture
def hub(tmp_path):
    return LocalHub(tmp_path)


def make_log() -> Interactions:
    ids = {"user_ids": np.array(["ann", "bob", "eve"]), "item_ids": np.arange(4) + 10}
    return Interactions.from_arrays([0, 0, 2], [3, 1, 0], **ids)


def make_recommender(seed=0) -> Recommender:
    rng = np.random.default_rng(seed)
    return Recommender.from_tables((rng.normal(size=(3, 5)), rng.normal(size=(4, 5))), make_log())


def assert_same_lists(a, b):
    assert type(a) is type(b)
    assert a.recommend(k=4).to_dict() == b.recommend(k=4).to_dict()


def test_stub_matches_hub_api_signatures():
    """The methods of :class:`LocalHub` have the signatures of ``HfApi``."""
    import inspect

    wanted = {
        "create_repo": {"repo_id", "private", "exist_ok"},
        "create_branch": {"repo_id", "branch", "exist_ok"},
        "upload_folder": {"repo_id", "folder_path", "revision", "commit_message"},
        "hf_hub_download": {"repo_id", "filename", "revision"},
    }
    for name, arguments in wanted.items():
        assert arguments <= set(inspect.signature(getattr(huggingface_hub.HfApi, name)).parameters)


@pytest.mark.parametrize("kind", ["vectors", "baseline"])
def test_push_and_load_round_trip(hub, kind):
    model = make_recommender()
    if kind == "baseline":
        model = BaselineRecommender.from_fitted(baselines.EASE().fit(make_log()))
    commit = serving.push_to_hub(model, "me/toy", api=hub, **CARD)
    assert hub.repos["me/toy"]["private"]
    assert_same_lists(serving.from_hub("me/toy", api=hub), model)
    assert_same_lists(serving.from_hub("me/toy", revision=commit, api=hub), model)
    assert_same_lists(serving.load(hub.root / "me/toy/main"), model)


def test_loads_requested_revision(hub):
    old, new = make_recommender(0), make_recommender(1)
    first = serving.push_to_hub(old, "me/toy", api=hub)
    serving.push_to_hub(new, "me/toy", api=hub, private=False, message="Retrain")
    serving.push_to_hub(new, "me/toy", api=hub, branch="next")
    assert hub.repos["me/toy"] == {"private": True, "branches": ["main", "next"]}
    assert_same_lists(serving.from_hub("me/toy", api=hub), new)
    assert_same_lists(serving.from_hub("me/toy", revision="next", api=hub), new)
    assert_same_lists(serving.from_hub("me/toy", revision=first, api=hub), old)


def test_model_card_has_metadata_and_metrics(tmp_path):
    serving.save_for_hub(tmp_path, make_recommender(), "me/toy", **CARD)
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.license == "apache-2.0"
    assert card.data.library_name == "crl_jax"
    assert "recommendation" in card.data.tags
    got = {(r.dataset_name, r.metric_type): r.metric_value for r in card.data.eval_results}
    assert got == {("toy", "NDCG@10"): 0.123456, ("toy", "a|b"): 1.0}
    for part in (
        "# toy", "Recommends *things*.", 'from_hub("me/toy")', "License: apache-2.0",
        "| users | 3 |", "| interactions | 3 |", "| dim | 5 |", "| NDCG@10 | 0.1235 |",
        "| a\\|b | 1 |", '"epochs": 3', "known interactions of each user",
    ):  # fmt: skip
        assert part in card.text, part
    facts = json.loads((tmp_path / "config.json").read_text())
    assert facts["training"] == CARD["config"]
    assert facts["model"] == {"class": "Recommender", "dim": 5, "similarity": "inner"}
    assert facts["sha256"] in card.text
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        "README.md", "config.json", "recommender.npz"
    ]  # fmt: skip


def test_model_card_without_details(tmp_path):
    serving.save_for_hub(tmp_path, make_recommender(), "me/toy")
    card = huggingface_hub.ModelCard.load(tmp_path / "README.md")
    assert card.data.license is None
    assert card.data.eval_results is None
    assert "License: not stated" in card.text
    assert "Metrics" not in card.text
    assert "Training" not in card.text


def test_include_known_false_omits_histories(tmp_path):
    model = make_recommender()
    serving.save_for_hub(tmp_path, model, "me/toy", include_known=False)
    got = Recommender.load(tmp_path)
    assert len(got.known) == 0
    everything = model.recommend(k=4, include_known=True).to_dict()
    assert got.recommend(k=4).to_dict() == everything
    assert "no interactions" in (tmp_path / "README.md").read_text()
    assert "| interactions | 3 |" in (tmp_path / "README.md").read_text()
    baseline = BaselineRecommender.from_fitted(baselines.Popularity().fit(make_log()))
    with raises(ValueError, match="`include_known` must be True for a baseline"):
        serving.save_for_hub(tmp_path, baseline, "me/toy", include_known=False)


def test_verifies_checksums(hub):
    serving.push_to_hub(make_recommender(0), "me/toy", api=hub)
    facts = json.loads((hub.root / "me/toy/main/config.json").read_text())
    assert_same_lists(
        serving.from_hub("me/toy", sha256=facts["sha256"], api=hub), make_recommender(0)
    )
    with raises(ValueError, match=r"me/toy/recommender.npz: expected the sha256 0{64}, got"):
        serving.from_hub("me/toy", sha256="0" * 64, api=hub)
    make_recommender(1).save(hub.root / "me/toy/main/recommender.npz")
    with raises(ValueError, match=f"expected the sha256 {facts['sha256']}"):
        serving.from_hub("me/toy", api=hub)


@pytest.mark.parametrize(
    "content",
    [b"{}", b"3", b'{"sha256":', b"\xff", b"[" * 100_000, b'{"sha256": null}', b'{"sha256": "ab"}'],
)
def test_rejects_config_without_checksum(hub, content):
    serving.push_to_hub(make_recommender(), "me/toy", api=hub)
    (hub.root / "me/toy/main/config.json").write_bytes(content)
    message = "`repo_id` must name a repository .*'me/toy', whose config.json has no sha256"
    with raises(ValueError, match=message):
        serving.from_hub("me/toy", api=hub)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"repo_id": "toy"}, "`repo_id` must have the form 'owner/name', got 'toy'"),
        ({"metrics": {"n": float("nan")}}, "`metrics` must be finite numbers, got nan for 'n'"),
        ({"metrics": {"ndcg": "high"}}, "`metrics` must be finite numbers, got 'high'"),
        ({"metrics": [("ndcg", 0.1)]}, "`metrics` must be a mapping of names to numbers"),
        ({"license": 2}, "`license` must be a string, got 2"),
        ({"dataset": 0}, "`dataset` must be a string, got 0"),
        ({"description": None}, "`description` must be a string, got None"),
        ({"config": {"model": object()}}, "`config` must hold values that JSON can represent"),
        ({"config": {"lr": float("inf")}}, "`config` must hold values that JSON can represent"),
    ],
)  # fmt: skip
def test_rejects_invalid_arguments_before_upload(hub, arguments, message):
    with raises(ValueError, match=message):
        serving.push_to_hub(make_recommender(), **{"repo_id": "me/toy", "api": hub} | arguments)
    assert not list(hub.root.glob("*/*/*"))
    assert not hub.repos


def test_from_hub_rejects_invalid_arguments(hub, monkeypatch):
    with raises(ValueError, match="`sha256` must be 64 lower-case hexadecimal digits, got 'abc'"):
        serving.from_hub("me/toy", sha256="abc", api=hub)
    with raises(ValueError, match="`repo_id` must have the form"):
        serving.from_hub("a/b/c", api=hub)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for call in (serving.from_hub, lambda to: serving.push_to_hub(make_recommender(), to)):
        with raises(ImportError, match=r"needs huggingface_hub: pip install 'crl_jax\[hub\]'"):
            call("me/toy")
