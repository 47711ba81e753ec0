"""The doctor says what is there, and what is wrong."""

import json
import tomllib
from pathlib import Path

import jax
import pytest

from worldloom.cli import doctor
from worldloom.core.files import plain
from worldloom.training import machine


@pytest.fixture
def no_cache_chosen(monkeypatch):
    """As if nobody had named a compilation cache; what is set is put back."""
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.delenv("WORLDLOOM_CACHE", raising=False)
    yield monkeypatch
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_working_installation_is_healthy(no_cache_chosen, tmp_path):
    no_cache_chosen.setenv("WORLDLOOM_CACHE", str(tmp_path / "programs"))
    found = doctor.examine()
    assert found["healthy"]
    assert found["problems"] == []
    assert found["compilation_cache"]["folder"] == str(tmp_path / "programs")
    assert (tmp_path / "programs").is_dir()
    assert {"python", "jax", "flax", "numpy", "worldloom"} <= set(found["versions"])
    assert found["optional"].keys() == doctor.OPTIONAL.keys()
    assert found["machine"]["devices"]
    json.dumps(plain(found), allow_nan=False)


def test_every_extra_for_users_is_looked_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(doctor.OPTIONAL.values()) == set(project["optional-dependencies"]) - {"dev", "all"}


def test_a_cache_that_cannot_be_written_is_a_problem_with_a_remedy(no_cache_chosen, tmp_path):
    (tmp_path / "file").write_text("in the way")
    no_cache_chosen.setenv("WORLDLOOM_CACHE", str(tmp_path / "file" / "programs"))
    found = doctor.examine()
    assert not found["healthy"]
    (problem,) = found["problems"]
    assert str(tmp_path / "file" / "programs") in problem
    assert "set WORLDLOOM_CACHE" in problem


def test_a_compiler_that_computes_wrongly_is_a_problem(no_cache_chosen, tmp_path):
    no_cache_chosen.setenv("WORLDLOOM_CACHE", str(tmp_path))
    no_cache_chosen.setattr(jax, "jit", lambda function: lambda x: 7.0)
    found = doctor.examine()
    assert not found["healthy"]
    assert "summed to 7.0 instead of 8" in found["problems"][0]


def test_the_findings_are_shown_with_what_is_missing(no_cache_chosen, tmp_path, capsys):
    no_cache_chosen.setenv("WORLDLOOM_CACHE", str(tmp_path))
    found = doctor.examine() | {
        "optional": {"torch": False, "pettingzoo": True, "onnx": False, "onnxruntime": False},
        "problems": ["it leaks"],
        "healthy": False,
    }
    doctor.show(found)
    told = capsys.readouterr().out
    assert "not installed: torch  (pip install 'worldloom[torch]')" in told
    assert "not installed: onnx, onnxruntime  (pip install 'worldloom[onnx]')" in told
    assert "pettingzoo" not in told
    assert "problem: it leaks" in told
    assert "something needs mending" in told
    assert str(tmp_path) in told, "paths are not broken over lines"


def test_the_cache_folder_follows_the_environment(no_cache_chosen, tmp_path):
    no_cache_chosen.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "worldloom" / "xla"
    no_cache_chosen.delenv("XDG_CACHE_HOME")
    no_cache_chosen.setenv("HOME", str(tmp_path / "home"))
    assert machine.cache_folder() == tmp_path / "home" / ".cache" / "worldloom" / "xla"
    no_cache_chosen.setenv("WORLDLOOM_CACHE", "/elsewhere")
    assert machine.cache_folder() == Path("/elsewhere")


def test_a_cache_that_the_user_chose_stays(no_cache_chosen, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert machine.use_compilation_cache() == tmp_path
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)
