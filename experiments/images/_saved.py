"""The encoder of a run: how it is written, and read for use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from crl_jax import models, train

from .. import _rundir as rundir
from .._learned import Learned
from ._config import SCHEMA, Config
from ._views import make_views
from .encoders import make_backbone

ENCODER = "encoder.npz"


@dataclass(frozen=True)
class Encoder:
    """What a run learned, for images like those it learned from.

    Attributes:
      config: Its configuration.
      network: From views to features.
      params: Parameters of the network.
      rest: Its other variables.
    """

    config: Config
    network: models.Network
    params: Any
    rest: Any

    @property
    def n_channels(self) -> int:
        """Channels of the images that it takes."""
        mean = self.config.views.mean
        assert mean is not None
        return len(mean)

    def features(self, images: np.ndarray, block_size: int = 250) -> np.ndarray:
        """Features of images ``[n, height, width, channels]``, uint8."""
        views = make_views(self.config.views)
        blocks = range(0, len(images), block_size)
        return np.concatenate(
            [
                np.asarray(_features(self, views, jnp.asarray(images[i : i + block_size])))
                for i in blocks
            ]
        )


def _features(encoder: Encoder, views: Any, images: Any) -> Any:
    return _encode(encoder.network, encoder.params, encoder.rest, views, images)


def _encode_plain(network: Any, params: Any, rest: Any, views: Any, images: Any) -> Any:
    return network.apply(params, rest, jax.vmap(views.plain)(images))[0]


_encode = jax.jit(_encode_plain, static_argnums=0)


def save_encoder(folder: Path, learned: Learned) -> None:
    """Writes the backbone of what was learned, without the head."""
    params, rest = learned.task.of_network(learned.params, learned.extra)
    tree = {"params": params["backbone"], "rest": rest["backbone"]}
    train.save_checkpoint(folder / ENCODER, jax.device_get(tree), {})


def load_encoder(folder: Path) -> Encoder:
    """What a run learned.

    Raises:
      ValueError: If there is no trained encoder in ``folder``, or it is damaged.
    """
    config = rundir.open_run(folder, SCHEMA)
    path = folder / ENCODER
    if not path.exists():
        raise ValueError(f"{folder} has no {ENCODER}: its training is not finished.")
    assert config.views.mean is not None
    network = models.Network(make_backbone(config.encoding, len(config.views.mean)))
    like: Any = dict(zip(("params", "rest"), jax.eval_shape(network.init, jax.random.key(0))))
    stored, _ = train.load_checkpoint(path, like)
    return Encoder(config, network, **jax.tree.map(jnp.asarray, stored))
