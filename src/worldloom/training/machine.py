"""What ran where: versions and machine for every result, and the compilation cache."""

import os
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "worldloom", "jax", "jaxlib", "flax", "optax", "numpy", "torch", "mujoco", "mujoco-mjx", "brax",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Installed versions of what results depend on; packages that are absent are left out."""
    installed = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def machine() -> dict[str, Any]:
    """Processor, cores, memory and devices of this machine."""
    import jax

    return {
        "platform": platform.platform(terse=True),
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "memory_gb": _memory_gb(),
        "devices": [f"{d.platform}:{d.device_kind}" for d in jax.devices()],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def cache_folder() -> Path:
    """Where compiled programs are kept between runs; WORLDLOOM_CACHE overrides it."""
    if "WORLDLOOM_CACHE" in os.environ:
        return Path(os.environ["WORLDLOOM_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "worldloom" / "xla"


def use_compilation_cache() -> Path:
    """Turns JAX's persistent compilation cache on, unless the user already chose a folder."""
    import jax

    config: Any = jax.config  # its flags are attributes made at run time
    if not config.jax_compilation_cache_dir:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    return Path(config.jax_compilation_cache_dir)
