"""How a command ends: its exit status, and an error as one line."""

import sys
import warnings
from collections.abc import Callable

import jax
from rich.console import Console

from crl_jax.train import TrainingDiverged

from ._screen import plain, show_warning


def run(command: Callable[[], None]) -> int:
    """Runs a command and returns its exit status.

    That is 0; 2 for an error, which goes to the standard error as one line; 1 if nobody reads the
    output on.
    """
    warnings.showwarning = show_warning
    try:
        command()
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = None  # nothing left to flush at exit
        return 1
    except (ValueError, ImportError, OSError, TrainingDiverged) as error:
        return _refuse(str(error))
    except MemoryError as error:
        return _refuse(f"out of memory. {error}".strip())
    except jax.errors.JaxRuntimeError as error:  # such as a device without enough memory
        return _refuse(str(error).partition("\n")[0])
    return 0


def _refuse(message: str) -> int:
    Console(stderr=True).print(f"[red]error:[/] {plain(message)}", highlight=False)
    return 2
