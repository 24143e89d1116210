"""Settings of every raydiff process: private files, output that may fail, signals that end it, lines while it waits."""

import contextlib
import io
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU
from typing import Any, TextIO

STOP_SIGNALS = (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU)
"""Signals by which users, terminals and batch systems ask a process to end: the default action ends it at once."""
WAIT_S = 10.0  # No wait is longer without a word.
SAME_REQUEST_S = 1.0  # `timeout` signals its command, then the whole process group: that is one request


def interrupt(number: int, *_: object) -> None:
    """Raise KeyboardInterrupt with the number of a signal: a handler."""
    raise KeyboardInterrupt(number)


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal raised this: by `interrupt`, or perhaps by Python's handler. Plug-ins may raise it as well."""
    unknown = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return isinstance(error, KeyboardInterrupt) and (unknown or isinstance((*error.args, None)[0], int))


def prepare_process() -> None:
    """Make files of this process and its children private, and open closed standard streams."""
    os.umask(0o077)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # closed: the next file would get its number, and what libraries print
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        stream = getattr(sys, name) or os.fdopen(number, "w" if number else "r", closefd=False)
        if number and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # A name may have letters that LANG lacks.
        setattr(sys, name, stream)


class OptionalFile(io.FileIO):
    """Standard output or error that drops what it cannot take: its reader has ended, or its disk is full."""

    def write(self, data: Any, /) -> int:
        """Write what can be written."""
        try:
            return super().write(data) or len(data)  # None: it would wait
        except OSError:
            return len(data)


@contextlib.contextmanager
def optional_output(*names: str) -> Iterator[None]:
    """Let work go on where stdout or stderr (`names`) cannot be written. What a caller has put in their place stays."""
    before: dict[str, TextIO] = {name: getattr(sys, name) for name in names}
    for name, stream in before.items():
        if stream is getattr(sys, f"__{name}__") and stream is not None:
            raw = io.BufferedWriter(OptionalFile(1 + (name == "stderr"), "w", closefd=False))
            setattr(sys, name, io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=True))
    try:
        yield
    finally:
        for name, stream in before.items():
            setattr(sys, name, stream)


@contextlib.contextmanager
def stop_signals(handle: Callable[[int], None]) -> Iterator[None]:
    """Call `handle` with the number of each of STOP_SIGNALS, once in SAME_REQUEST_S.

    A signal that is ignored, as under `nohup`, stays ignored. Outside the main thread do nothing.
    """
    last = -math.inf

    def once(number: int, _: object) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before > SAME_REQUEST_S:
            handle(number)

    earlier = {}
    with contextlib.suppress(ValueError):  # outside the main thread
        for number in STOP_SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:
                earlier[number] = signal.signal(number, once)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def signal_of(error: KeyboardInterrupt) -> int:
    """Return the number of the signal that an interrupt stands for."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else SIGINT


@contextlib.contextmanager
def saying(line: Callable[[], str], every_s: float) -> Iterator[None]:
    """Print the line every so many seconds until the block ends."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(every_s):
            print(f"  {line()}", flush=True)

    thread = threading.Thread(target=say, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def waiting(what: str) -> contextlib.AbstractContextManager[None]:
    """Say what is waited for, every WAIT_S until the block ends."""
    since = time.monotonic()
    return saying(lambda: f"waiting for {what} ({time.monotonic() - since:.0f} s)", WAIT_S)
