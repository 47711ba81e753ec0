"""Ctrl-C and SIGTERM, heard at once: also while compiled code holds the main thread.

Python calls a handler when its main thread is back from compiled code, which may be compiling for
a minute. A thread that the system wakes at once speaks up in its place.
"""

import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

SIGNALS = (signal.SIGINT, signal.SIGTERM)  # schedulers send the second where people press Ctrl-C
PATIENCE = 1.0  # seconds in which the main thread should be back
_busy: list[Callable[[], bool | None]] = []


@contextmanager
def on_signal(react: Callable[[], object], busy: Callable[[], bool | None]) -> Iterator[None]:
    """Within the block, calls `react` where Ctrl-C is pressed or SIGTERM comes.

    busy: called in its place, in another thread, if the main thread takes longer than `PATIENCE` to
    hear; where it returns False, the main thread is left to react. Other threads than the main one
    hear no signals: in these, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()  # a byte for each signal, until the main thread takes it
    ours.setblocking(False)
    theirs.setblocking(False)
    over = threading.Event()
    # A signal is answered once: whoever takes its byte does it, and says so before the lock opens.
    lock, answered = threading.RLock(), set[int]()  # a handler may interrupt another one

    def take() -> bytes:
        try:
            return ours.recv(64)  # all at once: `timeout` sends one signal twice
        except BlockingIOError:
            return b""

    def handle(signum, frame):
        with lock:
            taken = b"".join(iter(take, b""))
            mine = signum in taken or signum not in answered
            answered.discard(signum)
        if mine:
            react()

    def waits() -> bool:
        return bool(select.select([ours], [], [], 0)[0]) and not over.is_set()

    def watch():
        while select.select([ours], [], []) and not over.is_set():
            looks = (waits() for _ in range(10) if not over.wait(PATIENCE / 10))
            if all(looks):
                with lock:
                    signals = {n for n in take() if signal.getsignal(n) is handle}
                    answered.update(signals)
                if signals and busy() is False:
                    with lock:
                        passed_by = signals - answered  # which the main thread took for answered
                        answered.difference_update(signals)
                    for number in passed_by:
                        os.kill(os.getpid(), number)

    # What is ignored stays so, as under nohup; what another language handles cannot be put back.
    heard = [n for n in SIGNALS if signal.getsignal(n) not in (signal.SIG_IGN, None)]
    former = {number: signal.signal(number, handle) for number in heard}
    wakeup = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    _busy.append(busy)
    try:
        yield
    finally:
        _busy.pop()
        signal.set_wakeup_fd(wakeup)
        for number, handler in former.items():
            signal.signal(number, handler)
        over.set()
        theirs.close()
        thread.join()
        ours.close()


@contextmanager
def stop_when_asked(announce: Callable[[], None]) -> Iterator[threading.Event]:
    """An event that the first signal sets, for an end in good order; another is an interrupt.

    announce: says so.
    """
    stop = threading.Event()
    outer = _busy[-1] if _busy else lambda: False

    def interrupt() -> None:
        raise KeyboardInterrupt

    def ask(again: Callable[[], bool | None]) -> bool | None:
        if stop.is_set():
            return again()
        stop.set()
        return announce()

    with on_signal(partial(ask, interrupt), partial(ask, outer)):
        yield stop
