"""Names for folders that hold a result."""

import re
import time
from pathlib import Path


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
