"""What several folders of tests share: compiled programs, and one small trained run."""

import json
import os
from pathlib import Path

import pytest

# Before anything imports jax. Tests compare with exact figures: all of them run on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of what the tests take is compiling. Options for that alone: see worldloom.core.compiling.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
)
if "WORLDLOOM_TEST_CACHE" in os.environ:
    # A folder to keep compiled programs in from session to session. Measured: a second session
    # needs 0.4 of the processor time, the first one 1.1 of it; so only where one is named.
    os.environ["WORLDLOOM_TEST_CACHE"] = str(Path(os.environ["WORLDLOOM_TEST_CACHE"]).resolve())
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.environ["WORLDLOOM_TEST_CACHE"])
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

TINY_WORLD = {"height": 6, "width": 6, "num_agents": 2, "horizon": 10, "spawn_prob": 0.1}


@pytest.fixture(scope="session", autouse=True)
def program_folder(tmp_path_factory):
    """Where this session and the processes it starts keep compiled programs: not the user's."""
    temporary = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        temporary = temporary.parent  # one for all workers
    folder = os.environ.get("WORLDLOOM_TEST_CACHE") or str(temporary / "xla")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLDLOOM_CACHE", folder)
        yield folder


@pytest.fixture(scope="session")
def compiled_once(program_folder):
    """One compilation cache for this session and the processes it starts.

    Most of what these tests would wait for is XLA compiling the same small program again.
    """
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": program_folder,
        "jax_persistent_cache_min_compile_time_secs": 0.1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    _configure(settings)
    compilation_cache.reset_cache()  # it remembers the folder it started with
    yield program_folder
    _configure(before)
    compilation_cache.reset_cache()


def _configure(settings):
    import jax

    for name, value in settings.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def tiny():
    """tiny(**changes): settings that compile in seconds and train in a blink."""
    from worldloom.algos.iqn import IQNConfig
    from worldloom.train.config import TrainConfig

    def make(world=None, iqn=None, **changes):
        network = {"hidden": 16, "num_quantiles": 4, "act_quantiles": 4, "batch_size": 8}
        settings = {
            "epochs": 6, "num_worlds": 2, "updates_per_epoch": 2, "memory_rows": 33, "chunk": 2,
            "eval_every": 2, "eval_episodes": 4, "checkpoint_every": 2, "record_period": 0,
            "epsilon_decay": 0.2,
        }  # fmt: skip
        return TrainConfig(
            world=TINY_WORLD | (world or {}),
            iqn=IQNConfig(**(network | (iqn or {}))),
            **(settings | changes),
        )

    return make


@pytest.fixture(scope="session")
def finished_run(tiny, compiled_once, tmp_path_factory):
    """A run folder with everything in it. Look, do not touch: copy it to change it."""
    from worldloom.report.hooks import Pictures
    from worldloom.train.runner import run

    folder = tmp_path_factory.mktemp("runs") / "finished"
    run(tiny(record_period=3), folder, hooks=[Pictures()], command="worldloom train")
    return folder


@pytest.fixture(scope="session")
def read_rows():
    """read_rows(path): the rows of a JSON-lines file; every line must be whole."""

    def read(path: Path) -> list[dict]:
        return [json.loads(line) for line in Path(path).read_text().splitlines()]

    return read


@pytest.fixture(scope="session")
def contents():
    """contents(folder): every file in it, by name, with its bytes."""

    def read(folder: Path) -> dict[str, bytes]:
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {str(path.relative_to(folder)): path.read_bytes() for path in files}

    return read


@pytest.fixture(scope="session")
def neorl2():
    """The folder of NeoRL-2's released data (CC-BY-4.0), which is not part of the project."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "neorl2"
    folder = Path(os.environ.get("WORLDLOOM_NEORL2", beside))
    if not folder.is_dir():
        pytest.skip("NeoRL-2's data are not here; name their folder in WORLDLOOM_NEORL2")
    return folder
