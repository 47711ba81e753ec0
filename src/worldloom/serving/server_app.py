"""The HTTP service: routes over a `Controller`, with FastAPI."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response

from worldloom import __version__
from worldloom.serving import answers
from worldloom.serving.bundle import Bundle
from worldloom.serving.controller import Controller
from worldloom.serving.gate import Gate, GateRules
from worldloom.serving.plants import Refused

PLANT = {"type": "string", "description": "the id of the plant"}


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

    app = FastAPI(
        title="worldloom serve", version=__version__, docs_url=None, redoc_url=None, lifespan=life
    )
    app.add_middleware(Gate, rules=rules, metrics=controller.metrics)  # pyright: ignore[reportArgumentType]

    # Bodies are read here and not by FastAPI: each field that is wrong is named in one line, and
    # none is echoed.

    async def act(request: Request) -> Response:
        """The action for an observed plant, with what the safety filter did and why."""
        content = answers.read_body(await request.body(), ["plant", "observation"])
        name = answers.read_plant(content)
        obs = answers.read_observation(content["observation"], bundle.observation)
        outcome = await controller.act(name, obs)
        answer = answers.act_answer(bundle, outcome["kind"], outcome["content"])
        return _recorded(answer, outcome)

    async def override(request: Request) -> Response:
        """Asks for an action in place of the policy's until it is null. The filter stays on."""
        content = answers.read_body(await request.body(), ["plant", "action"])
        name, action = answers.read_plant(content), content["action"]
        if action is not None:
            action = answers.read_action("action", action, bundle.action)
        outcome = await controller.override(name, action)
        return _recorded(answers.plant_answer(outcome["content"]), outcome)

    async def reset(request: Request) -> Response:
        """Lifts an emergency stop; with `previous`, forgets all but where the actuators are."""
        content = answers.read_body(await request.body(), ["plant"], ["previous"])
        name, previous = answers.read_plant(content), content.get("previous")
        if previous is not None:
            previous = answers.read_action("previous", previous, bundle.action)
        outcome = await controller.reset(name, previous)
        return _recorded(answers.plant_answer(outcome["content"]), outcome)

    # As plain routes: there are no arguments and models for FastAPI to look after.
    posts: dict[str, Any] = {}
    for path, handler, field in (
        ("/act", act, "observation"),
        ("/override", override, "action"),
        ("/reset", reset, "previous"),
    ):
        app.add_route(path, handler, ["POST"])
        posts[path] = {"post": _operation(path, handler.__doc__, bundle, field)}

    @app.get("/health")
    async def health() -> Response:
        """The process is alive."""
        return _json({"status": "alive", "worldloom": __version__})

    @app.get("/ready")
    async def ready() -> Response:
        """Whether requests are answered: 503 while the server stops or cannot write its log."""
        broken = controller.journal.broken
        fine = controller.ready and broken is None
        return _json({"ready": fine, "reason": broken}, 200 if fine else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts, as Prometheus reads them."""
        text = controller.metrics.render(controller.gauges())
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    @app.get("/policy")
    async def policy() -> Response:
        """What is served: digest, signals, constraints, and the newest record of the log."""
        journal = controller.journal
        names = ("digest", "created", "worldloom", "signals", "constraints", "emergency")
        facts = {name: bundle.manifest[name] for name in names}
        return _json(facts | {"log": {"seq": journal.seq, "hash": journal.hash}})

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> Response:
        response = _json({"detail": error.message}, error.status)
        if error.retry_after is not None:
            # Whole seconds, as HTTP has it: clients give up on anything else.
            response.headers["retry-after"] = str(max(1, math.ceil(error.retry_after)))
        return response

    @app.exception_handler(answers.BadField)
    async def bad_field(_: Request, error: answers.BadField) -> Response:
        return _json({"detail": [{"field": error.field, "message": error.message}]}, 422)

    described = app.openapi

    def openapi() -> dict[str, Any]:
        schema = described()
        schema["paths"] |= posts
        return schema

    app.openapi = openapi
    return app


def _json(value: Any, status: int = 200) -> Response:
    return Response(json.dumps(value, allow_nan=False), status, media_type="application/json")


def _recorded(answer: dict[str, Any], outcome: Mapping[str, Any]) -> Response:
    """An answer with the place of its record in the log."""
    place = outcome["record"]
    return _json(answer | {"record": {"seq": place.seq, "hash": place.hash}})


def _operation(path: str, text: str | None, bundle: Bundle, field: str) -> dict[str, Any]:
    """What OpenAPI is told of a POST whose body names a plant and a `field` of numbers."""
    sensed = field == "observation"
    number = (
        {"type": ["number", "null"]} if sensed else {"type": "number", "minimum": -1, "maximum": 1}
    )
    signals = bundle.observation if sensed else bundle.action
    count, names = len(signals), [signal["name"] for signal in signals]
    units = {
        s["name"]: number | ({"description": f"in {s['unit'] or '1'}"} if sensed else {})
        for s in signals
    }
    values: list[dict[str, Any]] = [
        {"type": "array", "items": number, "minItems": count, "maxItems": count},
        {"type": "object", "properties": units, "required": names},
    ]
    schema = {
        "type": "object",
        "properties": {
            "plant": PLANT,
            field: {"oneOf": values + [{"type": "null"}] * (not sensed)},
        },
        "required": ["plant"] if field == "previous" else ["plant", field],
        "additionalProperties": False,
    }
    return {
        "summary": path.strip("/"),
        "description": text,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "it is done and on record"}},
    }
