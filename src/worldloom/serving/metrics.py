"""Counts of what a server did, for Prometheus."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

MOST_TAKEN = 1_000  # times that are kept until the histogram gets them
SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
# Name -> what it counts, and by what.
COUNTERS = {
    "worldloom_requests_total": ("HTTP requests", ("path", "status")),
    "worldloom_answers_total": ("Actions answered, by what they are", ("kind",)),
    "worldloom_emergencies_total": ("Emergency actions answered", ("reason",)),
    "worldloom_drift_total": ("Observations outside of the training data", ("signal",)),
    "worldloom_batches_total": ("Batches computed, by their padded size", ("size",)),
    "worldloom_shadow_answers_total": ("Proposals compared with executed actions", ()),
    "worldloom_shadow_difference_total": (
        "Sizes of the differences between them, in shares of the range",
        ("actuator",),
    ),
    "worldloom_alarms_total": ("Alarms that went off", ("alarm", "priority")),
    "worldloom_loop_restarts_total": ("Loops that failed and were started again", ("loop",)),
}
GAUGES = {
    "worldloom_ready": "1 while requests are answered",
    "worldloom_plants": "Plants that are known",
    "worldloom_plants_latched": "Plants whose emergency stop stands",
    "worldloom_alarms_active": "Alarms that are active and not shelved",
    "worldloom_waiting": "Requests that wait for an answer",
    "worldloom_log_records": "Records in the audit log",
    "worldloom_log_bytes": "Size of the audit log's last segment",
}


class Metrics:
    """Counters, gauges and one histogram, in a registry of their own.

    To count is to add to a number here, which the registry hears of when somebody asks: its locks
    and labels cost more than the rest of an answer. Everything counts in the event loop's thread.
    """

    def __init__(self):
        self.registry = own = CollectorRegistry()
        self._counted: dict[tuple[str, tuple[object, ...]], float] = {}  # since somebody asked
        self._taken: list[float] = []  # seconds, likewise
        self._counters = {n: Counter(n, *about, registry=own) for n, about in COUNTERS.items()}
        self._gauges = {name: Gauge(name, text, registry=own) for name, text in GAUGES.items()}
        text = "From a request for an action to its answer"
        self._seconds = Histogram("worldloom_act_seconds", text, buckets=SECONDS, registry=own)

    def count(self, name: str, amount: float = 1.0, **labels: object) -> None:
        """Adds to a counter of `COUNTERS`; labels in the order that it has them."""
        known = (name, tuple(labels.values()))
        self._counted[known] = self._counted.get(known, 0.0) + amount

    def took(self, seconds: float) -> None:
        """Notes the time from a request for an action to its answer."""
        self._taken.append(seconds)
        if len(self._taken) >= MOST_TAKEN:
            self._flush()

    def _flush(self) -> None:
        counted, self._counted, taken, self._taken = self._counted, {}, self._taken, []
        for (name, labels), amount in counted.items():
            counter = self._counters[name]
            (counter.labels(*labels) if labels else counter).inc(amount)
        for seconds in taken:
            self._seconds.observe(seconds)

    def answered(self, what: str, drift: Sequence[str]) -> None:
        """Notes an action.

        what: "policy", "projected" or "overridden", which the filter let pass; "emergency", which
        it did not; "deadline" or "failure", where it was not asked. drift: strange signals.
        """
        late = what in ("deadline", "failure")
        kind = "emergency" if late else what
        self.count("worldloom_answers_total", kind=kind)
        if kind == "emergency":
            self.count("worldloom_emergencies_total", reason=what if late else "filter")
        for signal in drift:
            self.count("worldloom_drift_total", signal=signal)

    def shadowed(self, gaps: Mapping[str, float]) -> None:
        """Notes what was proposed less what was executed, by actuator, in shares of its range."""
        self.count("worldloom_shadow_answers_total")
        for actuator, gap in gaps.items():
            self.count("worldloom_shadow_difference_total", abs(gap), actuator=actuator)

    def render(self, gauges: Mapping[str, float]) -> str:
        """Everything in Prometheus's text format; gauges: values of `GAUGES`."""
        self._flush()
        for name, value in gauges.items():
            self._gauges[name].set(value)
        return generate_latest(self.registry).decode()
