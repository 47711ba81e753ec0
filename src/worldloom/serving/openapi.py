"""What OpenAPI says of the service: every request, every status, and what each answer holds."""

from collections.abc import Mapping, Sequence
from typing import Any

from worldloom.serving.alarms import LONGEST, Alarms
from worldloom.serving.answers import FLAGS, IDEMPOTENCY_KEY
from worldloom.serving.bundle import Bundle
from worldloom.serving.gate import OPEN
from worldloom.serving.records import PLANT

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
REASON: Schema = {"type": ["string", "null"]}
OBJECTS: Schema = {"type": "array", "items": {"type": "object"}}
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
    409: "nobody said where the actuators of this plant are, or what was executed in shadow mode, "
    "or the idempotency key is that of another observation",
    413: "the body is too large",
    415: "the body is not application/json",
    429: "this plant asks too often, or is one too many",
    503: "the server is stopping, too many requests wait, or the audit log cannot be written",
}
RETRY = {"Retry-After": {"description": "whole seconds", "schema": {"type": "integer"}}}
IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "a request with the key of an earlier one is answered like that one",
    "schema": {"type": "string", "pattern": f"^({IDEMPOTENCY_KEY})$"},
}


def describe(bundle: Bundle, version: str, *, with_token: bool, shadow: bool = False) -> Schema:
    """The whole description of the service of a bundle; shadow: it only looks on."""
    refused = _refusals(400, 401 if with_token else 403)
    not_done = refused | _refusals(408, 409, 413, 415, 429, 503)
    not_done["422"] = _answer("a field is not what it must be", "FieldErrors")
    position = _values(bundle.action, null=False)
    previous = {"previous": _or_null(position)}

    def post(summary: str, answer: str, body: Schema, optional: Schema | None = None) -> Schema:
        schema = _object(body | (optional or {}), list(body), closed=True)
        request = {"required": True, **_json(schema)}
        responses = {"200": _answer("it is done and on record", answer), **not_done}
        return {"post": {"summary": summary, "requestBody": request, "responses": responses}}

    def get(summary: str, answer: Schema, others: Schema) -> Schema:
        responses = {"200": {"description": summary, **answer}, **others}
        return {"get": {"summary": summary, "responses": responses}}

    def watch(summary: str, answer: str) -> Schema:
        return get(summary, _json(_ref(answer)), {"503": _answer("it does not work", answer)})

    paths = {
        "/act": post(
            "the action for an observed plant, with what the safety filter did and why",
            "Action",
            {"plant": PLANT_ID, "observation": _values(bundle.observation, null=True)},
            previous | ({"executed": _or_null(position)} if shadow else {}),
        ),
        "/override": post(
            "asks for an action in place of the policy's until it is null; the filter stays on",
            "Plant",
            {"plant": PLANT_ID, "action": _or_null(position)},
        ),
        "/reset": post(
            "lifts an emergency stop; with `previous`, forgets all but where the actuators are",
            "Plant",
            {"plant": PLANT_ID},
            previous | {"keep_stop": FLAG},
        ),
        "/shelve": post(
            "silences an alarm of a plant for so many seconds; 0 ends that",
            "Shelved",
            {
                "plant": PLANT_ID,
                "alarm": {"enum": list(Alarms(bundle.manifest["constraints"]).priorities)},
                "seconds": NUMBER | {"minimum": 0, "maximum": LONGEST},
            },
        ),
        "/alarms": get("active and shelved alarms", _json(_ref("Alarms")), refused),
        "/policy": get("what is served, and the newest record", _json(_ref("Policy")), refused),
        "/metrics": get(
            "counts, as Prometheus reads them", _json(TEXT, media="text/plain"), refused
        ),
        "/health": watch("the process works", "Health"),
        "/ready": watch("requests are answered", "Ready"),
    }
    paths["/act"]["post"]["parameters"] = [IDEMPOTENCY]
    components: Schema = {"schemas": _schemas(bundle)}
    if with_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, operations in paths.items():
            for operation in operations.values():
                operation["security"] = [] if path in OPEN else [{"token": []}]
    about = {"title": "worldloom serve", "version": version}
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": components}


def _schemas(bundle: Bundle) -> dict[str, Schema]:
    action = _object({s["name"]: _number(s, NUMBER) for s in bundle.action})
    proposed = _object({s["name"]: _number(s, NUMBER_OR_NULL) for s in bundle.action})
    record = _object({"seq": COUNT, "hash": HASH})
    numbers = {"type": "array", "items": NUMBER}
    plant = {"plant": PLANT_ID, "step": COUNT, "stopped": FLAG, "record": record}
    answered = plant | {
        "action": action,
        "normalised": numbers | {"description": "the action in [-1, 1]"},
        "late": FLAG,
        "emergency": FLAG,
        "reason": REASON,
        "drift": {"type": "array", "items": TEXT},
    }
    margins = _object(dict.fromkeys(bundle.rows, NUMBER_OR_NULL))
    filtered = dict.fromkeys(FLAGS, FLAG) | {"proposed": proposed, "margins": margins}
    filtered["shadow"] = _object({"action": action, "difference": proposed})
    schemas = {
        "Plant": plant | {"overriding": FLAG, "override": _or_null(action), "previous": action},
        "Policy": {
            "digest": HASH,
            "created": TEXT,
            "worldloom": TEXT,
            "constraints": OBJECTS,
            "signals": _object({"observation": OBJECTS, "action": OBJECTS}),
            "emergency": numbers,
            "emergency_action": action,
            "recovery": OBJECTS,
            "shadow": FLAG,
            "log": _object({"seq": {"type": "integer", "minimum": -1}, "hash": HASH}),
        },
        "Shelved": {"plant": PLANT_ID, "alarm": TEXT, "shelved_until": NUMBER_OR_NULL},
        "Alarms": {"time": NUMBER, "alarms": OBJECTS},
        "Health": {"status": {"enum": ["alive", "failing"]}, "reason": REASON},
        "Ready": {"ready": FLAG, "reason": REASON},
        "Error": {"detail": TEXT},
        "FieldErrors": {
            "detail": {"type": "array", "items": _object({"field": TEXT, "message": TEXT})}
        },
    }
    # A late answer met no filter.
    act = _object(answered | filtered, list(answered))
    return {"Action": act} | {name: _object(fields) for name, fields in schemas.items()}


def _values(signals: Sequence[Mapping[str, Any]], *, null: bool) -> Schema:
    """Numbers of signals, in order or by name; null: a sensor may have failed."""
    each = {
        s["name"]: _number(s, NUMBER_OR_NULL)
        if null
        else _number(s, NUMBER | {"minimum": s["low"], "maximum": s["high"]})
        for s in signals
    }
    listed = {"type": "array", "prefixItems": list(each.values()), "items": False}
    sizes = {"minItems": len(each), "maxItems": len(each)}
    return {"oneOf": [listed | sizes, _object(each, closed=True)]}


def _number(signal: Mapping[str, Any], kind: Schema) -> Schema:
    return kind | {"description": f"{signal['name']}, in {signal['unit'] or '1'}"}


def _or_null(schema: Schema) -> Schema:
    return {"oneOf": [*schema.get("oneOf", [schema]), {"type": "null"}]}


def _object(
    properties: Mapping[str, Schema], required: Sequence[str] | None = None, closed: bool = False
) -> Schema:
    needed = list(properties) if required is None else required
    schema = {"type": "object", "properties": dict(properties), "required": needed}
    return schema | {"additionalProperties": False} if closed else schema


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: Schema, media: str = "application/json") -> Schema:
    return {"content": {media: {"schema": schema}}}


def _answer(description: str, schema: str) -> Schema:
    return {"description": description, **_json(_ref(schema))}


def _refusals(*statuses: int) -> dict[str, Schema]:
    answers = {str(status): _answer(REFUSALS[status], "Error") for status in statuses}
    for status in answers.keys() & {"429", "503"}:
        answers[status]["headers"] = RETRY
    return answers
