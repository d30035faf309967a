"""Signal handling of commands: immediate exit, with a line that explains how to resume.

Python runs a signal handler between two bytecode instructions of the main thread. No handler runs
while that thread compiles; and an exception raised in a handler is lost if it interrupts a
callback, or leaves a library in a state that crashes later. Therefore a separate thread waits for
the signal and terminates the process. This is safe because every output file of a command is either
replaced atomically, or a log that is rewritten when the command resumes.

This module has few imports: it is active before JAX is imported, which takes seconds.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

_SIGNAL_MESSAGES = {"SIGINT": "Interrupted", "SIGTERM": "Terminated", "SIGHUP": "Hung up"}
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it
_advice: Callable[[], str] = lambda: "Start again with the same command."  # noqa: E731


def advise(advice: Callable[[], str]) -> None:
    """Sets the advice on how to resume, which :func:`advice` returns and a signal prints.

    Args:
      advice: Returns the advice; called from another thread when a signal arrives.
    """
    global _advice
    _advice = advice


def advice() -> str:
    """Returns the current advice on how to resume."""
    return _advice()


def run_with_signals(command: Callable[[], int]) -> int:
    """Runs the command of this process and returns its exit status.

    On SIGINT, SIGTERM or SIGHUP, unless the signal is ignored, for example by ``nohup``, the
    process exits with status 130, 143 or 129.
    """
    numbers = [getattr(signal, name) for name in _SIGNAL_MESSAGES if hasattr(signal, name)]
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    for number in handled:
        signal.signal(number, lambda *_: None)  # the thread terminates the process
    threading.Thread(target=_watch, args=(receiver, handled), daemon=True).start()
    try:
        return command()
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def _watch(receiver: socket.socket, handled: list[int]) -> None:
    while (received := receiver.recv(1)) and received[0] not in handled:
        pass
    if received:
        _terminate(received[0])


def _terminate(number: int) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if os.isatty(1):
            os.write(1, f"{_SHOW_CURSOR}\n".encode())
        line = f"{_SIGNAL_MESSAGES[signal.Signals(number).name]}. {_advice()}\n"
        os.write(2, line.encode(errors="backslashreplace"))
    os._exit(128 + number)
