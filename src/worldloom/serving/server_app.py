"""The HTTP service: routes over a `Controller`, with FastAPI."""

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from worldloom import __version__
from worldloom.core.names import suggest
from worldloom.serving import answers
from worldloom.serving.alarms import LONGEST
from worldloom.serving.controller import Controller
from worldloom.serving.gate import Gate, GateRules
from worldloom.serving.openapi import describe
from worldloom.serving.plants import Refused


def make_app(
    controller: Controller, rules: GateRules, opened: Callable[[], None] | None = None
) -> FastAPI:
    """The application; the controller is opened when it starts and closed when it ends.

    opened: called when it has been.
    """
    bundle = controller.bundle

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await controller.open()
        if opened is not None:
            opened()
        yield
        await controller.close()

    # No page of documentation: it would load scripts from elsewhere, and cannot send the token.
    # And no redirections: they would send a client where its Host header says.
    app = FastAPI(docs_url=None, redoc_url=None, redirect_slashes=False, lifespan=life)
    secured = rules.token is not None
    described = describe(bundle, __version__, with_token=secured, shadow=controller.shadow)
    app.openapi = lambda: described
    app.add_middleware(Gate, rules=rules, metrics=controller.metrics)  # pyright: ignore[reportArgumentType]

    # Bodies are read here and not by FastAPI: each field that is wrong is named in one line, and
    # none is echoed.

    async def act(request: Request) -> Response:
        """The action for an observed plant, with what the safety filter did and why."""
        optional = ["previous", "executed"] if controller.shadow else ["previous"]
        content = answers.read_body(request.scope["body"], ["plant", "observation"], optional)
        key = answers.read_idempotency_key(request.headers.get("idempotency-key"))
        name, previous = answers.read_plant(content), _position(content, "previous")
        obs = answers.read_observation(content["observation"], bundle.observation)
        executed = _position(content, "executed")
        outcome = await controller.act(name, obs, previous, key, executed)
        return _json(answers.outcome_answer(bundle, outcome))

    async def override(request: Request) -> Response:
        """Asks for an action in place of the policy's until it is null. The filter stays on."""
        content = answers.read_body(request.scope["body"], ["plant", "action"])
        name = answers.read_plant(content)
        return _changed(await controller.override(name, _position(content, "action")))

    async def reset(request: Request) -> Response:
        """Lifts an emergency stop; with `previous`, forgets all but where the actuators are.

        With `keep_stop`, only where they are is new: a stop and an override stand.
        """
        optional = ["previous", "keep_stop"]
        content = answers.read_body(request.scope["body"], ["plant"], optional)
        name, previous = answers.read_plant(content), _position(content, "previous")
        keep_stop = content.get("keep_stop", False)
        if not isinstance(keep_stop, bool) or (keep_stop and previous is None):
            raise answers.BadField("keep_stop", "true or false, and true only with `previous`")
        return _changed(await controller.reset(name, previous, keep_stop))

    async def shelve(request: Request) -> Response:
        """Silences an alarm of a plant for so many seconds; 0 ends that."""
        content = answers.read_body(request.scope["body"], ["plant", "alarm", "seconds"])
        name, alarm = answers.read_plant(content), content["alarm"]
        known = controller.alarms.priorities
        if not isinstance(alarm, str) or alarm not in known:
            hint = suggest(str(alarm)[:60], known)
            raise answers.BadField("alarm", f"there is no such alarm; {hint}")
        seconds = content["seconds"]
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise answers.BadField("seconds", "not a number")
        if not 0.0 <= seconds <= LONGEST:
            raise answers.BadField("seconds", f"0 to {LONGEST:g} seconds are allowed")
        until = await controller.shelve(name, alarm, float(seconds))
        return _json({"plant": name, "alarm": alarm, "shelved_until": until})

    def _position(content: Mapping[str, Any], field: str) -> np.ndarray | None:
        value = content.get(field)
        return None if value is None else answers.read_action(field, value, bundle.action)

    def _changed(outcome: Mapping[str, Any]) -> Response:
        answer = answers.plant_answer(bundle, outcome["content"])
        return _json(answer | {"record": outcome["record"]})

    # As plain routes: there are no arguments and models for FastAPI to look after.
    handlers = {"/act": act, "/override": override, "/reset": reset, "/shelve": shelve}
    for path, handler in handlers.items():
        app.add_route(path, handler, ["POST"])

    @app.get("/alarms")
    async def alarms() -> Response:
        """Active and shelved alarms of all plants, those of high priority first."""
        now = time.time()
        return _json({"time": now, "alarms": controller.alarms.listed(now)})

    @app.get("/health")
    async def health() -> Response:
        """Whether the process does its work: 503 where it does not and will not by itself."""
        problem = await controller.problem()
        status = "alive" if problem is None else "failing"
        about = {"status": status, "reason": problem, "worldloom": __version__}
        return _json(about, 200 if problem is None else 503)

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are answered: 503 also while the server stops."""
        problem = await controller.problem()
        if problem is None and not controller.ready:
            problem = "the server is stopping"
        return _json({"ready": problem is None, "reason": problem}, 200 if problem is None else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts, as Prometheus reads them."""
        text = controller.metrics.render(controller.gauges(await controller.problem()))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/policy")
    async def policy() -> Response:
        """What is served: digest, signals, constraints, and the newest record of the log."""
        journal = controller.journal
        names = ("digest", "created", "worldloom", "signals", "constraints", "emergency")
        facts = {name: bundle.manifest[name] for name in names}
        facts["emergency_action"] = answers.physical(facts["emergency"], bundle.action)
        facts["recovery"] = bundle.manifest.get("recovery", [])
        facts["shadow"] = controller.shadow
        return _json(facts | {"log": {"seq": journal.seq, "hash": journal.hash}})

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        response = _json({"detail": error.message}, error.status)
        response.headers.update(error.headers)
        return response

    @app.exception_handler(answers.BadField)
    async def bad_field(_: Request, error: answers.BadField) -> Response:
        return _json({"detail": [{"field": error.field, "message": error.message}]}, 422)

    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")
