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
        "        assert 'epochs=0' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError('epochs=0 was accepted')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
