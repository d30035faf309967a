"""What cannot be done with texts without labels."""

from .._unlabelled import LEFT_OUT, OF_VOTES, asked_beside, asked_of_all, refuse
from ._config import Config
from .methods import METHODS

_WITHOUT = "--method dropout with --fine-tune-epochs 0 needs none"


def refuse_labels(config: Config) -> None:
    """Refuses what needs labels, in a configuration whose texts have none.

    Raises:
      ValueError: If a flag asks for something of the kind.
    """
    method, epochs = config.method.method, config.training.fine_tune_epochs
    learns_alone = METHODS[method].make is not None and not METHODS[method].needs_labels
    asked = {
        f"--method {method}": (not learns_alone, _WITHOUT),
        f"--fine-tune-epochs {epochs}": (epochs > 0, _WITHOUT),
        "--n-labels": (config.source.n_labels is not None, LEFT_OUT),
        "--valid": (config.source.valid is not None, LEFT_OUT),
        **asked_of_all(config),
        **asked_beside(config.protocol, OF_VOTES),
    }
    refuse(asked, f"the texts of {config.source.data}")
