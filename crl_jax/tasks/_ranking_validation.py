"""How well a ranking task ranks while it is trained."""

from dataclasses import field
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._pytree import STATIC, pytree_dataclass
from ..metrics import EvalLayout, evaluate
from ..models import inner_scores
from ..train import EpochReport, Hook, State


@pytree_dataclass
class RankingValidation(Hook):
    """Ranks the catalogue for the users of a validation part; it encodes once.

    Attributes:
      plan: From :func:`crl_jax.metrics.eval_layout`.
      k: Cut-off of the NDCG. Static.
    """

    layout: EvalLayout
    k: int = field(default=20, metadata=STATIC)

    @property
    def name(self) -> str:
        """What it is called in the history."""
        return f"valid_ndcg@{self.k}"

    def measure(
        self, task: Any, state: State, hook_state: Any, report: EpochReport
    ) -> tuple[Any, dict[str, Array], Bool[Array, ""]]:
        """The mean NDCG over users."""
        tables = task.serving.serving_tables(state.params)
        values = evaluate(
            inner_scores, tables, self.layout, ks=(self.k,), auc=False, mesh=report.mesh
        )
        return hook_state, {self.name: jnp.mean(values[f"ndcg@{self.k}"])}, jnp.bool_(False)
