"""Dockerfile and compose.yaml: what they copy, mount, publish and call is there, and fits.

No image is built here. The commands go through our own parser, the file through Docker's where the
client has the plugin.
"""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from worldloom.cli.main import main

ROOT = Path(__file__).parent.parent
LINES = [
    line for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines() if line
]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
TOKEN = "a-token-for-the-tests"


def stages():
    """Instructions by stage, those of the stages that it is made from first."""
    found, name = {}, ""
    for line in LINES:
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, ()))
        elif instruction != "#":
            found[name].append((instruction, rest))
    return found


def of(stage, instruction):
    return [rest for name, rest in stages()[stage] if name == instruction]


def test_what_is_copied_exists():
    for copied in of("base", "COPY"):
        *sources, _ = copied.split()
        assert all((ROOT / source).exists() for source in sources)


def test_the_extras_that_are_installed_exist():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for stage in ("serve", "studio"):
        asked = [name for run in of(stage, "RUN") for name in re.findall(r"\.\[([\w,]+)\]", run)]
        assert asked
        assert set(",".join(asked).split(",")) <= set(known)


def test_the_image_that_is_built_by_default_serves():
    assert list(stages())[-1] == "serve"


@pytest.mark.parametrize("stage", ["serve", "studio"])
def test_nobody_in_particular_runs_with_a_token(stage):
    (entry,) = map(json.loads, of(stage, "ENTRYPOINT"))
    assert entry[:2] == ["worldloom", stage]
    assert "--no-token" not in entry
    assert of(stage, "USER") == ["server"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_built_from_a_stage_that_there_is(name):
    build = SERVICES[name]["build"]
    assert build["target"] == name
    assert build["target"] in stages()
    assert (ROOT / build["context"] / build["dockerfile"]).samefile(ROOT / "Dockerfile")


@pytest.fixture
def called(monkeypatch, tmp_path):
    """called(service): what its command line comes to, with files of ours for the container's."""
    pytest.importorskip("fastapi")
    from worldloom.serving import serve, studio

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLDLOOM_TOKEN", raising=False)
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "runs").mkdir()
    calls = []
    monkeypatch.setattr(serve, "run_server", lambda config, ready: calls.append(vars(config)))

    def run_studio(made, token, ready, port, host):
        calls.append({"folder": made.runs.folder, "token": token, "port": port, "host": host})

    monkeypatch.setattr(studio, "run_studio", run_studio)

    def call(service):
        (entry,) = map(json.loads, of(service, "ENTRYPOINT"))
        words = [*entry[1:], *SERVICES[service].get("command", [])]
        ours = {"/run/secrets/token": "token", "/runs": "runs"}
        assert main([ours.get(word, word) for word in words]) == 0
        return words, calls[-1]

    return call


@pytest.mark.parametrize("name", SERVICES)
def test_command_ports_and_secrets_of_a_service_fit_together(name, called):
    words, config = called(name)
    service = SERVICES[name]
    assert config["host"] == "0.0.0.0", "or nothing could be published"
    assert config["token"] == TOKEN
    (secret,) = service["secrets"]
    assert f"/run/secrets/{secret}" in words
    assert COMPOSE["secrets"][secret] == {"environment": "WORLDLOOM_TOKEN"}
    ((*_, outside, inside),) = (port.split(":") for port in service["ports"])
    assert str(config["port"]) == inside == outside
    assert of(name, "EXPOSE") == [inside]
    assert re.findall(r"127\.0\.0\.1\D+?(\d{4})", service["healthcheck"]["test"][-1]) == [inside]
    assert "restart" in service


def test_the_studio_is_published_on_this_machine_alone():
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["studio"]["ports"])


@pytest.mark.parametrize("name", SERVICES)
def test_volumes_lie_where_the_command_reads_and_writes(name, called):
    words, _ = called(name)
    mounted = {}
    for volume in SERVICES[name]["volumes"]:
        source, place, *mode = volume.split(":")
        assert source.startswith("./") or source in COMPOSE["volumes"], source
        mounted[place] = mode == ["ro"]
    if name == "serve":
        assert mounted == {"/bundle": True, "/audit": False}
        assert "/bundle" in words
        log = words[words.index("--log") + 1]
        assert Path(log).parent == Path("/audit")
        assert json.loads(*of(name, "VOLUME")) == ["/audit"]
    else:
        assert mounted == {"/runs": True, "/home/server": False}
        assert "/runs" in words
        assert of(name, "WORKDIR")[-1] == "/home/server", "where games are saved"


@pytest.mark.parametrize("name", SERVICES)
def test_what_looks_after_a_service_is_a_program(name):
    kind, python, flag, program = SERVICES[name]["healthcheck"]["test"]
    assert (kind, python, flag) == ("CMD", "python", "-c")
    compile(program, "healthcheck", "exec")


def test_docker_reads_the_file():
    if shutil.which("docker") is None:
        pytest.skip("docker is not installed")
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("the docker client has no compose plugin")
    environment = os.environ | {"WORLDLOOM_TOKEN": TOKEN}
    line = ["docker", "compose", "-f", str(ROOT / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
