"""Who trains which point of a shared study, agreed upon through the study's own storage.

A claim is an entry of a second study beside it, and the storage numbers entries in one order that
all workers see. Of the claims to a point, those of the highest round count, and of these the first.
Who holds one counts up its `beat`; where that has stood still for a lease, by the clock of whoever
looks, the next round is open. No two clocks are compared.
"""

import os
import platform
import threading
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any


def lost_with(claim: Any) -> int:
    """How many workers in a row have ended with a point, and had got nowhere with it.

    claim: that of the last of them; None where nobody had it.
    """
    return 0 if claim is None else claim.user_attrs["lost"] + 1


class Claims:
    """The claims to the points of the study `name`, as one worker sees and makes them."""

    def __init__(self, optuna: Any, storage: Any, name: str, lease: float):
        if not lease > 0:
            raise ValueError(f"lease={lease}; it must be some seconds")
        beside = f"{name}/claims"
        optuna.create_study(storage=storage, study_name=beside, load_if_exists=True)
        self._optuna, self._storage, self._lease = optuna, storage, lease
        self._study = storage.get_study_id_from_name(beside)
        self._worker = f"{platform.node()} {os.getpid()} {uuid.uuid4().hex[:12]}"
        self._held: dict[int, tuple[int, int]] = {}  # point -> (id of the claim, its beat)
        self._seen: dict[int, tuple[Any, float]] = {}  # point -> (what there was, since when)
        self._guard, self._ended = threading.Lock(), threading.Event()
        self._pulse = threading.Thread(target=self._beat_on, daemon=True)

    def __enter__(self) -> "Claims":
        self._pulse.start()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._ended.set()
        self._pulse.join()
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            for point in self._held:
                self.excuse(point)

    def current(self) -> dict[int, Any]:
        """The claim to each point that counts."""
        best: dict[int, Any] = {}
        for claim in self._storage.get_all_trials(self._study, deepcopy=False):
            about = claim.user_attrs
            known = best.get(about["point"])
            if known is None or about["round"] > known.user_attrs["round"]:
                best[about["point"]] = claim  # entries are in order: of a round the first stays
        return best

    def open(self, points: Sequence[int]) -> dict[int, Any]:
        """Of points that somebody began, those without life for a lease, and the claims to them."""
        current, now = self.current(), time.monotonic()
        found = {}
        for point in points:
            claim = current.get(point)
            sign = None if claim is None else (claim.number, claim.user_attrs["beat"])
            known, since = self._seen.get(point, (object(), now))
            if known != sign:
                self._seen[point] = sign, now
            elif now - since > self._lease:
                found[point] = claim
        return found

    def take(self, point: int, after: Any = None) -> bool:
        """Claims a point for the round after a claim that is open; whether that was in time."""
        known = self.current().get(point)
        if known is not None and (after is None or known.number != after.number):
            return False  # somebody has just taken it
        number = 0 if known is None else known.user_attrs["round"] + 1
        about = {"point": point, "round": number, "lost": lost_with(known)}
        about |= {"worker": self._worker, "beat": 0}
        entry = self._optuna.trial.create_trial(
            state=self._optuna.trial.TrialState.RUNNING, user_attrs=about
        )
        claim = self._storage.create_new_trial(self._study, template_trial=entry)
        if self.current()[point].number != self._storage.get_trial_number_from_id(claim):
            return False
        with self._guard:
            self._held[point] = claim, 0
        return True

    def holds(self, point: int) -> bool:
        """Whether a point is still this worker's."""
        claim = self.current().get(point)
        mine = claim is not None and claim.user_attrs["worker"] == self._worker
        return mine and point in self._held

    def excuse(self, point: int) -> None:
        """A point got on, or its worker was asked to end: should it end now, that was not why."""
        with self._guard:
            claim, _ = self._held.get(point, (None, 0))
        if claim is not None:
            self._storage.set_trial_user_attr(claim, "lost", -1)

    def release(self, point: int) -> None:
        """For a point that is finished: its claim needs no beat any more."""
        with self._guard:
            self._held.pop(point, None)

    def _beat_on(self) -> None:
        while not self._ended.wait(self._lease / 4):
            with self._guard:
                held = dict(self._held)
            for point, (claim, beat) in held.items():
                # A storage that does not answer now may do so at the next beat.
                with suppress(Exception):
                    self._storage.set_trial_user_attr(claim, "beat", beat + 1)
                    with self._guard:
                        if point in self._held:
                            self._held[point] = claim, beat + 1
