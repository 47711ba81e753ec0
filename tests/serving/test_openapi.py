"""The description of the service: complete, true, and behind the token."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastapi")

from benchmarks import plant_serving
from worldloom.serving.openapi import describe


def test_every_operation_says_what_it_answers_and_who_may_ask(bundle):
    described = describe(bundle, "1", with_token=True)
    assert described["components"]["securitySchemes"] == {
        "token": {"type": "http", "scheme": "bearer"}
    }
    for path, operations in described["paths"].items():
        (operation,) = operations.values()
        open_ = path in ("/health", "/ready")
        assert operation["security"] == ([] if open_ else [{"token": []}])
        assert operation["responses"].keys() > ({"503"} if open_ else {"400", "401"})
        for answer in operation["responses"].values():
            assert all("schema" in content for content in answer["content"].values())
    act = described["paths"]["/act"]["post"]
    assert act["responses"].keys() >= {"408", "409", "413", "415", "422", "429", "503"}
    previous = act["requestBody"]["content"]["application/json"]["schema"]["properties"]["previous"]
    valve = previous["oneOf"][1]["properties"]["valve"]
    assert valve == {
        "type": "number", "minimum": 0.0, "maximum": 100.0, "description": "valve, in %",
    }  # fmt: skip


def test_without_a_token_the_description_asks_for_none(bundle):
    described = describe(bundle, "1", with_token=False)
    assert "securitySchemes" not in described["components"]
    assert "403" in described["paths"]["/act"]["post"]["responses"]


@pytest.mark.slow
def test_schemathesis_finds_nothing(bundle_folder, tmp_path, compiled_once, monkeypatch):
    tool = shutil.which("schemathesis", path=os.fspath(Path(sys.executable).parent))
    if tool is None:
        pytest.skip("schemathesis is not installed")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", os.fspath(compiled_once))
    options = ["--fsync", "none", "--rate", "1e6", "--burst", "1000000", "--deadline", "5"]
    with plant_serving.Server(bundle_folder, tmp_path / "audit.jsonl", options) as server:
        command = [tool, "run", f"{server.url}/openapi.json", "--checks", "all", "--max-examples"]
        command += ["40", "--seed", "1", "--generation-database", "none", "--header"]
        command += [f"Authorization: Bearer {server.token}"]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert server.stop() == 0
    assert plant_serving.verify(server.log)["sound"]
