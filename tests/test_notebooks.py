"""The notebooks run from top to bottom, in small, and a run shows itself in them."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def test_there_is_a_clean_notebook_for_each_suite():
    assert [path.stem for path in NOTEBOOKS] == ["arc", "grid", "plant", "robot"]
    for path in NOTEBOOKS:
        first, *_ = code = [
            cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"
        ]
        assert "%pip install" in "".join(first["source"])
        assert not any(cell["outputs"] for cell in code), f"{path.name}: clear its outputs"


@pytest.mark.slow
@pytest.mark.skipif(
    not (find_spec("nbclient") and find_spec("ipykernel")), reason="needs nbclient and ipykernel"
)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")  # nbclient's and its kernel's own
def test_a_notebook_runs(path, tmp_path, monkeypatch, compiled_once):
    import nbclient
    import nbformat

    if path.stem == "robot" and find_spec("mujoco") is None:
        pytest.skip("mujoco is not installed: pip install 'worldloom[robot]'")
    monkeypatch.setenv("WORLDLOOM_NOTEBOOK_QUICK", "1")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", compiled_once)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = [
        "".join(output["data"].get("text/html", ""))
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if output["output_type"] == "execute_result"
    ]
    drawn = [
        output["data"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    ]
    assert drawn or path.stem not in ("grid", "arc")
    pictures = [
        output["data"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "image/png" in output.get("data", {})
    ]
    assert pictures or path.stem == "arc", "env.render()"
    (run,) = [html for html in shown if "training time" in html]
    assert run.startswith("<iframe srcdoc=")
    assert path.stem not in ("grid", "robot") or "data:image/gif" in run
