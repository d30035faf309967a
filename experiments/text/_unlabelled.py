"""What cannot be done with texts without labels."""

from ..view_losses import settle_loss
from ._config import Config
from .methods import METHODS

_WITHOUT = "--method dropout with --fine-tune-epochs 0 needs none"
_LEFT_OUT = "leave it out"


def refuse_labels(config: Config) -> None:
    """Refuses what needs labels, in a configuration whose texts have none.

    Raises:
      ValueError: If a flag asks for something of the kind.
    """
    method, epochs = config.method.method, config.training.fine_tune_epochs
    learns_alone = METHODS[method].make is not None and not METHODS[method].needs_labels
    source = settle_loss(config.objective, ()).get("alpha_from")
    said = {
        f"--method {method}": (not learns_alone, _WITHOUT),
        f"--fine-tune-epochs {epochs}": (epochs > 0, _WITHOUT),
        "--alpha-from labels": (source == "labels", "--alpha-from views needs none"),
        "--n-labels": (config.source.n_labels is not None, _LEFT_OUT),
        "--sweep": (bool(config.protocol.sweep), f"{_LEFT_OUT}: nothing decides it"),
    }
    for flag, (is_asked, advice) in said.items():
        if is_asked:
            raise ValueError(
                f"{flag} needs labels, and the texts of {config.source.data} have none; {advice}."
            )
