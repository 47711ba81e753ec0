"""Who may import whom, and what importing the package costs."""

import ast
import json
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Literal, get_args, get_origin

import grimp
import pytest

from worldloom import suites

ROOT = Path(__file__).parents[2]
HEAVY = ("jax", "jaxlib", "flax", "optax", "orbax", "torch", "numpy", "PIL", "tyro", "rich")


def modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after running `code`."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=1200, check=True
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
        cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 broken" in done.stdout


def test_every_package_has_its_place_in_the_layers(graph):
    layers = next(c["layers"] for c in contracts() if c["type"] == "layers")
    placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    assert graph.find_children("worldloom") <= placed


def test_the_contract_on_suites_covers_every_suite(graph):
    modules = next(c["modules"] for c in contracts() if c["type"] == "independence")
    assert set(modules) == graph.find_children("worldloom.suites")
    assert {name.rpartition(".")[2] for name in modules} == set(suites.SUITES)


def test_every_world_is_held_to_the_contract_on_worlds(graph):
    (contract,) = [c for c in contracts() if c["name"].startswith("Worlds know no")]
    makers = [world.make for name in suites.SUITES for world in suites.suite(name).worlds.values()]
    modules = {maker.partition(":")[0] for maker in makers}
    assert modules <= set(contract["source_modules"])
    assert set(contract["source_modules"]) <= graph.modules, "and none that is no more"


def test_every_command_and_every_part_of_a_suite_is_where_it_is_said_to_be():
    """They are named by text, which nothing else checks before it is used."""
    from worldloom.cli.main import commands
    from worldloom.cli.report import WRITERS
    from worldloom.core.lazy import resolve

    places = {where for where, _ in commands().values()}
    for name in suites.SUITES:
        suite = suites.suite(name)
        places |= {world.make for world in suite.worlds.values()} | set(WRITERS.values())
        parts = [suite.problem, suite.page, suite.export, suite.film, suite.play, suite.studio]
        parts.append(suite.select)
        documented = [part.__doc__ for part in parts if part is not None]
        places |= {text.split("`")[1] for text in documented if text and text.startswith("See `")}
    assert len(places) > 30
    for place in sorted(places):
        assert callable(resolve(place)), place


def test_the_shell_decides_nothing_by_a_name_of_a_suite():
    """What is particular about a suite or a world is asked of the descriptor."""
    named = set(suites.SUITES)
    for suite in map(suites.suite, suites.SUITES):
        named |= {*suite.worlds, *suite.commands, *suite.presets}
        kinds = [setting.type for setting in fields(suite.settings)]
        named |= {
            choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind)
        }
    assert "torch_sequential" in named
    for shell in ("cli", "training", "report", "serving"):
        for source in (ROOT / "src/worldloom" / shell).rglob("*.py"):
            compared = [
                n for n in ast.walk(ast.parse(source.read_text())) if isinstance(n, ast.Compare)
            ]
            parts = [part for node in compared for part in ast.walk(node)]
            words = {part.value for part in parts if isinstance(part, ast.Constant)}
            assert named.isdisjoint(w for w in words if isinstance(w, str)), source


def test_the_core_stands_on_jax_numpy_jaxtyping_and_flax_struct_alone(graph):
    outside = set()
    for module in graph.find_descendants("worldloom.core") - {"worldloom.core.yaml_nodes"}:
        outside |= graph.find_modules_directly_imported_by(module)
    outside = {name for name in outside if not name.startswith("worldloom.core")}
    allowed = {"jax", "jaxlib", "jaxtyping", "numpy", "flax"} | set(sys.stdlib_module_names)
    assert outside <= allowed, outside - allowed
    for source in (ROOT / "src/worldloom/core").glob("*.py"):
        flax = [line for line in source.read_text().splitlines() if "import" in line.split("#")[0]]
        assert {line for line in flax if "flax" in line} <= {"from flax import struct"}, source


@pytest.mark.parametrize(
    "code",
    [
        "import worldloom; worldloom.__version__; worldloom.make",
        "import worldloom; worldloom.worlds(); worldloom.algorithms()",
        "from worldloom.cli.main import main; assert main(['--help']) == 0",
        "from worldloom.cli.main import main; assert main(['--version']) == 0",
        *(f"import worldloom.suites.{name}.suite" for name in suites.SUITES),
    ],
)
def test_descriptors_and_help_import_nothing_heavy(code):
    loaded = modules_after(code)
    assert "worldloom" in loaded
    assert loaded.isdisjoint(HEAVY), loaded & set(HEAVY)


def test_torch_is_imported_in_the_torch_modules_only(graph):
    importers = graph.find_modules_that_directly_import("torch") if "torch" in graph.modules else ()
    assert {name for name in importers if not name.split(".")[-1].startswith("torch_")} == set()
    # It names a torch type for type checkers, and must not need torch to be imported.
    assert "torch" not in modules_after("import worldloom.suites.grid.torch_trainer")
