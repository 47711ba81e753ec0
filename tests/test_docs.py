"""The documentation is built without a warning, its Python runs, and its commands exist."""

import functools
import glob
import io
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

import worldloom
from worldloom import suites as registry
from worldloom.cli import main as cli

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
README = ROOT / "README.md"
BLOCK = re.compile(r"^```(python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^ *\$ (?:[A-Z_]+=\S+ )*worldloom (.+?)(?:  +#.*)?$", re.MULTILINE)


def blocks(page):
    """Code that stands in the page itself; what is included from examples/ is tested there."""
    return [block for block in BLOCK.findall(page.read_text()) if "--8<--" not in block[1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks(page)], ids=lambda page: page.stem
)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    if page.stem == "tutorial":
        follow_the_tutorial(page)
    names, ran = {}, []
    for language, code in blocks(page):
        if language == "yaml":
            # A file: its name is the comment in its first line.
            (tmp_path / code.splitlines()[0].removeprefix("# ")).write_text(code)
        else:
            exec(compile(code, page.name, "exec"), names)
        ran.append(code)
    assert ran == [code for _, code in blocks(page)]


def follow_the_tutorial(page):
    """Its commands, as they are printed but for fewer steps and smaller worlds."""
    small = "--steps 40 --num-worlds 2 --eval-episodes 2 --world.horizon 4 --iqn.hidden 8"
    for line in COMMAND.findall(page.read_text()):
        line = line.replace("--steps 64000", small).replace("--seeds 5", "--seeds 2")
        line = line.replace("n_step=1,3", "n_step=3")  # one program instead of two
        if line.startswith("train"):
            line += " --no-report"
        argv = [path for word in shlex.split(line) for path in (glob.glob(word) or [word])]
        assert cli.main(argv) == 0, line
    assert Path("comparison.html").is_file()
    assert glob.glob("runs/sweep-*/sweep.html")


@pytest.mark.slow
def test_the_code_of_the_readme_runs(tmp_path, monkeypatch):
    """As it is printed, but for the length and the size of its trainings."""
    monkeypatch.chdir(tmp_path)
    train, asked = worldloom.train, []

    @functools.wraps(train)
    def train_a_little(env, **settings):
        asked.append(env)
        sizes = {"steps": 40, "num_worlds": 2, "eval_episodes": 2, "world": {"horizon": 4}}
        return train(env, **settings | sizes, report=False)

    monkeypatch.setattr(worldloom, "train", train_a_little)
    ((_, code),) = blocks(README)
    exec(compile(code, "README.md", "exec"), {})
    assert asked == ["treasurehunt", "staghunt"]


def printed_commands():
    found = {}
    for page in (README, *PAGES):
        for line in COMMAND.findall(page.read_text()):
            found.setdefault(line, page.name)
    inline = re.findall(r"`worldloom ([^`]+)`", README.read_text())
    return found | {line: "README.md" for line in inline}


@functools.cache
def help_of(*argv):
    """What `worldloom ARGV --help` prints; nothing where that is refused."""
    out, refusals = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(refusals), suppress(SystemExit):
        cli.main([*argv])
    return out.getvalue()


def known_flags(words):
    """What a command takes, as its help says it; of `train`, in this world by this algorithm."""
    name, *rest = words
    if name in ("train", "sweep"):
        world = rest[0] if rest and rest[0] in registry.names() else "treasurehunt"
        algo = rest[rest.index("--algo") + 1 :][:1] if "--algo" in rest else []
        text = help_of("train", world, *(["--algo", *algo] if algo else []), "--help-all")
        return text + help_of(name, "--help")
    sub = (rest[0],) if rest and rest[0].isalpha() else ()
    return help_of(name, "--help") + help_of(name, *sub, "--help")


@pytest.mark.parametrize("line", printed_commands())
def test_a_printed_command_exists_with_its_options(line):
    words = shlex.split(line)
    assert words[0] in cli.commands()
    flags = [word for word in words if word.startswith("--")]
    if not flags:
        return
    text = known_flags(words)
    for flag in flags:
        assert re.search(rf"{flag.replace('--no-', '--(no-)?')}\b", text), f"{flag} in: {line}"


class Requests(HTMLParser):
    """The addresses that a browser asks for when it shows a page."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "link" and given.get("rel") in ("canonical", "prev", "next"):
            return
        names = ("href",) if tag == "link" else ("src", "srcset", "data", "poster")
        if tag != "a":
            self.found += [given[name] for name in names if given.get(name)]


@pytest.mark.skipif(find_spec("material") is None, reason="mkdocs-material is not installed")
def test_the_documentation_builds_without_a_warning_and_asks_no_other_host(tmp_path):
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", site]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for page in PAGES:
        name = page.relative_to(ROOT / "docs").with_suffix("")
        html = name if name.stem == "index" else name / "index"
        assert (site / html).with_suffix(".html").exists(), f"{page} is not in the nav"
    outside = re.compile(r"^(?:https?:)?//")
    for path in site.rglob("*.html"):
        page = Requests()
        page.feed(path.read_text())
        assert page.found
        assert not [address for address in page.found if outside.match(address)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", path.read_text()), path


def test_every_command_is_explained_on_the_page_of_commands():
    titles = re.findall(r"^## (.+)$", (ROOT / "docs/command-line.md").read_text(), re.MULTILINE)
    told = {word for title in titles for word in title.split(", ")}
    assert set(cli.commands()) <= told


def test_every_page_is_in_the_navigation_or_in_the_gallery():
    navigation, gallery = ((ROOT / n).read_text() for n in ("mkdocs.yml", "docs/gallery.md"))
    for page in PAGES:
        name = str(page.relative_to(ROOT / "docs"))
        assert name in (gallery if name.startswith("gallery/") else navigation), name
