"""`worldloom data`: exit codes, lines and files of each command."""

import json

import numpy as np
import pytest

from worldloom.replay.dataset import from_columns
from worldloom.replay.dataset_files import load, save
from worldloom.suites.plant.data_command import Check, Convert, Describe, Make, command
from worldloom.suites.plant.logs import read

COMMANDS = {kind.__name__.lower(): kind.__doc__ for kind in (Make, Check, Describe, Convert)}


def reactor_data(rows=60, every=20, seed=0):
    """Made-up rows of the reactor's shape; every tenth row is too hot."""
    rng = np.random.default_rng(seed)
    middle = np.array([0.5, 350.0, 300.0, 350.0, 0.5])
    states = (middle + rng.normal(size=(rows + rows // every, 5))).astype(np.float32)
    at = np.arange(rows) + np.arange(rows) // every
    cost = np.zeros((rows, 3), np.float32)
    cost[::10, 0] = 2.5
    return from_columns(
        states[at], rng.uniform(-1, 1, (rows, 2)), rng.normal(size=rows), states[at + 1],
        np.zeros(rows, bool), np.arange(rows) % every == every - 1, cost=cost, name="made up",
        provenance=(("env", "reactor"), ("quality", "medium"), ("seed", "0"), ("options", "{}")),
    )  # fmt: skip


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """call("check", "file"): exit code and standard output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*argv):
        code = command(argv)
        return code, capsys.readouterr().out

    return run


@pytest.fixture
def made(monkeypatch):
    """make_data without a plant: what it was asked for, and rows that are made up."""
    from worldloom.suites.plant import datasets as plant_data

    asked = []

    def make_data(env_name, quality, steps, seed=0, **options):
        asked.append((env_name, quality, steps, seed, options))
        return reactor_data(steps)

    monkeypatch.setattr(plant_data, "make_data", make_data)
    return asked


# Help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_its_options(name, capsys):
    with pytest.raises(SystemExit) as end:
        command([name, "--help"])
    assert not end.value.code
    told = " ".join(capsys.readouterr().out.split())
    assert "--json" in told
    assert COMMANDS[name].split(",")[0].split(":")[0] in told


def test_the_group_names_its_commands(call):
    code, out = call("--help")
    assert code == 0
    assert all(f"  {name}" in out for name in COMMANDS)
    with pytest.raises(ValueError, match="there is no command 'chek'; did you mean 'check'"):
        call("chek")


# make --------------------------------------------------------------------------------------------


def test_make_writes_the_file_and_says_what_is_next(call, made):
    code, out = call("make", "reactor", "--quality", "expert", "--steps", "60", "--seed", "3",
                     "--world", "drift=1")  # fmt: skip
    assert code == 0
    assert made == [("reactor", "expert", 60, 3, {"drift": 1})]
    path = "data/reactor-expert-60-seed3.npz"
    assert f"worldloom data describe {path}" in out
    assert "runaway" in out
    assert "10.00%" in out
    assert load(path).size == 60


def test_make_refuses_before_it_works(call, made):
    call("make", "reactor", "--steps", "60", "--out", "a.npz")
    with pytest.raises(FileExistsError, match=r"a\.npz is there already; use --force"):
        call("make", "reactor", "--steps", "60", "--out", "a.npz")
    with pytest.raises(ValueError, match=r"a\.csv: the name must end in \.npz"):
        call("make", "reactor", "--out", "a.csv")
    assert len(made) == 1
    code, out = call("make", "reactor", "--steps", "60", "--out", "a.npz", "--force", "--json")
    assert (code, len(made)) == (0, 2)
    told = json.loads(out)
    assert (told["rows"], told["episodes"]) == (60, 3)
    assert [limit["rows"] for limit in told["limits"]] == [6, 0, 0]


# check -------------------------------------------------------------------------------------------


def test_check_is_0_for_sound_data(call):
    save(reactor_data(), "a.npz")
    code, out = call("check", "a.npz")
    assert (code, out.splitlines()[0]) == (0, "a.npz: 60 rows, no defects")
    assert "ranges were not checked" in out
    assert "ranges were not checked" not in call("check", "a.npz", "--env", "reactor")[1]


def test_check_is_1_for_defects_and_names_them(call):
    save(reactor_data(), "a.npz")
    with np.load("a.npz") as stored:
        arrays = dict(stored)
    arrays["obs"][7, 1] = np.nan
    arrays["action"][[3, 9, 12, 40], 0] = 4.0
    del arrays["digest"]
    np.savez("b.npz", **arrays)
    code, out = call("check", "b.npz", "--show", "2")
    assert code == 1
    assert "row 7: obs[1] is nan" in out
    assert "row 3: action[0] is 4, outside of [-1, 1]" in out
    assert "row 12" not in out
    assert "and 2 more; --show -1 prints all" in out
    code, out = call("check", "b.npz", "--json", "--show", "-1")
    told = json.loads(out)
    assert (code, told["sound"]) == (1, False)
    assert told["counts"] == {"not_finite": 1, "action_range": 4}
    assert [d["row"] for d in told["defects"]] == [7, 3, 9, 12, 40]


def test_check_against_a_plant_uses_its_signals(call):
    data = reactor_data()
    save(data, "a.npz")
    hot = data.rows.replace(obs=data.rows.obs.at[20, 1].set(500.0))
    save(from_columns(**vars(hot)), "b.npz")
    code, out = call("check", "b.npz", "--env", "reactor")
    assert code == 1
    assert "row 20: temperature is 500, outside of [300, 400]" in out
    with pytest.raises(ValueError, match="there is no plant 'reactr'; did you mean 'reactor'"):
        call("check", "a.npz", "--env", "reactr")


def test_unreadable_files_raise_which_the_command_turns_into_2(call, tmp_path):
    (tmp_path / "a.npz").write_text("nothing")
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    for argv, message in (
        (["a.npz"], "a.npz is not an npz file"),
        (["none.npz"], "there is no such file"),
        (["none/here-v0"], "there is no such file, nor a Minari dataset"),
        (["a.csv"], "a.csv: what its columns mean is not known; name a YAML file by --mapping"),
        (["a.npz", "--mapping", "m.yaml"], "--mapping is for tables"),
    ):
        with pytest.raises((ValueError, OSError), match=message):
            call("check", *argv)


def test_a_file_that_was_changed_is_not_called_sound(call):
    save(reactor_data(), "a.npz")
    with np.load("a.npz") as stored:
        arrays = dict(stored)
    arrays["reward"][3] += 1.0
    np.savez("a.npz", **arrays)
    with pytest.raises(ValueError, match="the file was changed or damaged"):
        call("check", "a.npz")


# describe ----------------------------------------------------------------------------------------


def test_describe_writes_a_page_beside_the_file(call, tmp_path):
    save(reactor_data(), "a.npz")
    code, out = call("describe", "a.npz")
    assert code == 0
    assert "a.html" in out
    page = (tmp_path / "a.html").read_text()
    assert "temperature [K]" in page
    assert "thermal_shock" in page
    code, out = call("describe", "a.npz", "--json", "--out", "other.html")
    told = json.loads(out)
    assert (tmp_path / "other.html").exists()
    assert told["return"]["mean"] == pytest.approx(
        float(reactor_data().rows.reward.sum() / 3), rel=1e-4
    )
    assert [s["name"] for s in told["signals"]][:2] == ["concentration", "temperature"]


def test_describe_works_without_a_plant(call):
    save(reactor_data().replace(provenance=()), "a.npz")
    code, out = call("describe", "a.npz", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["signals"][1]["name"] == "obs[1]"
    assert [limit["limit"] for limit in told["limits"]] == ["cost[0]", "cost[1]", "cost[2]"]


def test_describe_refuses_a_plant_of_another_shape(call):
    save(
        from_columns(np.zeros((2, 2)), np.zeros((2, 1)), [0, 1], np.ones((2, 2)), [0, 0], [0, 1]),
        "a.npz",
    )
    with pytest.raises(ValueError, match="2 signals and 1 actions are not those of reactor"):
        call("describe", "a.npz", "--env", "reactor")


# convert -----------------------------------------------------------------------------------------

MAPPING = """
observation: [{column: T, name: temperature, unit: K, low: 0, high: 500}]
action: [{column: u, low: 0, high: 10}]
reward: r
time: t
"""


def test_a_csv_export_becomes_an_npz_file(call, tmp_path):
    (tmp_path / "m.yaml").write_text(MAPPING)
    (tmp_path / "a.csv").write_text("t,T,u,r\n0,300,0,1\n1,310,5,2\n2,320,10,3\n")
    assert call("check", "a.csv", "--mapping", "m.yaml")[0] == 0
    code, out = call("convert", "a.csv", "--mapping", "m.yaml", "--out", "a.npz")
    assert (code, out.splitlines()[0]) == (0, "2 rows written to a.npz")
    assert load("a.npz").rows.action[:, 0].tolist() == [-1.0, 0.0]
    code, out = call("describe", "a.csv", "--mapping", "m.yaml")
    assert code == 0
    assert "temperature [K]" in (tmp_path / "a.html").read_text()


def test_convert_must_know_where_to(call):
    for argv in ([], ["--out", "a.npz", "--minari", "a/b-v0"]):
        with pytest.raises(ValueError, match=r"by --out FILE\.npz or by --minari ID"):
            call("convert", "x.npz", *argv)


def test_minari_missing_is_a_line_and_not_a_traceback(call, monkeypatch):
    from worldloom.adapters import minari

    def missing(*args, **options):
        raise ImportError("needs minari")

    monkeypatch.setattr(minari, "save", missing)
    save(reactor_data(), "a.npz")
    with pytest.raises(ImportError, match="needs minari"):  # a line, for the command
        call("convert", "a.npz", "--minari", "a/b-v0")
    assert read("a.npz").name == "made up"
