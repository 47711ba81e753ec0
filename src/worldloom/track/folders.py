"""Names for folders that hold a result."""

import time
from pathlib import Path


def new_folder(root: Path, name: str) -> Path:
    """`root/name-<time>`, with a number behind it where that is taken; nothing is made yet."""
    wanted = Path(root) / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder, n = wanted, 2
    while folder.exists():
        folder, n = wanted.with_name(f"{wanted.name}-{n}"), n + 1
    return folder
