"""What several folders of tests share: compiled programs, and one small trained run."""

import ctypes
import gc
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

# Before anything imports jax. Tests compare with exact figures: all of them run on the CPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of what the tests take is compiling, which these options halve; what comes out is slower
# code of the same arithmetic. Options that a user has: see worldloom.core.compiling. On one core,
# 32 parts of a program take a fifth longer to compile than the whole.
QUICK = "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1"
if tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11):  # a later one ends at this flag
    QUICK += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", QUICK)
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")
if WORKER and hasattr(os, "sched_setaffinity"):
    # A core for each worker: where the threads of two share two cores, compiling takes half as
    # long again. More threads than cores, because XLA's pool can wait for itself: see core.mesh.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(WORKER.removeprefix("gw")) % len(cores)]})
    os.environ.setdefault("NPROC", "4")
if "WORLDLOOM_TEST_CACHE" in os.environ:
    # A folder to keep compiled programs in from session to session. Measured: a second session
    # needs 0.4 of the processor time, the first one 1.1 of it; so only where one is named.
    os.environ["WORLDLOOM_TEST_CACHE"] = str(Path(os.environ["WORLDLOOM_TEST_CACHE"]).resolve())
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.environ["WORLDLOOM_TEST_CACHE"])
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")

# Tracing makes objects by the hundred thousand and hardly any garbage: looking for it as often as
# Python does is a sixth of tracing.
gc.set_threshold(50_000, 20, 100)

# A shell starts what it runs in the background deaf to Ctrl-C, which tests send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A test must not fail because the machine is busy.
hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

MOST_MEMORY_MB = 1500
# Where programs run longer than they compile, they are compiled better.
OPTIMISED = (
    "tests/adapters/test_sorrel_loop",
    "tests/learn",
    "tests/algos/test_cql",
    "tests/algos/test_edac",
    "tests/algos/test_fqe",
    "tests/algos/test_mbpo",
    "tests/algos/test_rebrac",
    "tests/safety",
    "tests/suites/grid/test_grid_learning",
    "tests/suites/plant/test_filter_harm",
    "tests/suites/plant/test_plant_data",
    "tests/suites/plant/test_plant_safety",
)
# Whole runs and commands, whose parts are tested elsewhere: these are of the slow tier.
WHOLE_RUNS = (
    "tests/adapters/test_brax_worlds",
    "tests/adapters/test_gymnasium_plant",
    "tests/benchmarks",
    "tests/cli/test_cli_plant",
    "tests/cli/test_cli_robot",
    "tests/plans",
    "tests/suites/arc/test_arc_training",
    "tests/suites/grid/test_grid_learning",
    "tests/suites/grid/test_partners",
    "tests/suites/plant/test_own_plant",
    "tests/suites/plant/test_plant_online",
    "tests/suites/plant/test_plant_training",
    "tests/suites/robot/test_robot_report",
    "tests/suites/robot/test_robot_training",
)
HEAVY_FIRST = (
    "tests/learn",
    "tests/adapters/test_sorrel_loop",
    "tests/suites/plant/test_filter_harm",
    "tests/suites/grid/test_grid_learning",
    "tests/faults",
    "tests/suites/robot",
    "tests/suites/plant",
    "tests/matrix",
    "tests/training",
    "tests/safety",
    "tests/algos",
    "tests/suites",
    "tests/serving",
    "tests/benchmarks",
    "tests/adapters",
    "tests/plans",
    "tests/cli",
    "tests/test_examples",
)

TINY_WORLD = {"height": 6, "width": 6, "num_agents": 2, "horizon": 10, "spawn_prob": 0.1}


# A real browser to look at pages with.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
QUIET = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def program_folder(tmp_path_factory):
    """Where this session and the processes it starts keep compiled programs: not the user's."""
    temporary = tmp_path_factory.getbasetemp()
    if WORKER:
        temporary = temporary.parent  # one for all workers
    folder = os.environ.get("WORLDLOOM_TEST_CACHE") or str(temporary / "xla")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORLDLOOM_CACHE", folder)
        yield folder


@pytest.fixture(scope="module", autouse=True)
def optimised_where_it_pays(request):
    """The compiler's whole effort for the tests of a file that compute much."""
    if not _is_in(request.path, OPTIMISED):
        yield
        return
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def forget_programs():
    """forget_programs(): forgets all compiled programs if this process has grown large."""

    def forget() -> None:
        if "jax" in sys.modules and _resident_mb() > MOST_MEMORY_MB:
            import jax

            jax.clear_caches()
            gc.collect()
            with suppress(OSError, AttributeError):  # another system's C library
                ctypes.CDLL("libc.so.6").malloc_trim(0)

    return forget


@pytest.fixture(scope="module", autouse=True)
def bounded_memory(forget_programs):
    """Compiled programs of one file are forgotten after it, before a worker grows large."""
    yield
    forget_programs()


def _resident_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError):  # no such file on this system
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def _is_in(path: Path, places: Sequence[str]) -> bool:
    return path.relative_to(Path(__file__).parents[1]).as_posix().startswith(tuple(places))


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by markers
def pytest_collection_modifyitems(items):
    """Heavy files first: with a file to each worker, a long one must not begin at the end."""
    for item in items:
        if _is_in(item.path, WHOLE_RUNS):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: _rank(item.path.as_posix()))  # stable: files stay whole


def pytest_xdist_make_scheduler(config, log):
    """A file to each worker, because of what its tests share; of the matrix a world's pairs.

    Where tests share nothing, a test.
    """
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # xdist's order: files of many tests, not long ones

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith("tests/matrix"):
                return nodeid.rpartition("-")[0]  # without the algorithm
            apart = nodeid.startswith("tests/test_examples")
            return nodeid if apart else super()._split_scope(nodeid)

    return Scheduling(config, log)


def _rank(path: str) -> int:
    return next((n for n, part in enumerate(HEAVY_FIRST) if part in path), len(HEAVY_FIRST))


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


# Settings that compile in seconds and train in a blink; periods in steps, 20 to an iteration.
TINY = {
    "env": "treasurehunt",
    "steps": 120,
    "num_worlds": 2,
    "chunk": 2,
    "eval_every": 40,
    "eval_episodes": 4,
    "checkpoint_every": 40,
    "record_every": 0,
    "world": TINY_WORLD,
    "iqn": {
        "hidden": 16,
        "num_quantiles": 4,
        "act_quantiles": 4,
        "batch_size": 8,
        "gradient_steps": 2,
        "buffer_size": 66,
        "epsilon_decay": 0.2,
    },
}


@pytest.fixture(scope="session")
def tiny():
    """tiny(**changes): a `TrainConfig` of a run that takes a blink; nested settings are merged."""
    from worldloom import suites
    from worldloom.cli.settings import merge
    from worldloom.training.config import make_config

    def make(**changes):
        given = merge(TINY, changes)
        if given.get("algo", "iqn") != "iqn":
            del given["iqn"]
        return make_config(suites.suite("grid"), given)

    return make


@pytest.fixture(scope="session")
def finished_run(tiny, compiled_once, tmp_path_factory):
    """A run folder with everything in it. Look, do not touch: copy it to change it."""
    from worldloom import suites
    from worldloom.training.run import train

    folder = tmp_path_factory.mktemp("runs") / "finished"
    config = tiny(record_every=60)
    train(suites.suite("grid"), config, folder, command="worldloom train")
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


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("the browser tests need Debian's chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser tests need the playwright package"
    )
    with playwright.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()
