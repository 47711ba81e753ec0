"""Counts of what a server did, as Prometheus reads them."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

COUNTERS = {
    "worldloom_requests_total": "HTTP requests, by path and status",
    "worldloom_answers_total": "Actions answered, by what they are",
    "worldloom_emergencies_total": "Emergency actions answered, by their reason",
    "worldloom_drift_total": "Observations outside of the training data, by signal",
    "worldloom_batches_total": "Batches computed, by their padded size",
}
GAUGES = {
    "worldloom_ready": "1 while requests are answered",
    "worldloom_plants": "Plants that are known",
    "worldloom_plants_latched": "Plants whose emergency stop stands",
    "worldloom_waiting": "Requests that wait for an answer",
    "worldloom_log_records": "Records in the audit log",
    "worldloom_log_bytes": "Size of the audit log",
}


class Metrics:
    """Counters and one histogram. Not for several threads: the server's loop alone counts."""

    def __init__(self):
        self._counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        self._buckets = [0] * (len(SECONDS) + 1)
        self._seconds = 0.0

    def count(self, name: str, by: int = 1, **labels: object) -> None:
        """Adds to a counter of `COUNTERS`."""
        inside = ",".join(f'{key}="{_escaped(str(value))}"' for key, value in labels.items())
        self._counts[name][inside] += by

    def took(self, seconds: float) -> None:
        """Notes how long an action took, from the request to the answer."""
        self._seconds += seconds
        place = next((i for i, end in enumerate(SECONDS) if seconds <= end), len(SECONDS))
        self._buckets[place] += 1

    def answered(self, record: Mapping[str, Any]) -> None:
        """Notes an action, by the content of its record."""
        report = record.get("report")
        if report is None:
            kind = "emergency"
            reason = "deadline" if record["reason"] == "deadline" else "failure"
        else:
            told = ("emergency", "projected", "overridden")
            kind, reason = next((name for name in told if report[name]), "policy"), "filter"
        self.count("worldloom_answers_total", kind=kind)
        if kind == "emergency":
            self.count("worldloom_emergencies_total", reason=reason)
        for signal in record.get("drift", ()):
            self.count("worldloom_drift_total", signal=signal)

    def render(self, gauges: Mapping[str, float]) -> str:
        """Everything in Prometheus's text format; gauges: values of `GAUGES`."""
        lines = []
        for name, text in COUNTERS.items():
            lines += [f"# HELP {name} {text}", f"# TYPE {name} counter"]
            lines += [f"{name}{{{k}}} {v}" for k, v in sorted(self._counts[name].items())]
        for name, text in GAUGES.items():
            value = gauges[name]
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        name = "worldloom_act_seconds"
        lines += [f"# HELP {name} From a request for an action to its answer"]
        lines += [f"# TYPE {name} histogram"]
        total = 0
        for end, count in zip((*SECONDS, "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{end}"}} {total}')
        lines += [f"{name}_sum {self._seconds:.9g}", f"{name}_count {total}"]
        return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
