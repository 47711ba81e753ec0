"""Files written whole or not at all, and values as JSON knows them."""

import errno
import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What is wrong with a disk, and not with what was asked for.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)

_MARK = b"sha256"


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` if the block succeeds."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")  # others may write it, too
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
    """Puts a folder in the place of one that may be there, which is lost only if that succeeds."""
    folder = Path(folder)
    former = folder.with_name(f".{folder.name}.former")
    if folder.exists():  # a folder cannot be put over another
        os.replace(folder, former)
    try:
        os.replace(draft, folder)
    except OSError:
        if former.exists():
            os.replace(former, folder)
        raise
    shutil.rmtree(former, ignore_errors=True)
    return folder


def write_bytes(path: str | Path, content: bytes) -> Path:
    """Writes a file whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_bytes(content)
    return Path(path)


def with_digest(content: bytes) -> bytes:
    """`content`, and behind it a sha256 of it, which `without_digest` checks."""
    return content + _MARK + hashlib.sha256(content).digest()


def without_digest(stored: bytes) -> bytes:
    """The content of `with_digest`; a ValueError if it is damaged. Without a digest, as it is."""
    content, mark, digest = stored[:-38], stored[-38:-32], stored[-32:]
    if mark != _MARK:
        return stored
    if hashlib.sha256(content).digest() != digest:
        raise ValueError("it is damaged: its sha256 is another")
    return content


def write_text(path: str | Path, text: str) -> Path:
    """Writes a text file, in UTF-8, whole or not at all."""
    return write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any) -> Path:
    """Writes a JSON file whole or not at all; see `plain`."""
    return write_text(path, json.dumps(plain(value), indent=2) + "\n")


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
