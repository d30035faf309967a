"""Recommenders on the Hugging Face Hub: a model card, the file of arrays and its checksum."""

import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from .._files import whole
from .._optional import import_optional
from ._base import FILE
from ._baseline import BaselineRecommender, load
from ._recommender import Recommender

_CARD, _CONFIG = "README.md", "config.json"
_TAGS = ("recommendation", "collaborative-filtering", "jax")
_SITE = "https://crl-jax.github.io/crl_jax/"
_REPO_ID = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def save_for_hub(
    folder: str | os.PathLike[str],
    recommender: Recommender | BaselineRecommender,
    repo_id: str,
    *,
    license: str | None = None,
    dataset: str | None = None,
    metrics: Mapping[str, float] | None = None,
    config: Mapping[str, Any] | None = None,
    description: str = "",
    include_known: bool = True,
) -> None:
    """Writes the files of a model repository: ``README.md``, ``config.json``, ``recommender.npz``.

    ``README.md`` is the model card. ``config.json`` holds sizes, metrics, the training
    configuration and the SHA-256 of ``recommender.npz``, which contains arrays only, no pickle.
    :func:`load` reads the folder. It needs no other package.

    Args:
      folder: Created if it does not exist; files of these names are replaced.
      recommender: The model.
      repo_id: The repository that the card refers to, ``"owner/name"``.
      license: Identifier of the licence, as the Hub names it, such as ``"apache-2.0"``.
      dataset: Name of the training data.
      metrics: Values by name, such as ``{"NDCG@10": 0.12}``: finite numbers.
      config: Training configuration, of values that JSON can represent; for instance
        ``config.json`` of a run directory.
      description: First paragraph of the card, in Markdown.
      include_known: Whether the file holds the known interactions of each user, by user id. Without
        them, lists contain known items, and every user counts as cold. Required for a baseline,
        which scores users by them.

    Raises:
      ValueError: If an argument is invalid.
    """
    _check_repo_id(repo_id)
    for name, value in (("license", license), ("dataset", dataset)):
        if value is not None and not isinstance(value, str):
            raise ValueError(f"`{name}` must be a string, got {value!r}.")
    if not isinstance(description, str):
        raise ValueError(f"`description` must be a string, got {description!r}.")
    metrics = _checked_metrics(metrics or {})
    try:
        training = json.loads(json.dumps(dict(config or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(f"`config` must hold values that JSON can represent: {error}.") from None
    known, stored = recommender.known, recommender
    if not include_known:
        if not isinstance(recommender, Recommender):
            raise ValueError("`include_known` must be True for a baseline, got False.")
        none = replace(known, indptr=np.zeros_like(known.indptr), items=known.items[:0])
        stored = replace(recommender, known=none)

    from .. import __version__

    folder = Path(folder)
    stored.save(folder / FILE)
    facts: dict[str, Any] = {
        "library_name": "crl_jax",
        "version": __version__,
        "model": _model(recommender),
        "users": known.n_users,
        "items": known.n_items,
        "interactions": len(known.items),
        "include_known": include_known,
        "license": license,
        "dataset": dataset,
        "metrics": metrics,
        "training": training,
        "sha256": _sha256(folder / FILE),
    }
    _write(folder / _CONFIG, json.dumps(facts, indent=2, ensure_ascii=False) + "\n")
    _write(folder / _CARD, _card(repo_id, facts, description))


def push_to_hub(
    recommender: Recommender | BaselineRecommender,
    repo_id: str,
    *,
    private: bool = True,
    branch: str | None = None,
    message: str = "Upload a recommender",
    api: Any = None,
    **card: Any,
) -> str:
    """Uploads a recommender with its model card to the Hugging Face Hub.

    The repository is created if it does not exist. By default it is private: user ids and, unless
    ``include_known=False``, the interactions of each user are part of the file.

    Args:
      recommender: The model.
      repo_id: The repository, ``"owner/name"``.
      private: Whether a new repository is private.
      branch: Branch to commit to, created if it does not exist; by default ``main``.
      message: Commit message.
      api: Object with the methods ``create_repo``, ``create_branch`` and ``upload_folder`` of
        ``huggingface_hub.HfApi``; by default ``HfApi()``, which uses the token of ``hf auth login``
        or of the variable ``HF_TOKEN``.
      **card: Arguments of :func:`save_for_hub`: ``license``, ``dataset``, ``metrics``, ``config``,
        ``description`` and ``include_known``.

    Returns:
      The commit hash, a ``revision`` of :func:`from_hub`.

    Raises:
      ImportError: If huggingface_hub is not installed and ``api`` is None.
      ValueError: If an argument is invalid, before anything is uploaded.
    """
    _check_repo_id(repo_id)
    api = _hub_api("push_to_hub") if api is None else api
    with tempfile.TemporaryDirectory() as folder:
        save_for_hub(folder, recommender, repo_id, **card)
        api.create_repo(repo_id, private=private, exist_ok=True)
        if branch is not None:
            api.create_branch(repo_id, branch=branch, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, revision=branch, commit_message=message
        )
    return commit.oid


def from_hub(
    repo_id: str, *, revision: str | None = None, sha256: str | None = None, api: Any = None
) -> Recommender | BaselineRecommender:
    """Loads a recommender from the Hugging Face Hub, and verifies its checksum.

    Args:
      repo_id: The repository, ``"owner/name"``, written by :func:`push_to_hub`.
      revision: Branch, tag or commit hash; by default ``main``.
      sha256: Expected SHA-256 of ``recommender.npz``, in lower-case hexadecimal; by default that
        of ``config.json``, which detects damaged files, but not a repository that was changed.
      api: Object with the method ``hf_hub_download`` of ``huggingface_hub.HfApi``; by default
        ``HfApi()``.

    Raises:
      ImportError: If huggingface_hub is not installed and ``api`` is None.
      ValueError: If an argument is invalid, the repository was not written by
        :func:`push_to_hub`, or the checksum differs.
    """
    _check_repo_id(repo_id)
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise ValueError(f"`sha256` must be 64 lower-case hexadecimal digits, got {sha256!r}.")
    api = _hub_api("from_hub") if api is None else api
    if sha256 is None:
        config = Path(api.hf_hub_download(repo_id, _CONFIG, revision=revision))
        try:
            sha256 = str(json.loads(config.read_text("utf-8"))["sha256"])
        except (ValueError, KeyError, TypeError, RecursionError):
            sha256 = ""
        if not _SHA256.fullmatch(sha256):
            raise ValueError(
                f"`repo_id` must name a repository written by push_to_hub, got {repo_id!r}, whose "
                f"{_CONFIG} has no sha256."
            )
    file = Path(api.hf_hub_download(repo_id, FILE, revision=revision))
    if (got := _sha256(file)) != sha256:
        raise ValueError(
            f"{repo_id}/{FILE}: expected the sha256 {sha256}, got {got}: the file is damaged or "
            "was replaced."
        )
    return load(file)


def _hub_api(caller: str) -> Any:
    return import_optional("huggingface_hub", f"{caller} needs huggingface_hub", "hub").HfApi()


def _check_repo_id(repo_id: Any) -> None:
    if not isinstance(repo_id, str) or not _REPO_ID.fullmatch(repo_id):
        raise ValueError(f"`repo_id` must have the form 'owner/name', got {repo_id!r}.")


def _checked_metrics(metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, Mapping):
        raise ValueError(f"`metrics` must be a mapping of names to numbers, got {metrics!r}.")
    for name, value in metrics.items():
        if not isinstance(value, Real) or not math.isfinite(value):
            raise ValueError(f"`metrics` must be finite numbers, got {value!r} for {name!r}.")
    return {name: float(value) for name, value in metrics.items()}


def _model(recommender: Recommender | BaselineRecommender) -> dict[str, Any]:
    """Class and hyper-parameters of a model."""
    if isinstance(recommender, Recommender):
        sizes = {"dim": recommender.items.shape[1], "similarity": recommender.similarity}
        return {"class": "Recommender", **sizes}
    model = recommender.fitted.model
    return {"class": f"BaselineRecommender of {type(model).__name__}", **asdict(model)}


def _card(repo_id: str, facts: dict[str, Any], description: str) -> str:
    """Renders the model card: YAML metadata, whose values are JSON, and Markdown."""
    name = repo_id.split("/")[1]
    metadata: dict[str, Any] = {"library_name": facts["library_name"], "tags": list(_TAGS)}
    if facts["license"] is not None:
        metadata["license"] = facts["license"]
    if facts["dataset"] is not None and facts["metrics"]:
        result = {
            "task": {"type": "recommendation", "name": "Recommendation"},
            "dataset": {"name": facts["dataset"], "type": facts["dataset"]},
            "metrics": [
                {"type": metric, "name": metric, "value": value}
                for metric, value in facts["metrics"].items()
            ],
        }
        metadata["model-index"] = [{"name": name, "results": [result]}]
    known = (
        "contains the ids of users and items and the known interactions of each user"
        if facts["include_known"]
        else "contains the ids of users and items, but no interactions: lists may contain items "
        "that a user already knows, unless they are passed as `exclude`"
    )
    data_facts = {"dataset": facts["dataset"] or "not stated"}
    data_facts |= {key: facts[key] for key in ("users", "items", "interactions")}
    parts = [
        "---",
        *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()),
        "---",
        f"\n# {name}\n",
        *([description.strip() + "\n"] if description.strip() else []),
        f"A recommender trained with [crl_jax]({_SITE}) {facts['version']}. "
        f"License: {facts['license'] or 'not stated'}.\n",
        "## Use\n",
        "```bash\npip install 'crl_jax[hub]'\n```\n",
        "```python\nfrom crl_jax import serving\n",
        f'model = serving.from_hub("{repo_id}")',
        "lists = model.recommend(model.known.user_ids[:3], k=10)\n```\n",
        f"`{FILE}` {known}. Its SHA-256 is `{facts['sha256']}`.\n",
        f"## Data\n\n{_table(data_facts)}\n",
        f"## Model\n\n{_table(facts['model'])}\n",
    ]
    if facts["metrics"]:
        rounded = {name: f"{value:.4g}" for name, value in facts["metrics"].items()}
        parts.append(f"## Metrics\n\n{_table(rounded)}\n")
    if facts["training"]:
        shown = json.dumps(facts["training"], indent=2, ensure_ascii=False)
        parts.append(f"## Training configuration\n\n```json\n{shown}\n```\n")
    return "\n".join(parts)


def _table(rows: Mapping[str, Any]) -> str:
    cells = [[str(x).replace("|", "\\|") for x in row] for row in rows.items()]
    return "\n".join(["| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in cells)])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    with whole(path) as partial:
        partial.write_text(text, "utf-8")
