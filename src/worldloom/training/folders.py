"""Folders that hold a result: their names, and who may write there."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


def world_label(env: str) -> str:
    """A world's name as a part of file names: my/hunt.py:make is hunt, brax:ant is brax-ant."""
    file = re.fullmatch(r"(.+)\.(py(:\w+)?|ya?ml)", env, re.IGNORECASE)
    return re.sub(r"[^\w.+-]+", "-", Path(file[1]).name if file else env).strip("-")


def new_folder(root: Path, name: str) -> Path:
    """`root/name-<time>`, with a number behind it where that is taken; nothing is made yet."""
    first = Path(root) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = first, 2
    while folder.exists():
        folder, n = first.with_name(f"{first.name}-{n}"), n + 1
    return folder


def is_locked(folder: Path) -> bool:
    """Whether some process trains there now; holds the lock for an instant to find out."""
    if fcntl is None:
        return False
    with suppress(OSError), (Path(folder) / ".lock").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a run folder for this process alone, until the block or the process ends.

    The lock is the system's, on a file that says who has it: a killed process leaves none behind.
    """
    if fcntl is None:
        yield
        return
    path, patience = Path(folder) / ".lock", 3
    while True:
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                if patience := patience - 1:  # somebody may just be looking: `is_locked`
                    time.sleep(0.05)
                    continue
                file.seek(0)
                raise ValueError(
                    f"{folder} is being trained by process {file.read()}; wait for its end, stop "
                    "it, or name another folder"
                ) from None
        except OSError:  # a file system without locks
            pass
        with suppress(FileNotFoundError):  # its owner has just removed it
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.close()
    try:
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
    finally:
        path.unlink(missing_ok=True)
        file.close()
