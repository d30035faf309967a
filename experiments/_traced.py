"""A step of a training, looked through before anything is computed."""

from typing import Any

import jax
import jax.numpy as jnp

from crl_jax import train


def trace_step(task: train.Task, examples: Any) -> Any:
    """The shape of the loss of a step.

    Args:
      task: What would be trained.
      examples: A batch of its data, every leaf ``[batch, ...]``.

    Raises:
      ValueError: If numbers of the task contradict each other or do not suit the examples.
    """
    n = len(jax.tree.leaves(examples)[0])

    def step(examples: Any) -> Any:
        key, zero = jax.random.key(0), jnp.float32(0)
        params, model_state = task.init(key)
        model_state = task.start_epoch(key, params, model_state, jnp.int32(0))
        batch = task.batch(key, train.Batch(jnp.arange(n, dtype=jnp.int32), examples))
        ctx = train.StepContext(key, jnp.int32(0), zero, jnp.ones(n, bool), jnp.float32(n))
        return task.loss(params, model_state, batch, ctx)[0]

    return jax.eval_shape(step, examples)
