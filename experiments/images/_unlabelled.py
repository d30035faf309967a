"""What cannot be done with images without labels."""

from .._unlabelled import LEFT_OUT, OF_VOTES, asked_beside, asked_of_all, refuse
from ._config import Config
from .methods import METHODS


def refuse_labels(config: Config) -> None:
    """Refuses what needs labels, in a configuration whose images have none.

    Raises:
      ValueError: If a flag asks for something of the kind.
    """
    method, source = config.method.method, config.source
    asked = {
        f"--method {method}": (METHODS[method].needs_labels, "other methods need none"),
        "--valid": (source.valid is not None, LEFT_OUT),
        **asked_of_all(config),
        **asked_beside(config.protocol, (*OF_VOTES, "probe", "probe_epochs")),
    }
    refuse(asked, f"the images of {source.data}")
