"""Signals are heard at once, also while compiled code holds the main thread."""

import hashlib
import os
import signal
import subprocess
import sys
import threading

import pytest

from worldloom.core import interrupts
from worldloom.core.interrupts import on_signal, stop_when_asked

# A main thread that is in one call of compiled code for minutes, unless it is ended.
BUSY = """
import hashlib, os
from worldloom.core import interrupts

interrupts.PATIENCE = 0.1
def leave():
    print("left", flush=True)
    os._exit(130)

with interrupts.on_signal(leave, leave):
    with interrupts.stop_when_asked(lambda: print("asked", flush=True)) as stop:
        try:
            print("busy", flush=True)
            hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
        except KeyboardInterrupt:  # both signals came before it was busy
            leave()
"""


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_the_first_signal_asks_and_the_second_interrupts(number):
    said, before = [], [signal.getsignal(n) for n in interrupts.SIGNALS]
    with stop_when_asked(lambda: said.append(1)) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert said == [1]
    assert [signal.getsignal(n) for n in interrupts.SIGNALS] == before


def test_contexts_can_be_nested(monkeypatch):
    heard = []
    with on_signal(lambda: heard.append("outer"), heard.clear):
        with stop_when_asked(lambda: heard.append("inner")):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == ["inner", "outer"]
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_both_threads_hear_is_answered_once(monkeypatch):
    """The main thread comes back just when the other one is about to speak up in its place."""
    heard, main_came = [], threading.Event()
    monkeypatch.setattr(interrupts, "PATIENCE", 0.01)
    outer = on_signal(lambda: None, lambda: heard.append("left"))
    with outer, stop_when_asked(lambda: heard.append("asked")):
        handle, looked = signal.getsignal(signal.SIGINT), threading.Event()

        def look(number):
            looked.set()
            main_came.wait(0.2)
            return handle

        monkeypatch.setattr(interrupts.signal, "getsignal", look)
        wakeup = signal.set_wakeup_fd(-1)
        os.write(wakeup, bytes([signal.SIGINT]))  # as the system does
        assert looked.wait(10)
        handle(signal.SIGINT, None)  # as Python does when the main thread is back
        main_came.set()
        monkeypatch.undo()
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    assert heard == ["asked"]


def test_a_second_signal_waits_for_the_main_thread_where_nobody_is_outside(monkeypatch):
    """As in a script that trains: there is no command around it that could end the process."""
    monkeypatch.setattr(interrupts, "PATIENCE", 0.01)
    asked = threading.Event()

    def press_twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            asked.wait(10)

    def work():
        thread.start()
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000_000)  # half a second without an ear
        threading.Event().wait(10)

    thread = threading.Thread(target=press_twice)
    with stop_when_asked(asked.set), pytest.raises(KeyboardInterrupt):
        work()
    thread.join()


def test_a_second_signal_is_heard_though_another_thread_answered_the_first(monkeypatch):
    """The main thread comes back to both at once: Python calls it a single time for them."""
    monkeypatch.setattr(interrupts, "PATIENCE", 0.01)
    asked = threading.Event()
    with stop_when_asked(asked.set):
        handle, wakeup = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
        os.write(wakeup, bytes([signal.SIGINT]))  # as the system does
        assert asked.wait(10)
        monkeypatch.setattr(interrupts, "PATIENCE", 60.0)
        os.write(wakeup, bytes([signal.SIGINT]))
        with pytest.raises(KeyboardInterrupt):
            handle(signal.SIGINT, None)  # as Python does when the main thread is back
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)


def test_other_threads_change_nothing():
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work():
        with stop_when_asked(lambda: None) as stop:
            seen.append((signal.getsignal(signal.SIGTERM) is before, stop.is_set()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(True, False)]


@pytest.mark.slow
def test_signals_are_heard_while_compiled_code_runs():
    command = [sys.executable, "-c", BUSY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "busy\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() == "left\n"
            assert process.wait(60) == 130
        finally:
            process.kill()
