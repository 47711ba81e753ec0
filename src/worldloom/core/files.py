"""Files written whole or not at all, values as JSON knows them, and files that others wrote."""

import ctypes
import errno
import hashlib
import itertools
import json
import math
import os
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from worldloom.core.names import one_line

# What is wrong with a disk, and not with what was asked for.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

_MARK = b"sha256"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` if the block succeeds."""
    path = Path(path)
    # Others may write it, too: of this machine, or of another with processes of the same numbers.
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.part")
    try:
        yield draft
        sync(draft)  # or a power failure may leave the new name with nothing behind it
        draft.replace(path)
        sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: str | Path) -> None:
    """Puts a file's content, or the names in a folder, on the disk."""
    try:
        file = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
    except OSError:
        if not Path(path).is_dir():  # not every system can do it with folders
            raise


def damaged_name(path: Path) -> Path:
    """A name beside `path` for what is damaged there, FILE.damaged-N; the first that is free."""
    numbers = itertools.count(1)
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in numbers)
    return next(name for name in names if not name.exists())


def replace_folder(draft: str | Path, folder: str | Path) -> Path:
    """Puts a folder in the place of one that may be there: whatever happens, one of them is there.

    The two change places in one step. Where the system cannot do that it takes two, and whoever
    is killed between them leaves the former one to `restore_folder`.
    """
    draft, folder = Path(draft), restore_folder(folder)
    for path in (*draft.rglob("*"), draft):
        sync(path)  # what it replaces is gone for good: a power failure must find the new one whole
    if not folder.exists():
        os.replace(draft, folder)
    elif not _exchange(draft, folder):
        former = _former(folder)
        shutil.rmtree(former, ignore_errors=True)
        os.replace(folder, former)
        try:
            os.replace(draft, folder)
        except OSError:
            os.replace(former, folder)
            raise
    sync(folder.parent)
    for past in (draft, _former(folder)):
        shutil.rmtree(past, ignore_errors=True)
    return folder


def restore_folder(folder: str | Path) -> Path:
    """The folder, put back where somebody was killed while replacing it."""
    folder = Path(folder)
    if not folder.exists():
        with suppress(OSError):  # there is none, or it is not ours to move
            os.replace(_former(folder), folder)
    return folder


def _former(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.former")


def _exchange(one: Path, other: Path) -> bool:
    """Swaps two folders in one step; False where the system or the file system has no such step."""
    calls = {"linux": ("renameat2", -100), "darwin": ("renameatx_np", -2)}  # and their AT_FDCWD
    if sys.platform not in calls:
        return False
    name, here = calls[sys.platform]
    rename = getattr(ctypes.CDLL(None), name, None)  # an old C library has none
    swap = 2  # RENAME_EXCHANGE of the one, RENAME_SWAP of the other
    return rename is not None and rename(here, bytes(one), here, bytes(other), swap) == 0


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Writes a file whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_bytes(content)
    return Path(path)


def with_digest(content: bytes) -> bytes:
    """`content`, and behind it a sha256 of it, which `without_digest` checks."""
    return content + _MARK + hashlib.sha256(content).digest()


def without_digest(stored: bytes) -> bytes:
    """The content of `with_digest`; a ValueError if it is damaged or cut off."""
    content = stored[:-38]
    if with_digest(content) != stored:
        raise ValueError("it is cut off or damaged: it does not end with its sha256")
    return content


def write_text(path: str | Path, text: str) -> Path:
    """Writes a text file, in UTF-8, whole or not at all."""
    return write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> Path:
    """Writes a JSON file whole or not at all; see `plain`."""
    return write_text(path, json.dumps(plain(value), indent=2) + "\n")


def read_json(path: str | Path) -> Any:
    """What a JSON file holds; a ValueError of one line if it is none, NaN and Infinity included."""
    try:
        return json.loads(Path(path).read_bytes(), parse_float=_finite, parse_constant=_finite)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"{path}: {place} is not JSON: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not JSON: byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise ValueError(f"{path}: the lists in it are nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {one_line(error, 120)}") from None


def _finite(number: str) -> float:
    value = float(number)
    if not math.isfinite(value):
        raise ValueError(f"{number[:20]} is not a finite number")
    return value


def check_memory(
    owner: str | Path,
    count: int,
    remedy: str = "take a part of it, or a sound copy",
    share: float = 0.5,
) -> None:
    """Raises ValueError if `count` bytes are more than a share of this machine's memory."""
    try:
        import resource
    except ImportError:  # not a Unix: whoever reads the file finds out
        return
    room = share * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    room = room if limit == resource.RLIM_INFINITY else min(room, share * limit / 2)
    if count > room:
        raise ValueError(
            f"{owner}: {count / 2**30:,.1f} GiB of numbers, where this machine can take "
            f"{room / 2**30:,.1f}; {remedy}"
        )


def plain(value: Any) -> Any:
    """Numbers, lists and text that JSON knows; what is not finite becomes null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
