"""Execution of a command: its exit status, and one-line error messages."""

import contextlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import partial

import jax

from crl_jax.train import TrainingDiverged

from ._compiler import keep_compiled, tune_compiler
from ._processes import is_distributed
from ._screen import accept_all_characters, show_error, show_warning
from ._signals import advice

_SIZES = ("batch_size", "n_neg", "dim", "width", "queue")
"""Fields whose flags reduce the memory of a program."""
_STATUS = re.compile(
    "(ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION|INTERNAL|RESOURCE_EXHAUSTED|"
    "UNAVAILABLE|UNKNOWN): "
)
"""Status code of the runtime; JAX raises some of its errors as a plain ``ValueError``."""


def run(command: Callable[[], None], flags: Mapping[str, str]) -> int:
    """Runs a command and returns its exit status.

    The status is 0 on success; 2 after an error, which is printed to standard error as one line; 1
    if the reader of standard output has closed the pipe.

    Args:
      command: The function to run.
      flags: Flags by library argument; they replace the argument names in warnings and errors.
    """
    accept_all_characters()
    tune_compiler()
    warnings.showwarning = partial(show_warning, flags)
    keep_compiled()
    try:
        command()
    except BrokenPipeError:  # the reader of the output has closed the pipe
        sys.stdout = None  # prevents a flush at exit
        return 1
    except (
        ValueError, ImportError, OSError, TrainingDiverged, jax.errors.JaxRuntimeError
    ) as error:  # fmt: skip
        return _refuse(_explain(error, flags), flags)
    except MemoryError as error:
        return _refuse(f"out of memory. {error}".strip(), flags)
    return 0


def _explain(error: Exception, flags: Mapping[str, str]) -> object:
    """Returns an error, or the message for one of the runtime, with advice."""
    if not isinstance(error, jax.errors.JaxRuntimeError) and not _STATUS.match(str(error)):
        return error
    message = str(error).partition("\n")[0]
    if "out of memory" in message.lower():  # of a device
        memory_flags = " or ".join(flags[name] for name in _SIZES if name in flags)
        message = f"{message} Reduce {memory_flags}."
    if is_distributed():
        message = f"not all processes work any more: {message.rstrip('.')}. {advice()}"
    return message


def _refuse(message: object, flags: Mapping[str, str]) -> int:
    show_error(flags, message)
    if is_distributed():
        with contextlib.suppress(OSError):  # the pipe may be closed
            sys.stdout.flush()
        # A normal exit would wait for the other processes, which may wait for this one.
        os._exit(2)
    return 2
