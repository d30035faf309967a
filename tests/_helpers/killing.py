"""An exception that ends a training as a kill would, after its checkpoint."""


class Killed(Exception):
    """Ends a training."""


def kill_at(epoch):
    """A callback of history entries that ends the training at an epoch."""

    def kill(entry):
        if entry["epoch"] == epoch:
            raise Killed

    return kill
