"""`make newcomer`: the way of somebody who has just cloned the project, and does what it says.

From a clean clone in a temporary folder, in an environment of its own: `make demo` by the clock
and the time that the command takes to answer, the README's commands in order, every command that
the documentation prints, then, as the tests of the clone, the code of all pages, the examples, the
notebooks, and what commands suggest to do next. Commands train for one iteration, or as many steps
as a newcomer would not wait for. Ends with a table; exit code 1 if anything failed.

python tests/newcomer.py [--python PYTHON] [--home HOME] [PART ...]

PYTHON has everything installed already (its packages are used with the code of the clone). HOME is
a folder that keeps clone and environment, so that the parts can be done one after another; in a
later call the clone takes up what was committed since. PARTs are `demo`, pages such as
README.md and docs/arc.md, and `tests`; all of them by default.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/test_docs.py", "tests/test_examples.py", "tests/test_notebooks.py",
         "tests/cli/test_next_steps.py", "tests/suites/plant/test_plant_from_logs.py")  # fmt: skip
PROMPT = re.compile(r"^ *\$ (.+?)(?:  +#.*)?$", re.MULTILINE)
INLINE = re.compile(r"`(worldloom [^`]+)`")
PATIENCE = 1800  # seconds for a command
LARGEST_PAGE = 2_000_000  # bytes
FIRST_PICTURE = 180  # seconds from `make demo` on a machine that has nothing yet
ANSWER = 0.5  # seconds that the command takes to say what it can, and Python to import the library
# Commands that are not run here, and why.
NOT_RUN = {
    r"pip install .*\[cuda\]": "needs an accelerator",
    r"worldloom bench": "a measurement of hours, in an environment of its peers",
    r"--human": "is played by a person at a terminal",
    r"--coordinator|--launch slurm": "is one of several machines",
    r"sweep --resume": "goes on with a population that was stopped; its tests do it",
    r"tensorboard --logdir": "a page of another project",
    r"^docker|^export WORLDLOOM_TOKEN": "is for a container; tests/test_containers.py checks it",
    r"--host 0\.0\.0\.0|/var/log": "is for a server that others reach; the tests of serving do it",
    r"rig-iql|rig\.yaml|^curl": "a tutorial about a log, which its own test follows to the end",
    r"runs/OLD|ben\.pem": "needs a former bundle and a second person; the tests of serving do it",
    r"worldloom audit": "needs what a service has logged; the tests of serving do it",
    r"log\.csv|LOG\.csv|DMSD-high|data (check|describe) FILE": "is about a file of the reader's",
    r"python -m oracles": "a longer version of what the tests check",
    r"--config run\.yaml|my_world\.py|pond\.yaml|io\.yaml": "is about a file of the reader's",
}
PLANTS = ("reactor", "water", "hvac", "dmsd")
_RUN = r"RUN|runs/(RUN|ONE|OTHER)"
# Of every training and sweep; an iteration has as many steps as it must.
FEW = {"--steps": "1", "--eval-episodes": "2"}


class Row(NamedTuple):
    """What became of a command."""

    part: str
    command: str
    outcome: str  # ok, failed, or why it was not run
    seconds: float = 0.0


def printed(page: Path) -> list[str]:
    """The commands that a page prints, in order; of the README also those in its tables."""
    text = page.read_text(encoding="utf-8")
    found = {match.start(): match[1] for match in PROMPT.finditer(text)}
    if page.name == "README.md":
        found |= {match.start(): match[1] for match in INLINE.finditer(text)}
    return list(dict.fromkeys(found[place] for place in sorted(found)))


def not_run(command: str) -> str | None:
    """Why a command is not run; None if it is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command)), None)


def small(words: list[str], folder: Path) -> list[str]:
    """A command of worldloom in this folder, with as little work as it can have."""
    name = words[1]
    if name not in ("train", "sweep"):
        return words
    given = FEW | ({"--seeds": "2"} if name == "sweep" else {})
    out, skip = [], False
    for word in words:
        if word in given or skip:  # the flag, and then its value
            skip = word in given
            continue
        out.append(word)
    if "--resume" in out:  # a little further than it came
        run = folder / out[out.index("--resume") + 1]
        about = json.loads((run / "config.json").read_text()) if run.is_dir() else {}
        given["--steps"] = str(2 * about.get("steps_per_iteration", 1))
    elif words[2] in PLANTS:
        given |= {"--ope-updates": "50"} | ({} if "log.npz" in out else {"--data-steps": "5000"})
    return [*out, *(word for pair in given.items() for word in pair)]


def written_runs(folder: Path) -> list[Path]:
    """Runs in a folder, the oldest first, by their names: what goes on writes its files anew."""
    runs = (path.parent for path in folder.glob("runs/*/config.json"))
    return sorted(runs, key=lambda run: (run.name.rpartition("-s")[2].partition("-")[2], run.name))


def plant_runs(folder: Path) -> list[Path]:
    """Runs of plants in a folder, the oldest first."""
    return [run for run in written_runs(folder) if run.name.startswith(PLANTS)]


def resolved(words: list[str], folder: Path) -> list[str]:
    """A command with runs of this folder in the place of RUN, ONE, OTHER and BUNDLE."""
    runs, plants = written_runs(folder), plant_runs(folder)
    if words[1] == "select":  # which takes no run twice
        named = iter(str(run.relative_to(folder)) for run in plants)
        return [next(named, word) if re.fullmatch(_RUN, word) else word for word in words]
    shipped = plants if words[1] in ("export", "serve", "approve") else []
    chosen = (shipped or runs or [folder / "runs" / "RUN"])[0].relative_to(folder)
    of_arc = [run for run in runs if run.name.startswith("arc")]
    if words[1] == "arc" and of_arc:
        chosen = of_arc[0].relative_to(folder)
    again = dict.fromkeys(("runs/RUN", "runs/ONE", "runs/OTHER", "RUN"), str(chosen))
    again |= {"BUNDLE": f"{chosen}/bundle", "runs/RUN/bundle": f"{chosen}/bundle"}
    return [again.get(word, word) for word in words]


class Newcomer:
    """Somebody with a clone, an environment and a cache of programs."""

    def __init__(self, home: Path, python: str | None):
        self.clone, self.rows = home / "worldloom", []
        clone = ["clone", "--no-hardlinks", str(ROOT), str(self.clone)]
        again = ["-C", str(self.clone), "pull", "--ff-only", "--no-rebase"]
        git = ["git", *(again if self.clone.is_dir() else clone), "--quiet"]
        subprocess.run(git, check=True)
        self._own = python is None
        if python is None:
            venv = self.clone / ".venv"
            if not venv.is_dir():
                subprocess.run([sys.executable, "-m", "venv", venv], check=True)
            self.bin = venv / "bin"
        else:
            self.bin = Path(python).absolute().parent
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        self.env = os.environ | {"PATH": path, "WORLDLOOM_CACHE": str(home / "cache")}
        self.env |= {"MINARI_DATASETS_PATH": str(home / "minari")}
        self.env.pop("PYTHONPATH", None)
        if not self._own:
            self.env["PYTHONPATH"] = str(self.clone / "src")

    def time_demo(self) -> None:
        """`make demo` whole, in a clone without an environment or a compiled program."""
        clone = self.clone.with_name("demo")
        shutil.rmtree(clone, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", self.clone, clone], check=True)
        env = self.env | {"PATH": os.environ["PATH"], "WORLDLOOM_CACHE": str(clone / "cache")}
        env.pop("PYTHONPATH", None)
        start = time.monotonic()
        code, said = self._run(["make", "demo", f"PYTHON={sys.executable}"], clone, env)
        seconds = time.monotonic() - start
        late = f"failed: no page after {FIRST_PICTURE} s" if seconds > FIRST_PICTURE else "ok"
        pages = list(clone.glob("runs/*/report.html"))
        wrong = f"failed ({code}): {_last(said)}" if code or not pages else late
        self.tell(Row("demo", "make demo, to the report with its film", wrong, seconds))
        bin = clone / ".venv/bin"
        for words in ([bin / "worldloom", "--help"], [bin / "python", "-c", "import worldloom"]):
            taken = []
            for _ in range(5):  # the fastest: what else a machine does is not asked
                start = time.monotonic()
                code, said = self._run(list(map(str, words)), clone, env)
                taken.append(time.monotonic() - start)
            slow = f"failed: more than {ANSWER} s" if min(taken) > ANSWER else "ok"
            outcome = f"failed ({code}): {_last(said)}" if code else slow
            command = " ".join([words[0].name, *words[1:]])
            self.tell(Row("demo", f"{command}, fastest of five", outcome, min(taken)))

    def follow(self, page: str) -> None:
        """Does what a page says, in a folder of its own; the README's in the clone."""
        folder = self.clone
        # Else a home of before would already have the data sets that a page makes.
        shutil.rmtree(self.env["MINARI_DATASETS_PATH"], ignore_errors=True)
        if page != "README.md":
            folder = self.clone / "newcomer" / Path(page).stem
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            if page == "docs/command-line.md":  # which speaks of it as if one had it
                self.do(page, "worldloom train treasurehunt --world.num-agents 3", folder)
        for command in printed(self.clone / page):
            why = not_run(command)
            if why is None and not self._own and command.startswith(("pip", "make")):
                why = "the environment is given"
            if why is not None:
                self.tell(Row(page, command, why))
            else:
                if "--dataset log.npz" in command and not (folder / "log.npz").is_file():
                    make = "worldloom data make reactor --steps 2000 --out log.npz"
                    self.do(page, make, folder)
                self.do(page, command, folder)
        self.weigh(page, folder)

    def weigh(self, part: str, folder: Path) -> None:
        """Every page that was written must be light enough to send, films included."""
        for path in sorted(folder.glob("runs/*/*.html")):
            size = path.stat().st_size
            heavy = f"failed: {size / 1e6:.1f} MB" if size > LARGEST_PAGE else "ok"
            self.tell(Row(part, f"size of {path.relative_to(folder)}", heavy, 0.01))

    def do(self, part: str, command: str, folder: Path) -> None:
        """Runs a command as it is printed, but smaller."""
        settings, line = {}, command
        while match := re.match(r"([A-Z_]+)=(\S+) ", line):  # before a command
            settings[match[1]], line = match[2], line[match.end() :]
        words = shlex.split(line)
        if words[:2] == ["make", "demo"]:
            words.append("TRAIN_ARGS=--steps 1 --eval-episodes 2")
        if words[:2] == ["worldloom", "select"] and len(plant_runs(folder)) < 2:
            log = ["--dataset", "log.npz" if (folder / "log.npz").is_file() else "medium"]
            self.do(
                part, shlex.join(["worldloom", "train", "reactor", "--seed", "1", *log]), folder
            )
        if words[0] == "worldloom":
            words = small(resolved(words, folder), folder)
        words = [p for w in words for p in (sorted(map(str, folder.glob(w))) if "*" in w else [w])]
        start, serves = time.monotonic(), words[1] in ("serve", "studio") or "play" in words
        run = self._serve if serves else self._run
        try:
            code, said = run(words, folder, self.env | settings)
        except (subprocess.TimeoutExpired, OSError) as error:
            code, said = 1, str(error)
        outcome = "ok" if code == 0 else f"failed ({code}): {_last(said)}"
        self.tell(Row(part, command, outcome, time.monotonic() - start))

    def _run(self, words: list[str], folder: Path, env: dict[str, str]) -> tuple[int, str]:
        options = {"cwd": folder, "env": env, "capture_output": True, "text": True}
        done = subprocess.run(words, timeout=PATIENCE, **options)
        return done.returncode, done.stdout + done.stderr

    def _serve(self, words: list[str], folder: Path, env: dict[str, str]) -> tuple[int, str]:
        """Starts a page or a service, and stops it when it says where it is."""
        if words[1] == "studio" and len(words) > 2 and not words[2].startswith("-"):
            (folder / words[2]).mkdir(parents=True, exist_ok=True)
        both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        with subprocess.Popen(words, cwd=folder, env=env, **both) as server:
            said, watchdog = [], threading.Timer(PATIENCE, server.kill)
            watchdog.start()
            for text in server.stdout:  # which ends where the server does
                said.append(text)
                if "http://127.0.0.1" in text:
                    server.send_signal(signal.SIGINT)
            watchdog.cancel()
            return (0 if any("http://" in text for text in said) else 1), "".join(said)

    def run_tests(self) -> None:
        """Code of pages, examples, notebooks and suggested commands, as the tests have them."""
        if self._own:
            self.do("tests", "make setup", self.clone)
        results = self.clone / "results.xml"
        python = str(self.bin / "python")
        pytest = [python, "-m", "pytest", "-q", "-n", "0", *TESTS, f"--junitxml={results}"]
        env = self.env | {"JAX_PLATFORMS": "cpu"}
        code, said = self._run_long(pytest, env)
        if not results.is_file():
            self.tell(Row("tests", shlex.join(pytest), f"failed ({code}): {_last(said)}"))
            return
        for case in ElementTree.parse(results).iter("testcase"):
            wrong = [node for node in case if node.tag in ("failure", "error")]
            skipped = [str(node.get("message")) for node in case if node.tag == "skipped"]
            outcome = f"failed: {_last(wrong[0].text or '')}" if wrong else (skipped or ["ok"])[0]
            seconds = float(case.get("time") or 0.0)
            name = str(case.get("classname")).rpartition(".")[2]
            self.tell(Row(f"tests, {name}", str(case.get("name")), outcome, seconds))

    def _run_long(self, words: list[str], env: dict[str, str]) -> tuple[int, str]:
        done = subprocess.run(words, cwd=self.clone, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def tell(self, row: Row) -> None:
        self.rows.append(row)
        print(f"{row.seconds:7.1f} s  {row.part}: {row.command}  [{row.outcome}]", flush=True)


def _last(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[:400]


def summary(rows: list[Row]) -> str:
    """The table: parts with how many commands ran, were left out, and failed."""
    parts = dict.fromkeys(row.part for row in rows)
    lines = [f"{'part':<34}{'ran':>6}{'not run':>9}{'failed':>8}{'seconds':>9}"]
    for part in parts:
        own = [row for row in rows if row.part == part]
        ran = [row for row in own if row.seconds]
        failed = [row for row in own if row.outcome.startswith("failed")]
        seconds = sum(row.seconds for row in own)
        counts = f"{len(ran):>6}{len(own) - len(ran):>9}{len(failed):>8}"
        lines.append(f"{part:<34}{counts}{seconds:>9.0f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="a newcomer's way through the project")
    parser.add_argument("--python", help="an interpreter with everything installed")
    parser.add_argument("--home", type=Path, help="a folder that keeps clone and environment")
    parser.add_argument("parts", nargs="*", help="demo, README.md, docs/NAME.md, tests")
    args = parser.parse_args()
    # A shell starts what it runs in the background deaf to Ctrl-C, which ends pages and services.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    docs = sorted((ROOT / "docs").rglob("*.md"))
    pages = [page.relative_to(ROOT).as_posix() for page in docs if printed(page)]
    parts = args.parts or ["demo", "README.md", *pages, "tests"]
    temporary = tempfile.TemporaryDirectory(prefix="newcomer-")
    with temporary if args.home is None else contextlib.nullcontext(args.home.resolve()) as home:
        newcomer = Newcomer(Path(home), args.python)
        for part in parts:
            own = {"demo": newcomer.time_demo, "tests": newcomer.run_tests}
            own[part]() if part in own else newcomer.follow(part)
    print(f"\n{summary(newcomer.rows)}")
    failed = [row for row in newcomer.rows if row.outcome.startswith("failed")]
    for row in failed:
        print(f"\n{row.part}: {row.command}\n  {row.outcome}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
