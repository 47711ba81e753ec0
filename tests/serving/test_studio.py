"""The studio's requests: who may ask, what is shown of a folder, and what is not."""

import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("fastapi")

from worldloom.cli.main import main
from worldloom.cli.studio import make_studio
from worldloom.report.run_list import Follower, RunList

TOKEN = "a-token-for-the-tests"


@pytest.fixture
def client(studio, client_of):
    made = client_of(studio[0])
    yield made
    made.close()


def wait_until(holds):
    while not holds():  # pytest's own limit is the only one: machines may be slow
        time.sleep(0.01)


# Who may ask -------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/api/runs", "/files/hunt/report.html", "/static/x/y.js"])
def test_nothing_is_shown_without_the_token(studio, client_of, path):
    stranger = client_of(studio[0], token=None)
    status, answer = stranger.send("GET", path)
    assert (status, "token" in answer["detail"]) == (401, True)
    assert stranger.send("GET", "/?token=another-token-of-16")[0] == 401
    stranger.close()


def test_the_printed_address_gives_a_browser_the_token(studio, client_of):
    visitor = client_of(studio[0], token=None)
    assert visitor.send("GET", f"/?token={TOKEN}")[0] == 303
    kept = visitor.headers["set-cookie"]
    assert (visitor.headers["location"], "HttpOnly" in kept) == ("/", True)
    assert kept.startswith(f"worldloom-{studio[0][1]}=")  # other servers of this machine: others
    cookie = {"Cookie": f"other=1; {kept.partition(';')[0]}"}
    status, page = visitor.send("GET", "/", headers=cookie)
    assert (status, "worldloom" in page) == (200, True)
    assert "default-src 'none'" in visitor.headers["content-security-policy"]
    visitor.close()


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "studio.example"},
        {"Host": "127.0.0.1.example:80"},
        {"Origin": "http://studio.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "iframe"},
    ],
    ids=str,
)
def test_pages_of_others_are_refused(client, headers):
    assert client.send("GET", "/api/runs", headers=headers)[0] == 403
    assert client.send("POST", "/api/sessions", {}, headers)[0] == 403


def test_a_link_may_stand_anywhere_and_a_form_may_not(client):
    followed = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": "document"}
    assert client.send("GET", "/files/hunt/report.html", headers=followed)[0] == 200
    assert client.send("POST", "/api/sessions", {}, followed)[0] == 403
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.send("POST", "/api/sessions", b"suite=grid", form)[0] == 415


# Runs --------------------------------------------------------------------------------------------


def test_every_run_is_a_row_and_a_damaged_one_says_so(client):
    status, rows = client.send("GET", "/api/runs")
    by_name = {row["run"]: row for row in rows}
    assert (status, set(by_name)) == (200, {"hunt", "sweep/seed=1", "live", "broken", "points"})
    hunt, broken = by_name["hunt"], by_name["broken"]
    assert (hunt["env"], hunt["algo"], hunt["status"]) == ("treasurehunt", "iqn", "complete")
    assert (hunt["steps"], hunt["settings"]["iqn.n_step"]) == (64_000, "3")
    assert (hunt["pages"], hunt["film"].partition("?")[0]) == (
        ["report.html"],
        "training-000096000.gif",
    )
    assert broken["status"] == "damaged"
    assert "config.json cannot be read" in broken["problem"]
    assert "\n" not in broken["problem"]
    sweep = by_name["points"]
    assert (sweep["status"], sweep["score"], sweep["pages"]) == ("sweep", 9e9, ["sweep.html"])


def test_curves_are_numbers_of_training_and_evaluation(client):
    status, curves = client.send("GET", f"/api/curves?run={quote('sweep/seed=1')}")
    training, evaluation = curves["training"], curves["evaluation"]
    assert status == 200
    assert training["steps"] == [1600.0 * n for n in range(1, 31)]
    assert (training["loss"][:3], len(training["seconds"])) == ([None] * 3, 30)
    assert "agent_returns" not in training
    assert len(evaluation["mean"]) == len(evaluation["stderr"]) == 10
    assert curves["references"] == {"mean": {"random play": 255.0, "greedy to nearest gem": 530.0}}
    status, answer = client.send("GET", "/api/curves?run=broken")
    assert (status, "config.json cannot be read" in answer["detail"]) == (404, True)


@pytest.mark.parametrize(
    "path",
    [
        "hunt/secret.txt",
        "hunt/config.json",
        "hunt/linked.html",
        "hunt/../broken/config.json",
        "hunt/..%2fbroken%2fconfig.json",
        "hunt/%2e%2e/%2e%2e/report.html",
        "../hunt/report.html",
        "%2e%2e/x.html",
        "/etc/passwd",
        "hunt/checkpoints/x.html",
        ".html",
        "",
    ],
)
def test_only_pages_and_films_of_runs_are_served(client, path):
    status, answer = client.send("GET", f"/files/{path}")
    assert (status, list(answer)) == (404, ["detail"])


def test_a_page_of_a_run_can_reach_nothing(client):
    status, page = client.send("GET", "/files/hunt/report.html")
    assert (status, page) == (200, "<title>of hunt</title>")
    policy = client.headers["content-security-policy"]
    assert "sandbox allow-scripts;" in policy
    assert "connect-src" not in policy
    assert "default-src 'none'" in policy
    status, _ = client.send("GET", "/files/sweep/seed%3D1/report.html")
    assert status == 404


@pytest.mark.parametrize(
    "path",
    [
        "/static/studio/../gate.py",
        "/static/vendor/x.js",
        "/static/plain/suite.py",
        "/static/nothing/studio.js",
    ],
)
def test_only_scripts_are_served(client, path):
    assert client.send("GET", path)[0] == 404


def test_a_training_is_followed_until_nobody_looks(studio, training):
    address, server = studio
    link = http.client.HTTPConnection(*address, timeout=30)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    link.request("GET", "/api/live?run=live&metrics=9&evals=99", headers=headers)
    answer = link.getresponse()

    def event():
        while True:
            line = answer.readline().decode()
            if line.startswith("data: "):
                return json.loads(line.removeprefix("data: "))

    first = event()
    assert [row["iteration"] for row in first["training"]] == [10]
    assert (first["evaluation"], first["row"]["status"]) == ([], "running")
    with (training / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 11, "steps": 17600, "return": 5.5, "agent_loss": [1]}\n{"iter')
    second = event()
    assert second["training"] == [{"iteration": 11, "steps": 17600, "return": 5.5}]
    assert second["row"]["steps"] == 17_600
    assert server.config.app.state.streams == 1
    link.close()
    answer.close()
    wait_until(lambda: server.config.app.state.streams == 0)


@pytest.mark.parametrize("news", [{"x": math.nan}, {"x": object()}])
def test_a_stream_that_fails_says_so_and_ends(client, monkeypatch, news):
    monkeypatch.setattr(Follower, "news", lambda self: news)
    status, text = client.send("GET", "/api/live?run=hunt")
    assert (status, text.count("event: problem")) == (200, 1)


def test_a_run_by_itself_is_a_folder_of_one(studio_runs):
    runs = RunList(studio_runs / "hunt")
    assert [(row["run"], row["name"]) for row in runs.rows()] == [(".", "hunt")]
    assert runs.file(".", "report.html").name == "report.html"


@pytest.mark.parametrize(
    "content",
    [
        b"\xff",
        b"[]",
        b'{"format": 1}',
        b'{"format": 2, "config": 5}',
        b'{"format": 2, "config": {"steps": 1e999, "env": [1]}}',
        b"[" * 100_000,
    ],
)
def test_no_content_of_a_run_hides_the_others(content, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "config.json").write_bytes(content)
    (tmp_path / "one" / "metrics.jsonl").write_text('{"iteration": 1, "steps": [2]}\n')
    (tmp_path / "two" / "metrics.jsonl").write_text("")
    rows = {row["run"]: row for row in RunList(tmp_path).rows()}
    assert (rows["one"]["status"], rows["two"]["status"]) == ("damaged", "damaged")
    json.dumps(list(rows.values()), allow_nan=False)


def test_a_process_that_has_ended_trains_nothing(studio_runs, tmp_path):
    runs = RunList(studio_runs)
    (studio_runs / "sweep" / "seed=1" / ".lock").write_text(str(os.getpid()))
    states = {row["run"]: row["status"] for row in runs.rows()}
    (studio_runs / "sweep" / "seed=1" / ".lock").unlink()
    assert states["sweep/seed=1"] == "complete"


# Sessions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nonsense", "not JSON"),
        (b"[]", "JSON object"),
        ({"suite": "nothing", "world": "x"}, "nothing to play"),
        ({"suite": "plain", "world": "x"}, "plain has no world 'x'"),
        ({"suite": "plain", "world": "my.py:make"}, "plain has no world 'my.py:make'"),
        ({"suite": "grid", "world": "treasurehunt", "seed": -1}, "seed"),
        ({"suite": "grid", "world": "treasurehunt", "seed": True}, "seed"),
        ({"suite": "grid", "world": ["x"]}, "by their names"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(client, body, words):
    status, answer = client.send("POST", "/api/sessions", body)
    assert (status, words in answer["detail"]) == (422, True)
    assert "\n" not in answer["detail"]


def test_a_session_that_is_not_there(client):
    assert client.send("POST", "/api/sessions/x/act", {})[0] == 422
    assert client.send("GET", "/api/sessions/x/stream")[0] == 404


# The command -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("nowhere", "nowhere is not a folder"),
        (". --port 70000", "--port 70000"),
        ("--prot 1", "--port"),
        (". --host 0.0.0.0", "--host 0.0.0.0 can be reached from other machines; name a token"),
        (". --token-file nowhere", "--token-file nowhere cannot be read"),
        (". --token-file short", "the token has 5 characters; use at least 16"),
    ],
)
def test_bad_input_is_one_line(words, problem, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("short").write_text("short\n")
    assert main(["studio", *words.split()]) == 2
    said = capsys.readouterr()
    assert (problem in said.err, said.err.count("\n"), said.out) == (True, 1, "")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_token_of_ones_own_is_not_printed(host, capsys, tmp_path, monkeypatch):
    from worldloom.serving import studio

    monkeypatch.setattr(studio, "run_until_signal", lambda server, listener: None)
    (tmp_path / "token").write_text(TOKEN)
    words = ["studio", str(tmp_path), "--host", host, "--token-file", str(tmp_path / "token")]
    assert main([*words, "--no-open"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"http://127\.0\.0\.1:[1-9]\d*/\?token=TOKEN, with the token of ", said)
    assert TOKEN not in said


def test_what_to_install_is_said(tmp_path):
    code = "import sys; sys.modules.update(dict.fromkeys(['starlette', 'fastapi', 'uvicorn',"
    code += "'prometheus_client'])); from worldloom.cli.main import main;"
    code += "print(main(['studio', '.']), main(['serve', 'x', '--no-token']))"
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "2 2\n"
    assert done.stderr.count("pip install 'worldloom[serve]'") == 2


def test_runs_need_not_be_there_yet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert make_studio(Path("runs")).runs.rows() == []


@pytest.mark.slow
def test_the_command_prints_its_address_and_ends_at_ctrl_c(studio_runs, training):
    """Also while somebody looks at a run that trains."""
    command = [sys.executable, "-m", "worldloom", "studio", str(studio_runs), "--no-open"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        url = run.stdout.readline().split()[-1]
        where = urlsplit(url)
        link = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
        token = where.query.removeprefix("token=")
        link.request("GET", "/api/live?run=live", headers={"Authorization": f"Bearer {token}"})
        assert link.getresponse().readline()
        run.send_signal(signal.SIGINT)
        _, said = run.communicate(timeout=60)
        link.close()
    assert (run.returncode, said) == (0, "")
