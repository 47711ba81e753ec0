"""`worldloom.train(...)` is one call, whatever was imported before it."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("before", ["", "import worldloom.train.config as config; config.MODES; "])
def test_train_can_be_called_before_and_after_its_package_was_imported(before):
    code = (
        f"import worldloom; {before}\n"
        "for _ in range(2):\n"
        "    try:\n"
        "        worldloom.train('treasurehunt', epochs=0)\n"
        "    except ValueError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["epochs=0; it must be at least 1"] * 2
