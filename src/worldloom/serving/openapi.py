"""What OpenAPI is told of the service: every request, every status, and what each answer holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.serving.answers import FLAGS, IDEMPOTENCY_KEY
from worldloom.serving.bundle import Bundle
from worldloom.serving.records import PLANT

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
OBJECT: Schema = {"type": "object"}
HASH: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
PLANT_ID: Schema = {
    "type": "string",
    "pattern": f"^{PLANT}$",
    "minLength": 1,
    "maxLength": 64,
    "description": "the id of the plant",
}
REFUSALS = {
    400: "a header that is there twice, or a request that ended before its body",
    401: "no token, or the wrong one",
    403: "a host name that is not this machine",
    408: "the body took too long",
    409: "nobody said where the actuators of this plant are, or the idempotency key is that of "
    "another observation",
    413: "the body is too large",
    415: "the body is not application/json",
    429: "this plant asks too often, or is one too many",
    503: "the server is stopping, too many requests wait, or the audit log cannot be written",
}


def describe(bundle: Bundle, version: str, *, with_token: bool) -> Schema:
    """The whole description of the service of a bundle."""
    everywhere = (400, 401) if with_token else (400, 403)
    posted = (*everywhere, 408, 409, 413, 415, 429, 503)
    position = _values(bundle.action, null=False)
    schemas = _answers(bundle)
    ref = {name: {"$ref": f"#/components/schemas/{name}"} for name in schemas}
    fields = {"description": "a field is not what it must be", **_json(ref["FieldErrors"])}

    def post(text: str, answer: str, body: Schema, optional: Sequence[str] = ()) -> Schema:
        schema = _object(body, [name for name in body if name not in optional], closed=True)
        done = {"description": "it is done and on record", **_json(ref[answer])}
        responses = {"200": done, **_refusals(posted, ref["Error"]), "422": fields}
        request = {"required": True, **_json(schema)}
        return {"post": {"summary": text, "requestBody": request, "responses": responses}}

    def get(text: str, content: Schema, refused: Mapping[str, Schema]) -> Schema:
        responses = {"200": {"description": text, **content}, **refused}
        return {"get": {"summary": text, "responses": responses}}

    act = post(
        "the action for an observed plant, with what the safety filter did and why",
        "Action",
        {"plant": PLANT_ID, "observation": _values(bundle.observation, null=True)}
        | {"previous": _or_null(position)},
        ["previous"],
    )
    act["post"]["parameters"] = [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "a request with the key of an earlier one is answered like that one",
            "schema": {"type": "string", "pattern": f"^({IDEMPOTENCY_KEY})$"},
        }
    ]
    told = _refusals(everywhere, ref["Error"])
    watched = {
        name: {"503": {"description": "it does not work", **_json(ref[name])}}
        for name in ("Health", "Ready")
    }
    paths = {
        "/act": act,
        "/override": post(
            "asks for an action in place of the policy's until it is null; the filter stays on",
            "Plant",
            {"plant": PLANT_ID, "action": _or_null(position)},
        ),
        "/reset": post(
            "lifts an emergency stop; with `previous`, forgets all but where the actuators are",
            "Plant",
            {"plant": PLANT_ID, "previous": _or_null(position)},
            ["previous"],
        ),
        "/policy": get("what is served, and the newest record", _json(ref["Policy"]), told),
        "/metrics": get(
            "counts, as Prometheus reads them", {"content": {"text/plain": {"schema": TEXT}}}, told
        ),
        "/health": get("the process works", _json(ref["Health"]), watched["Health"]),
        "/ready": get("requests are answered", _json(ref["Ready"]), watched["Ready"]),
    }
    components: Schema = {"schemas": schemas}
    if with_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            for operation in operations.values():
                operation["security"] = [] if path in ("/health", "/ready") else [{"token": []}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "worldloom serve", "version": version},
        "paths": paths,
        "components": components,
    }


def _answers(bundle: Bundle) -> dict[str, Schema]:
    names = [signal["name"] for signal in bundle.action]
    maybe_number = {"type": ["number", "null"]}
    action = _object({s["name"]: _number(s, NUMBER) for s in bundle.action}, names)
    proposed = _object({s["name"]: _number(s, maybe_number) for s in bundle.action}, names)
    record = _object({"seq": COUNT, "hash": HASH})
    signals = {"type": "array", "items": OBJECT}
    reason = {"type": ["string", "null"]}
    plant = {"plant": PLANT_ID, "step": COUNT, "stopped": FLAG, "record": record}
    answered = plant | {
        "action": action,
        "normalised": {"type": "array", "items": NUMBER, "description": "the action in [-1, 1]"},
        "late": FLAG,
        "emergency": FLAG,
        "reason": reason,
        "drift": {"type": "array", "items": TEXT},
    }
    filtered = {name: FLAG for name in FLAGS} | {
        "proposed": proposed,
        "margins": _object(dict.fromkeys(bundle.rows, maybe_number)),
    }
    return {
        "Action": _object(answered | filtered, list(answered)),  # a late one met no filter
        "Plant": _object(
            plant | {"overriding": FLAG, "override": _or_null(action), "previous": action}
        ),
        "Policy": _object(
            {"digest": HASH, "created": TEXT, "worldloom": TEXT, "constraints": signals}
            | {"signals": _object({"observation": signals, "action": signals})}
            | {"emergency": {"type": "array", "items": NUMBER}, "emergency_action": action}
            | {"log": _object({"seq": {"type": "integer", "minimum": -1}, "hash": HASH})}
        ),
        "Health": _object({"status": {"enum": ["alive", "failing"]}, "reason": reason}),
        "Ready": _object({"ready": FLAG, "reason": reason}),
        "Error": _object({"detail": TEXT}),
        "FieldErrors": _object(
            {"detail": {"type": "array", "items": _object({"field": TEXT, "message": TEXT})}}
        ),
    }


def _values(signals: Sequence[Mapping[str, Any]], *, null: bool) -> Schema:
    """Numbers of signals, in order or by name; null: a sensor may have failed."""
    kind: Schema = {"type": ["number", "null"]} if null else NUMBER
    each = [_number(s, kind if null else kind | _range(s)) for s in signals]
    count, names = len(each), [signal["name"] for signal in signals]
    listed = {"type": "array", "prefixItems": each, "items": False, "minItems": count}
    named = _object(dict(zip(names, each, strict=True)), names, closed=True)
    return {"oneOf": [listed | {"maxItems": count}, named]}


def _range(signal: Mapping[str, Any]) -> Schema:
    return {"minimum": signal["low"], "maximum": signal["high"]}


def _number(signal: Mapping[str, Any], kind: Schema) -> Schema:
    return kind | {"description": f"{signal['name']}, in {signal['unit'] or '1'}"}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [*schema.get("oneOf", [schema]), {"type": "null"}]}


def _object(
    properties: Mapping[str, Schema], required: Sequence[str] | None = None, closed: bool = False
) -> Schema:
    needed = list(properties) if required is None else list(required)
    schema = {"type": "object", "properties": dict(properties), "required": needed}
    return schema | {"additionalProperties": False} if closed else schema


def _json(schema: Schema) -> Schema:
    return {"content": {"application/json": {"schema": schema}}}


def _refusals(statuses: Sequence[int], error: Schema) -> dict[str, Schema]:
    found = {}
    for status in statuses:
        found[str(status)] = {"description": REFUSALS[status], **_json(error)}
        if status in (429, 503):
            found[str(status)]["headers"] = {
                "Retry-After": {"description": "whole seconds", "schema": {"type": "integer"}}
            }
    return found
