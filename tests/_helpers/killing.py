"""Exception that simulates a killed training, raised after a checkpoint."""


class Killed(Exception):
    """Raised to end a training."""


def kill_at(epoch):
    """Returns a callback for history entries that ends the training at an epoch."""

    def kill(entry):
        if entry["epoch"] == epoch:
            raise Killed

    return kill
