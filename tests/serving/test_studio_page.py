"""The studio in a real browser: what a person does there, and what then changes."""

import json
import shutil

import pytest

from oracles import guess
from report.looking import DESK, assert_legible, assert_reachable, screens
from worldloom import suites
from worldloom.training.folders import locked

pytest.importorskip("fastapi")

pytestmark = [pytest.mark.usefixtures("compiled_once"), pytest.mark.slow]

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def visit(browser, studio, studio_runs, finished_run):
    """visit(hash): the studio in one tab for all; nothing may go wrong or be loaded elsewhere."""
    shutil.copytree(finished_run, studio_runs / "trained")
    (host, port), _ = studio
    address, wrong = f"http://{host}:{port}/", []
    context = browser.new_context(viewport=DESK)
    view = context.new_page()
    view.set_default_timeout(300_000)  # ms: a busy machine is slow

    def hear(message):
        expected = ("GL Driver Message", "409 (Conflict)")  # no graphics card; another tab
        if not any(text in message.text for text in expected):
            wrong.append(f"{message.text} {message.location['url']}")

    view.on("console", hear)
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on(
        "request",
        lambda request: (
            None
            if request.url.startswith((address, "data:"))
            else wrong.append(f"loads {request.url}")
        ),
    )
    view.goto(f"{address}?token={TOKEN}")

    def go(place, ready):
        view.evaluate("place => { location.hash = place; }", place)
        view.wait_for_selector(f"body[data-ready={ready}]")
        return view

    view.wait_for_selector("body[data-ready=runs]")
    yield go
    assert wrong == []
    assert TOKEN not in view.url
    context.close()


def names(view):
    return view.locator("tr[data-run]").evaluate_all("rows => rows.map(row => row.dataset.run)")


def test_runs_are_filtered_laid_over_each_other_and_opened(visit):
    view = visit("runs", "runs")
    assert set(names(view)) == {"hunt", "sweep/seed=1", "live", "broken", "points", "trained"}
    broken = view.locator("tr[data-run=broken]")
    assert "config.json cannot be read" in broken.inner_text()
    assert broken.locator("input").is_disabled()
    assert view.locator("tr[data-run=points] input").is_disabled()
    with view.context.expect_page() as opened:
        view.locator("tr[data-run=points] a").click()
    opened.value.wait_for_url("**/sweep.html")  # it is opened before it is loaded
    assert opened.value.title() == "of points"
    opened.value.close()
    ask = "async row => (await import('/static/studio/runs.js')).matches(row, 'x<-1')"
    assert view.evaluate(ask, {"settings": {"x": "\u22122"}})
    view.wait_for_selector("#curves[data-lines='1'] canvas")  # there is something to see at once
    view.locator("tr[data-run] input:checked").click()
    view.wait_for_selector("#curves[data-lines='0']")
    view.fill("#filter", "env=treasurehunt steps>40000")
    assert set(names(view)) == {"hunt", "sweep/seed=1"}
    view.click("#best")
    view.wait_for_selector("#curves[data-lines='2'] canvas")
    view.select_option("#metric", "evaluation: mean")
    view.wait_for_selector("#curves[data-points='10'][data-errors='2']")
    marks = view.locator("#curves").get_attribute("data-marks").split("|")
    assert marks == ["treasurehunt: random play 255", "treasurehunt: greedy to nearest gem 530"]
    view.select_option("#over", "seconds")
    view.wait_for_selector("#curves[data-labels='evaluation: mean|seconds'] canvas")
    view.fill("#filter", "")
    view.click("tr[data-run=hunt] .name")
    details = view.locator(".details")
    assert "64,000 of 64,000" in details.inner_text()
    film = details.locator("img")
    film.evaluate("image => image.decode()")
    assert "training-000096000.gif" in film.get_attribute("src")
    with view.context.expect_page() as opened:
        details.get_by_text("report", exact=True).click()
    opened.value.wait_for_url("**/report.html")
    assert opened.value.title() == "of hunt"
    opened.value.close()
    details.get_by_label("close").click()


def test_runs_of_rivals_are_shown_by_another_figure_than_a_constant_sum(visit):
    ask = """async ([known, scores]) => (await import('/static/studio/runs.js'))
        .usualMetric(new Set(known), scores)"""
    known = ["loss", "return", "evaluation: mean", "evaluation: against_random"]
    view = visit("runs", "runs")
    assert view.evaluate(ask, [known, ["against_random"]]) == "evaluation: against_random"
    assert view.evaluate(ask, [known, ["mean", "mean"]]) == "return"
    assert view.evaluate(ask, [known, ["mean", "against_random"]]) == "return", "which all have"
    assert view.evaluate(ask, [known[:1], ["mean"]]) == "loss"
    assert view.evaluate(ask, [[], []]) == ""


def test_a_chart_shows_no_rounding_and_no_zoomed_out_errors(visit):
    view = visit("runs", "runs")
    span = "async values => (await import('/static/studio/charts.js')).span(values)"
    assert view.evaluate(span, [-5.000001, -4.999999, None])[1] >= 0  # a constant, as such
    low, high = view.evaluate(span, [350.0, 351.0])
    assert 349 < low < high < 352
    # In a part of the x axis the errors of other parts take no room.
    zoomed = """async () => {
        const {lineChart} = await import('/static/studio/charts.js');
        const root = document.body.appendChild(document.createElement('div'));
        const Own = window.uPlot;
        let plot;
        window.uPlot = class extends Own { constructor(...all) { super(...all); plot = this; } };
        const line = {label: 'a', color: '#000', x: [1, 2, 3], y: [1, 2, 3], error: [90, 0.1, 0.1]};
        const chart = lineChart(root, {lines: [line], xLabel: 'x', yLabel: 'y'});
        const read = () => new Promise(done => setTimeout(() => done(plot.scales.y.max), 50));
        const whole = await read();
        plot.setScale('x', {min: 2, max: 3});
        const part = await read();
        chart.remove();
        root.remove();
        window.uPlot = Own;
        return [whole, part];
    }"""
    whole, part = view.evaluate(zoomed)
    assert whole > 90
    assert part < 10


def test_a_training_is_seen_live_with_its_newest_film(visit, studio_runs):
    view, live = visit("runs", "runs"), studio_runs / "live"
    with locked(live):
        view.reload()
        view.wait_for_selector(".details .badge.running")
        view.wait_for_selector("#curves[data-lines='1']")
        points = int(view.get_attribute("#curves", "data-points"))
        last = json.loads((live / "eval.jsonl").read_text().splitlines()[-1])
        with (live / "metrics.jsonl").open("a") as file:
            for n in range(12, 15):
                row = {"iteration": n, "steps": 1600 * n, "return": 300.0 + n, "seconds": 0.1 * n}
                file.write("\n" * (n == 12) + json.dumps(row) + "\n")
        (live / "training-1.gif").write_bytes((studio_runs / "hunt" / "eval.gif").read_bytes())
        view.wait_for_selector(f"#curves[data-points='{points + 3}']")
        view.wait_for_selector(".details img[src*='training-1.gif']")
        with (live / "eval.jsonl").open("a") as file:
            file.write(json.dumps(last | {"iteration": 14, "steps": 22_400, "mean": 432.5}) + "\n")
        view.wait_for_selector("tr[data-run=live] :text('432.5')")
    view.wait_for_selector(".details .badge.running", state="detached")


@pytest.mark.parametrize(
    ("place", "ready", "world"),
    [
        ("runs", "runs", None),
        ("grid", "play", "tag"),
        ("arc", "play", "arc"),
        ("plant", "play", "reactor"),
        ("robot", "play", "biped"),
    ],
)
def test_everything_is_legible_and_reached_by_keys(visit, place, ready, world):
    view = visit(place, ready)
    assert_reachable(view, place)
    if world:
        start(view, world)
    for viewport, scheme in screens(view):
        assert_legible(view, place, viewport, scheme)
    view.set_viewport_size(DESK)
    view.emulate_media(color_scheme="light")


# Play --------------------------------------------------------------------------------------------


def session(view):
    return view.locator("#session")


def wait_for(view, name, value):
    view.wait_for_selector(f"#session[data-{name}='{value}']")


def test_a_grid_world_is_played_beside_trained_agents(visit):
    view = visit("grid/run=trained", "session")
    assert "The others are trained agents" in session(view).inner_text()
    wait_for(view, "turn", 0)
    before = view.get_attribute("#world", "src")
    own = session(view).get_attribute("data-own")
    row, column = map(int, own.split(","))
    key, moved = ("ArrowDown", (row + 1, column)) if row < 4 else ("ArrowUp", (row - 1, column))
    view.keyboard.press(key)
    wait_for(view, "turn", 1)
    now = session(view).get_attribute("data-own")
    assert now in (own, ",".join(map(str, moved)))  # another agent may stand in the way
    assert view.get_attribute("#world", "src") != before
    view.get_by_role("button", name="1", exact=True).click()  # another seat, from the start
    wait_for(view, "turn", 0)
    assert "1, you" in session(view).inner_text()
    for turn in range(10):
        view.keyboard.press("d")
        wait_for(view, "turn", turn + 1)
    assert "the end after 10 turns" in session(view).inner_text()
    view.click("#again")
    wait_for(view, "over", "false")
    assert view.input_value("#seed") == "1"


def wait_for_step(view, condition):
    view.wait_for_function(f"() => +document.querySelector('#session').dataset.step {condition}")


def start(view, world):
    view.select_option("#target", f"world:{world}")
    view.click("#start")
    view.wait_for_selector("body[data-ready=session]")


def test_a_robot_is_asked_for_a_speed_and_pushed_until_it_falls(visit):
    view = visit("robot", "play")
    view.set_viewport_size({"width": 400, "height": 400})  # 3D takes time without a graphics card
    start(view, "biped")
    wait_for_step(view, "> 5")
    wait_for(view, "arrows", 2)  # under both feet
    view.uncheck("#forces")
    wait_for(view, "arrows", 0)
    stood = float(session(view).get_attribute("data-height"))
    for _ in range(8):
        view.keyboard.press("ArrowDown")
    wait_for(view, "asked", 0)
    view.keyboard.press("ArrowUp")
    wait_for(view, "asked", 0.05)
    view.fill("#force", "60")
    view.locator("#stage canvas").click()  # pokes it, away from the camera
    wait_for(view, "pushed", "yes")
    for _ in range(3):
        view.click("#push-left")
    wait_for(view, "fell", "true")  # nobody controls it: it holds its pose
    assert float(session(view).get_attribute("data-height")) < stood
    view.click("#again")
    wait_for(view, "fell", "false")
    assert "on its feet" in session(view).inner_text()
    view.set_viewport_size(DESK)


def test_a_plant_is_run_by_its_operator_behind_the_filter(visit):
    view = visit("plant", "play")
    start(view, "reactor")
    wait_for(view, "control", "loops")
    wait_for_step(view, "> 3")
    charts = view.locator("#trends [data-signal]")
    assert charts.count() == view.locator("#trends .uplot").count() > 3
    view.click("[data-speed='0']")  # time stands still
    view.wait_for_selector("[data-speed='0'][aria-pressed=true]")
    view.locator("#setpoint-0").press("ArrowRight")
    view.click("[data-control=hand]")
    wait_for(view, "control", "hand")
    view.locator("#hand-0").press("End")  # too hot for a reactor, and the filter knows it
    view.click("[data-speed='20']")
    wait_for(view, "acts", "yes")
    assert view.locator("#alarms li").count() >= 1
    view.click("[data-control=loops]")
    wait_for(view, "control", "loops")
    view.click("#again")
    wait_for_step(view, "< 40")


def test_arc_tasks_are_chosen_and_edited(visit):
    view = visit("arc", "play")
    start(view, "arc")
    first = session(view).get_attribute("data-task")
    page = view.frame_locator("#frame")
    page.locator("body[data-ready]").wait_for()
    cell = page.locator('#work [data-cell="0,0"]')
    before = cell.get_attribute("data-color")
    cell.click()
    page.locator(f'[data-operation="{(int(before) + 1) % 10}"]').click()
    page.locator("#status").filter(has_text="1 cell changed").wait_for()
    assert cell.get_attribute("data-color") != before
    view.click("#next")
    view.wait_for_selector(f"#session:not([data-task='{first}'])")
    second = session(view).get_attribute("data-task")
    page.locator("#name").filter(has_text=second).wait_for()
    view.fill("#task", first)
    view.keyboard.press("Enter")
    page.locator("#name").filter(has_text=first).wait_for()


def test_a_game_is_played_by_keys(visit):
    view = visit("arc", "play")
    start(view, "glide")
    wait_for(view, "actions", 0)
    view.keyboard.press("ArrowDown")
    wait_for(view, "actions", 1)
    view.keyboard.press("ArrowLeft")
    wait_for(view, "level", 2)
    assert "level 2 of 5, 3 lives" in view.locator("#line").inner_text()
    view.click("#again")
    wait_for(view, "level", 1)


def test_a_world_of_one_agent_is_played_by_its_numbers(visit, monkeypatch):
    monkeypatch.setattr(suites, "_REGISTERED", {})
    view = visit("plain", "play")
    assert view.locator("#start").is_disabled(), "there is nothing to play yet"
    assert "train in a world first" in view.locator("#said").inner_text()
    suites.register("guess", guess.make, suite="plain", description="name the number")
    view.reload()
    view.wait_for_selector("body[data-ready=play]")
    view.select_option("#target", "world:guess")
    view.click("#start")
    view.wait_for_selector("body[data-ready=session]")
    wait_for(view, "turn", 0)
    number = view.locator("#values td.n").first.inner_text()
    view.keyboard.press(number)
    wait_for(view, "turn", 1)
    assert "paid 1 now, 1 in all" in view.locator("#line").inner_text()
    for turn in (2, 3, 4):
        view.click("[data-action='0']")
        wait_for(view, "turn", turn)
    wait_for(view, "over", "true")
    assert view.locator("[data-action='0']").is_disabled()
    view.click("#again")
    wait_for(view, "turn", 0)


def test_a_session_that_is_opened_in_another_tab_goes_on_there(visit):
    view = visit("grid", "play")
    view.select_option("#target", "world:tag")
    view.click("#start")
    view.wait_for_selector("body[data-ready=session]")
    view.click("[data-action='0']")
    wait_for(view, "turn", 1)
    assert "session=" in view.url
    second = view.context.new_page()
    second.goto(view.url)
    second.wait_for_selector("#session[data-turn='1']")  # as it was
    second.click("[data-action='1']")
    second.wait_for_selector("#session[data-turn='2']")
    with view.expect_console_message():  # of the answer 409
        view.click("[data-action='0']")
    view.wait_for_selector("#moved:visible")
    assert "goes on in another tab" in view.locator("#moved").inner_text()
    view.click("#take-back")
    wait_for(view, "turn", 2)
    view.click("[data-action='1']")
    wait_for(view, "turn", 3)
    second.close()
    view.reload()
    wait_for(view, "turn", 3)


@pytest.mark.parametrize(
    ("suite", "world", "message", "words"),
    [
        ("grid", "tag", {"action": 99}, "from 0 to"),
        ("grid", "tag", {"action": True}, "from 0 to"),
        ("grid", "tag", {"agent": 99}, "no agent"),
        ("robot", "biped", {"speed": "fast"}, "number"),
        ("robot", "biped", {"push": [1.0]}, "two numbers"),
        ("robot", "biped", {"push": [float("nan"), 0.0]}, "number"),
        ("robot", "biped", {"push": [1e300, 0.0]}, "number"),
        ("plant", "reactor", {"setpoints": [1e300] * 3}, "list of"),
        ("plant", "reactor", {"control": "nobody"}, "one of loops, hand"),
        ("plant", "reactor", {"hand": [1.0] * 99}, "list of"),
        ("plant", "reactor", {"setpoints": None}, "list of"),
        ("arc", "arc", {"task": "nothing-like-it"}, "no task"),
        ("arc", "arc", {"set": ["x"]}, "no set"),
        ("arc", "arc", {"ask": ["GET", "/etc/passwd"]}, "ask must be"),
    ],
)
def test_a_message_that_makes_no_sense_is_refused_in_one_line(
    sessions, suite, world, message, words
):
    session = sessions(suite, world)
    before = session.state()
    with pytest.raises(ValueError, match=words) as refusal:
        session.act(message)
    assert "\n" not in str(refusal.value)
    assert session.state() == before
    json.dumps([session.describe(), before], allow_nan=False)


@pytest.fixture(scope="module")
def sessions():
    """sessions(suite, world): one of each."""
    made = {}

    def session(suite, world):
        if suite not in made:
            made[suite] = suites.suite(suite).studio(suites.make(world))
            made[suite].reset(0)
        return made[suite]

    return session
