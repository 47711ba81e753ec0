"""`worldloom.train(...)` is one call, whatever was imported before it."""

import inspect
import subprocess
import sys

import pytest

import worldloom


@pytest.mark.parametrize("before", ["", "import worldloom.training.run; import worldloom.suites; "])
def test_train_can_be_called_before_and_after_its_packages_were_imported(before):
    code = (
        f"import worldloom; {before}\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        worldloom.train('treasurehunt', steps=0)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["treasurehunt: steps=0; it must be at least 1"] * 2


def test_every_public_name_is_a_documented_function():
    for name in worldloom.__all__:
        function = getattr(worldloom, name)
        assert inspect.isfunction(function), name
        assert inspect.getdoc(function), name


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 80}, "'epochs' is now steps"),
        ({"env": "treasurehut"}, "there is no world 'treasurehut'; did you mean 'treasurehunt'"),
        ({"world": {"num_agent": 2}}, "treasurehunt has no option 'num_agent'; did you mean"),
        ({"iqn": {"hiden": 2}}, "iqn.hiden is not an option of iqn; did you mean 'hidden'"),
        ({"algo": "sac"}, "sac needs continuous actions"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(settings, message, tmp_path):
    given = {"env": "treasurehunt", "out": tmp_path / "run"} | settings
    with pytest.raises(ValueError, match=message):
        worldloom.train(**given)
    assert not list(tmp_path.iterdir())
