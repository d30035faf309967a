"""How a command ends on a signal: at once and at any moment, with a line that says how to go on.

Python runs a signal's handler between two instructions of the main thread. While that thread
compiles no handler runs; and an exception raised by one gets lost where it strikes a callback, or
leaves a library in a state that crashes later. Here a thread of its own waits for the signal and
ends the process. That is safe because whatever a command writes is either replaced as a whole, or
a log that is written anew when the command goes on.

This module imports little: it is at work before JAX is imported, which takes seconds.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable

_WORDS = {"SIGINT": "Interrupted", "SIGTERM": "Terminated", "SIGHUP": "Hung up"}
_SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it
_advice: Callable[[], str] = lambda: "Start again with the same command."  # noqa: E731


def advise(advice: Callable[[], str]) -> None:
    """Sets what :func:`advice`, and a signal's line, say from now on of how to go on.

    Args:
      advice: Called when a signal comes, from another thread.
    """
    global _advice
    _advice = advice


def advice() -> str:
    """How to go on, as things are."""
    return _advice()


def mind(command: Callable[[], int]) -> int:
    """Runs the command of this process and returns its exit status.

    On an interrupt, SIGTERM or SIGHUP, unless it is ignored, as by ``nohup``, the process ends
    with the status 130, 143 or 129.
    """
    numbers = [getattr(signal, name) for name in _WORDS if hasattr(signal, name)]
    minded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    for number in minded:
        signal.signal(number, lambda *_: None)  # what ends the process is the thread
    threading.Thread(target=_watch, args=(receiver, minded), daemon=True).start()
    try:
        return command()
    finally:
        for number in minded:
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


def _watch(receiver: socket.socket, minded: list[int]) -> None:
    while (received := receiver.recv(1)) and received[0] not in minded:
        pass
    if received:
        _leave(received[0])


def _leave(number: int) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone
        if os.isatty(1):
            os.write(1, f"{_SHOW_CURSOR}\n".encode())
        line = f"{_WORDS[signal.Signals(number).name]}. {_advice()}\n"
        os.write(2, line.encode(errors="backslashreplace"))
    os._exit(128 + number)
