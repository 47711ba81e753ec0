"""The Dockerfile copies what exists and calls what there is; docker itself is not run."""

import json
import re
import tomllib
from pathlib import Path

from worldloom.cli.main import commands

ROOT = Path(__file__).parent.parent
LINES = [
    line for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines() if line
]


def of(instruction):
    return [line.split(maxsplit=1)[1] for line in LINES if line.startswith(f"{instruction} ")]


def test_what_is_copied_exists():
    for copied in of("COPY"):
        *sources, _ = copied.split()
        assert all((ROOT / source).exists() for source in sources)


def test_the_extras_that_are_installed_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = [name for run in of("RUN") for name in re.findall(r"\.\[([\w,]+)\]", run)]
    assert asked
    assert set(",".join(asked).split(",")) <= set(known)


def test_it_serves_as_nobody_in_particular_with_a_token():
    (entry,), (user,) = map(json.loads, of("ENTRYPOINT")), of("USER")
    assert entry[:2] == ["worldloom", "serve"]
    assert "serve" in commands()
    assert "--no-token" not in entry
    assert user != "root"
    options = (ROOT / "src/worldloom/cli/serve.py").read_text()
    for flag in (word for word in entry if word.startswith("--")):
        assert re.search(rf"^\s+{flag[2:].replace('-', '_')}: ", options, re.MULTILINE), flag
