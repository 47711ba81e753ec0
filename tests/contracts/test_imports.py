"""Who may import whom, and what importing the package costs."""

import importlib.util
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "numpy", "PIL", "tyro", "rich")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    return {name.split(".")[0] for name in json.loads(done.stderr.splitlines()[-1])}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("worldloom", include_external_packages=True, cache_dir=None)


def contracts() -> list[dict]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return settings["tool"]["importlinter"]["contracts"]


def test_the_import_contracts_hold():
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", program, "--no-cache", "--config", "pyproject.toml"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 broken" in done.stdout


def test_every_package_has_its_place_in_the_layers(graph):
    layers = next(c["layers"] for c in contracts() if c["type"] == "layers")
    placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    assert graph.find_children("worldloom") <= placed


def test_the_contract_on_suites_covers_every_suite(graph):
    modules = next(c["modules"] for c in contracts() if c["type"] == "independence")
    assert modules == ["worldloom.envs.*"]
    assert "worldloom.envs.grid" in graph.find_children("worldloom.envs")


def test_the_core_stands_on_jax_numpy_and_flax_struct_alone(graph):
    outside = set()
    for module in graph.find_descendants("worldloom.core"):
        outside |= graph.find_modules_directly_imported_by(module)
    outside = {name for name in outside if not name.startswith("worldloom.core")}
    allowed = {"jax", "jaxlib", "numpy", "flax"} | set(sys.stdlib_module_names)
    assert outside <= allowed, outside - allowed
    for source in (ROOT / "src/worldloom/core").glob("*.py"):
        flax = [line for line in source.read_text().splitlines() if "import" in line.split("#")[0]]
        assert {line for line in flax if "flax" in line} <= {"from flax import struct"}, source


def test_importing_the_package_imports_nothing_heavy():
    loaded = modules_after("import worldloom; worldloom.__version__; worldloom.make")
    assert "worldloom" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


@pytest.mark.skipif(
    importlib.util.find_spec("worldloom.cli") is None, reason="there is no command line yet"
)
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_asking_for_help_imports_nothing_heavy(arguments):
    loaded = modules_after(f"from worldloom import cli; assert cli.main({arguments!r}) == 0")
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


def test_the_references_import_torch_in_the_torch_modules_only(graph):
    importers = graph.find_modules_that_directly_import("torch") if "torch" in graph.modules else ()
    runtime = {
        name
        for name in importers
        if name.startswith("worldloom.reference.") and not name.split(".")[-1].startswith("torch_")
    }
    # weights.py names a torch type for type checkers; it must not need torch to be imported.
    assert runtime <= {"worldloom.reference.weights"}
    assert "torch" not in modules_after("import worldloom.reference.weights")
