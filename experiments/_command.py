"""How a command ends: its exit status, and an error as one line."""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import jax

from crl_jax.train import TrainingDiverged

from ._compiled import keep_compiled
from ._compiler import tune_compiler
from ._processes import joined
from ._screen import show_error, show_warning
from ._signals import advice


def run(command: Callable[[], None], flags: Mapping[str, str]) -> int:
    """Runs a command and returns its exit status.

    That is 0; 2 for an error, which goes to the standard error as one line; 1 if nobody reads the
    output on.

    Args:
      command: What is run.
      flags: Its flags by the arguments that they set, which warnings and errors speak of.
    """
    tune_compiler()
    warnings.showwarning = partial(show_warning, flags)
    keep_compiled()
    try:
        command()
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = None  # nothing left to flush at exit
        return 1
    except (ValueError, ImportError, OSError, TrainingDiverged) as error:
        return _refuse(error, flags)
    except MemoryError as error:
        return _refuse(f"out of memory. {error}".strip(), flags)
    except jax.errors.JaxRuntimeError as error:  # such as a device without enough memory
        said = str(error).partition("\n")[0]
        if joined():
            said = f"not all processes work any more: {said} {advice()}"
        return _refuse(said, flags)
    return 0


def _refuse(message: object, flags: Mapping[str, str]) -> int:
    show_error(flags, message)
    if joined():
        with contextlib.suppress(OSError):  # nobody may read it on
            sys.stdout.flush()
        # To end as usual is to wait for the other processes, which may wait for this one.
        os._exit(2)
    return 2
