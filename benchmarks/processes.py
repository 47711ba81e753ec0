"""Work in a process of its own, and a compilation cache of one's own."""

import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from worldloom.core.files import plain
from worldloom.core.lazy import resolve

_CACHE_SETTINGS = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@contextmanager
def own_cache() -> Iterator[Path]:
    """An empty compilation cache for a while.

    What compiles first is measured cold whatever this machine ran before; what compiles again,
    here or in a process that is given the folder, is fast.
    """
    temporary = tempfile.TemporaryDirectory(prefix="worldloom-cache-")
    with temporary as folder, cache_at(Path(folder)):
        yield Path(folder)


@contextmanager
def cache_at(folder: Path) -> Iterator[Path]:
    """Compiles into a cache in `folder` for a while; what others compiled is not found there."""
    before = {name: getattr(jax.config, name) for name in _CACHE_SETTINGS}
    _use(dict(zip(_CACHE_SETTINGS, (str(folder), 0.2), strict=True)))
    try:
        yield folder
    finally:
        _use(before)


def _use(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it remembers its folder until told otherwise


def in_fresh_process(
    function: str,
    argument: dict[str, Any],
    cache: Path,
    timeout: float = 3600.0,
    devices: int | None = None,
) -> Any:
    """Calls `function` ("module:name") with `argument` in a new Python; both ends are JSON.

    `devices` splits the processor into so many, which can only be done before JAX starts.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if devices:
        flags += f" --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {
        "XLA_FLAGS": flags.strip(),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "PYTHONPATH": os.pathsep.join(sys.path),  # `function` may be in a folder added here
    }
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.processes", function],
        input=json.dumps(plain(argument)),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
        check=False,
    )
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["it said nothing"]
        raise RuntimeError(f"{function} failed in its process: {said[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    print(json.dumps(plain(resolve(sys.argv[1])(json.load(sys.stdin)))))


def peak_memory_mb() -> float:
    """The largest resident size this process has had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
