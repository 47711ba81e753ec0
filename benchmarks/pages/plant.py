"""What `worldloom bench plant` measured, as charts and tables that can go into a paper.

Sections of `raw`, each of which may be missing, as may anything in them:

    speed     {"updates_per_second": {algorithm: {player: number}}, "batch", "hidden", ...}
    steps     {"steps_per_second": {player: number}, "batch", "unit", ...}
    scores    [{"dataset", "algo", "mean", "std", "seeds", "published", "published_std", ...}]
    ope       {"pairs", "coverage_95", ..., "methods": {name: figures}, "rows": [...]}
    select    {"regret": {way: [at each budget]}, "logs": [{"plant", "quality", ...}]}
    oracle    {plant: {controller: {"return", "stderr", "episodes"}}}
    plants    [{"plant", "quality", "algo", "return", "data", "filtered", ...}]
    safety    {"cost": {plant: figures}, "attacks": {plant: {adversary: counts}}}
    serving   {"requests_per_second", "p50_ms", "p99_ms", "kills", "lost_records", ...}

Scores and plants may be nested mappings instead, with the names of the first columns as keys, in
that order; a number may be {"median": number, ...}.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from worldloom.report import page
from worldloom.report.axes import number
from worldloom.report.plots import Bars, bar_chart

_PLAYERS = {
    "ours": "Worldloom",
    "worldloom": "Worldloom",
    "d3rlpy": "d3rlpy (PyTorch)",
    "loop": "a loop in numpy",
    "numpy": "a loop in numpy",
    "neorl2": "NeoRL-2's own",
    "seeds": "Worldloom, vmapped seeds",
    "vmap": "Worldloom, vmapped seeds",
}
_ALGORITHMS = {
    "bc": "BC",
    "td3bc": "TD3+BC",
    "iql": "IQL",
    "cql": "CQL",
    "rebrac": "ReBRAC",
    "mbpo": "MBPO",
    "mbpo-linear": "MBPO, linear policy",
    "edac": "EDAC",
}
_SERVED = {
    "requests_per_second": ("sustained", "requests/s"),
    "p50_ms": ("half are answered within", "ms"),
    "p99_ms": ("99 % are answered within", "ms"),
    "errors": ("errors under load", ""),
    "kills": ("killed under load", "times"),
    "lost_records": ("acknowledged records lost", ""),
}
_COUNTS = {
    "cases": "cases",
    "violations": "violations",
    "violation_rate_at_most": "rate at most (95 %)",
    "bound": "rate at most",
    "unbounded": "outside box or rate",
    "altered": "safe, but altered",
    "unfinished": "not finite, no emergency",
    "broken": "barrier lost",
    "worst": "smallest margin",
    "interventions": "interventions",
    "emergencies": "emergencies",
}


def sections(raw: Mapping[str, Any]) -> list[page.Part]:
    """The sections of a benchmark's page; those that were not measured are left out."""
    made = {
        "scores": _scores,
        "ope": _off_policy,
        "select": _selection,
        "oracle": _oracle,
        "plants": _plants,
        "speed": _speed,
        "steps": _steps,
        "safety": _safety,
        "serving": _serving,
    }
    return [make(raw[name]) for name, make in made.items() if raw.get(name)]


# Reading what is there ---------------------------------------------------------------------------


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _value(given: Any) -> float | None:
    """A number, given as such or as the median or mean of several."""
    if isinstance(given, Mapping):
        given = next((given[n] for n in ("median", "mean", "value") if n in given), None)
    if isinstance(given, list | tuple):
        given = given[0] if given else None
    return float(given) if isinstance(given, int | float) and not isinstance(given, bool) else None


def _error(given: Any) -> float | None:
    if isinstance(given, Mapping):
        return _value(given.get("std"))
    return _value(given[1]) if isinstance(given, list | tuple) and len(given) > 1 else None


def _table_rows(given: Any, keys: Sequence[str], result: str) -> list[dict[str, Any]]:
    """Rows by the names of their columns; from nested mappings as well, of depth len(keys)."""
    if isinstance(given, list):
        return [dict(row) for row in given if isinstance(row, Mapping)]
    rows: list[dict[str, Any]] = [dict(_mapping(given))]
    found: list[dict[str, Any]] = [{}]
    for key in keys:
        deeper = [
            (before | {key: name}, inner)
            for before, part in zip(found, rows, strict=True)
            for name, inner in part.items()
        ]
        last = key == keys[-1]
        if last:
            return [
                before | (dict(inner) if isinstance(inner, Mapping) else {result: inner})
                for before, inner in deeper
            ]
        deeper = [(before, inner) for before, inner in deeper if isinstance(inner, Mapping)]
        found, rows = [before for before, _ in deeper], [dict(inner) for _, inner in deeper]
    return []


def _algorithm(name: Any) -> str:
    return _ALGORITHMS.get(str(name), str(name))


def _player(name: str) -> str:
    return _PLAYERS.get(name, name.replace("_", " "))


def _spread(mean: float | None, std: float | None) -> str | None:
    if mean is None:
        return None
    return number(mean) if std is None else f"{number(mean)} ± {number(std, 2)}"


def _rest(raw: Mapping[str, Any], *shown: str) -> str:
    """What else was said of a measurement, in one line."""
    plain = {
        name: value
        for name, value in raw.items()
        if name not in shown and isinstance(value, int | float | str)
    }
    told = [f"{name.replace('_', ' ')} {page.shown(value)}" for name, value in plain.items()]
    return "; ".join(told)


# Scores ------------------------------------------------------------------------------------------


def _scores(raw: Any) -> page.Part:
    """Scores beside published ones, dataset by dataset."""
    parts = []
    rows = _table_rows(raw, ("dataset", "algo"), "mean")
    for dataset in dict.fromkeys(row.get("dataset") for row in rows):
        own = [row for row in rows if row.get("dataset") == dataset]
        made_anew = any(row.get("released") is False for row in own)
        title = f"{dataset}: data made anew, not the release" if made_anew else str(dataset)
        parts += [page.heading(title), _score_chart(own), _score_table(own)]
    text = (
        "Normalised as NeoRL-2 does: 0 and 100 are its reference returns. Constants and control "
        "loops learn nothing and stand beside what learns. Ours: means over seeds of the policy "
        "after the last update, or of the iterate that an algorithm itself keeps by the data, with "
        "the last one beside it; which algorithm is chosen is decided from the data alone. The "
        "published ones were tuned by their return in the simulator."
    )
    return page.section("Scores", *parts, text=text)


def _published(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
    given, std = row.get("published"), row.get("published_std")
    return _value(given), _error(given) if std is None else _value(std)


def _score_chart(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    names = [_algorithm(row.get("algo")) for row in rows]
    ours = [(_value(row.get("mean")), _value(row.get("std"))) for row in rows]
    groups = [
        Bars(name, [value for value, _ in pairs], color, [error for _, error in pairs])
        for name, pairs, color in (
            ("Worldloom ± s.d.", ours, 0),
            ("published", [_published(row) for row in rows], 7),
        )
        if any(value is not None for value, _ in pairs)
    ]
    if not groups:
        return None
    axis = "normalised score"
    return page.figure(partial(bar_chart, names, groups, title="Scores", axis_label=axis))


def _score_table(rows: Sequence[Mapping[str, Any]]) -> page.Part:
    lines = []
    for row in rows:
        seeds = row.get("seeds")
        seeds = len(seeds) if isinstance(seeds, list) else seeds
        minutes = _value(row.get("seconds"))
        lines.append(
            [
                _algorithm(row.get("algo")),
                _spread(_value(row.get("mean")), _value(row.get("std"))),
                _value(row.get("last_mean")),
                _spread(*_published(row)),
                _value(row.get("data")),
                seeds,
                _value(row.get("updates")),
                None if minutes is None else minutes / 60.0,
                row.get("how"),
            ]
        )
    head = [
        "algorithm",
        "score",
        "last iterate",
        "published",
        "the data's own",
        "seeds",
        "updates",
        "minutes a run",
        "chosen how",
    ]
    return page.measured_table(head, lines)


def _off_policy(raw: Any) -> page.Part:
    """How often intervals of off-policy estimates hold the truth, and ranks agree."""
    raw = _mapping(raw)
    shown = ("intervals", "coverage_95", "rank_correlation")
    methods = _mapping(raw.get("methods"))
    rows = [[name, *(_value(_mapping(m).get(n)) for n in shown)] for name, m in methods.items()]
    head = ["estimator", "intervals given", "hold the truth", "rank correlation"]
    text = (
        "Policies evaluated from logs alone, then played in the plant. Nominal intervals of 95 %; "
        "widths are relative to the spread of true returns within a plant. Settled: without doubts."
    )
    plain = {name: value for name, value in raw.items() if isinstance(value, int | float)}
    parts = [page.table((), [[name.replace("_", " "), value] for name, value in plain.items()])]
    return page.section("Off-policy evaluation", *parts, page.measured_table(head, rows), text=text)


def _selection(raw: Any) -> page.Part:
    """Regret by budget and way of choosing, and what was recommended from each log."""
    raw = _mapping(raw)
    logs = [_mapping(log) for log in raw.get("logs") or ()]
    budgets = list(logs[0].get("budgets") or ()) if logs else []
    regret = _mapping(raw.get("regret"))
    rows = [[way.replace("_", " "), *values] for way, values in regret.items()]
    kept = ("plant", "quality", "recommended", "reason")
    choices = [[log.get(name) or "none" for name in kept] for log in logs]
    text = (
        "Regret: what the chosen policy earns less than the best of six, as a share of what lies "
        "between best and worst; after so many trial episodes, mean over logs and simulations."
    )
    return page.section(
        "Choosing among policies",
        page.table(["way", *(f"{b} episodes" for b in budgets)], rows) if rows else "",
        page.table(["plant", "log", "recommended", "because"], choices),
        text=text,
    )


def _oracle(raw: Any) -> page.Part:
    """Mean returns by plant, a controller a column, and the share that tuned loops reach."""
    names = ("random", "pid_detuned", "pid_tuned", "oracle")
    rows = []
    for plant, row in _mapping(raw).items():
        means = [_value(_mapping(_mapping(row).get(name)).get("return")) for name in names]
        low, tuned, high = means[0], means[2], means[3]
        known = low is not None and tuned is not None and high is not None and high != low
        share = 100.0 * (tuned - low) / (high - low) if known else None
        rows.append([plant, *means, share])
    head = ["plant", "random actions", "PID, half gains", "PID", "oracle", "PID, oracle share, %"]
    text = (
        "Mean return of an episode. The oracle plans every action anew with the true plant and "
        "its whole state; it does not know what chance will bring."
    )
    return page.section("How well plants can be controlled", page.table(head, rows), text=text)


def _plants(raw: Any) -> page.Part:
    """Returns by plant and quality of the data, an algorithm a column."""
    rows = _table_rows(raw, ("plant", "quality", "algo"), "return")
    algorithms = list(dict.fromkeys(str(row.get("algo")) for row in rows if row.get("algo")))
    places = list(dict.fromkeys((row.get("plant"), row.get("quality")) for row in rows))

    def cells(name: str, error: str = "") -> list[list[Any]]:
        lines = []
        for place in places:
            own = [row for row in rows if (row.get("plant"), row.get("quality")) == place]
            data = next((v for row in own if (v := _value(row.get("data"))) is not None), None)
            found = {str(row.get("algo")): row for row in own}
            shown = [found.get(algorithm, {}) for algorithm in algorithms]
            values = [_spread(_value(row.get(name)), _value(row.get(error))) for row in shown]
            loops = next((v for row in own if (v := _value(row.get("loops"))) is not None), None)
            lines.append([*map(str, place), _spread(data, None), _spread(loops, None), *values])
        return lines

    head = ["plant", "data", "the data's own return", "control loops"]
    head += map(_algorithm, algorithms)
    filtered = any(row.get("filtered") is not None for row in rows)
    below = [page.heading("Behind the safety filter"), page.measured_table(head, cells("filtered"))]
    below = below if filtered else None
    text = "Mean return of an episode in the plant, after learning from data of each quality."
    first = page.measured_table(head, cells("return", "std")) if algorithms else ""
    return page.section("Plants and qualities of data", first, below, text=text)


# Speed -------------------------------------------------------------------------------------------


def _speed(raw: Any) -> page.Part:
    """Updates per second by algorithm, ours beside others'."""
    raw = _mapping(raw)
    speeds = _mapping(raw.get("updates_per_second")) or raw
    speeds = {name: part for name, part in speeds.items() if isinstance(part, Mapping)}
    players = list(
        dict.fromkeys(
            player
            for part in speeds.values()
            for player in part
            if _value(part[player]) is not None
        )
    )
    if not players:
        return ""
    groups = [
        Bars(_player(player), [_value(part.get(player)) for part in speeds.values()])
        for player in players
    ]
    draw = partial(
        bar_chart,
        [_algorithm(name) for name in speeds],
        groups,
        title="Learning",
        axis_label="updates per second (log)",
        log=True,
        show=_whole,
    )

    return page.section("Updates per second", page.figure(draw, _rest(raw, "updates_per_second")))


def _steps(raw: Any) -> page.Part:
    """Steps of a plant per second, ours and a loop's."""
    raw = _mapping(raw)
    speeds = _mapping(raw.get("steps_per_second")) or raw
    shown = {_player(name): v for name, given in speeds.items() if (v := _value(given)) is not None}
    if not shown:
        return ""
    draw = partial(
        bar_chart,
        list(shown),
        [Bars("", list(shown.values()))],
        title="Plant steps",
        axis_label="steps per second (log)",
        log=True,
        show=_whole,
    )

    rest = "" if speeds is raw else _rest(raw, "steps_per_second")
    return page.section("Steps of the plant", page.figure(draw, rest))


def _whole(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else number(value)


# Safety and serving ------------------------------------------------------------------------------


def _safety(raw: Any) -> page.Part:
    """What the filter costs, and what adversaries got past it."""
    raw = _mapping(raw)
    parts = []
    costs = _by_plant(raw.get("cost") or raw.get("filter"), "overhead")
    if costs:
        rows = [
            [
                name,
                part.get("batch"),
                _scaled(part.get("policy_seconds"), 1e6),
                _scaled(part.get("filtered_seconds"), 1e6),
                _scaled(part.get("overhead"), 100.0),
                _scaled(part.get("intervened"), 100.0),
            ]
            for name, part in costs.items()
        ]
        head = [
            "plant",
            "batch",
            "policy, µs",
            "with the filter, µs",
            "the filter adds, %",
            "intervenes, %",
        ]
        parts += [page.heading("What the filter costs"), page.measured_table(head, rows)]
    for plant, found in _by_plant(raw.get("attacks") or raw.get("adversaries"), None).items():
        lines = {n: counts for n, counts in found.items() if isinstance(counts, Mapping)}
        known = [n for n in _COUNTS if any(n in counts for counts in lines.values())]
        rows = [
            [name.replace("_", " "), *(counts.get(n) for n in known)]
            for name, counts in lines.items()
        ]
        of_plant = f", {plant}" if plant else ""
        head = ["adversary", *(_COUNTS[n] for n in known)]
        parts += [page.heading(f"Adversaries{of_plant}"), page.table(head, rows)]
    text = (
        "Violations: executed actions, emergencies apart, that crossed a hard constraint they were "
        "validated for, beyond the tolerance. Their rate is at most what the bound says."
    )
    return page.section("The safety filter", *parts, text=text)


def _by_plant(given: Any, inside: str | None) -> Mapping[str, Mapping[str, Any]]:
    """Figures by plant, also where only one plant's are given without its name."""
    given = _mapping(given)
    inner = [part for part in given.values() if isinstance(part, Mapping)]
    if inside is not None:
        alone = inside in given
    else:  # counts of adversaries are one level deeper where plants are named
        alone = bool(inner) and any("cases" in part for part in inner)
    if alone:
        return {str(given.get("plant", "")): given}
    return {name: part for name, part in given.items() if isinstance(part, Mapping)}


def _scaled(value: Any, factor: float) -> float | None:
    known = _value(value)
    return None if known is None else factor * known


def _serving(raw: Any) -> page.Part:
    """What the service sustained, and what a kill cost."""
    raw = _mapping(raw)
    items = [
        (words, number(value, 4), unit, "")
        for name, (words, unit) in _SERVED.items()
        if (value := _value(raw.get(name))) is not None
    ]
    others = {
        name.replace("_", " "): value
        for name, value in raw.items()
        if name not in _SERVED and not isinstance(value, list | Mapping)
    }
    hero = page.group("hero", page.facts(items))
    return page.section("Serving", hero, *_servers(raw.get("compared")), page.settings(others))


def _servers(compared: Any) -> list[page.Part]:
    """Our server beside others', which have neither filter nor record."""
    compared = _mapping(compared)
    names = ("requests_per_second", "p99_ms", "processor_ms_a_request")
    columns = [_mapping(compared.get(name)) for name in names]
    if not columns[0]:
        return []
    rows = [[server, *(column.get(server) for column in columns)] for server in columns[0]]
    head = ["server", "requests/s", "99 % within, ms", "processor time a request, ms"]
    return [page.heading("The same requests, in turn"), page.measured_table(head, rows)]
