"""Signed approval of a bundle: who vouches for this policy and these constraints, by Ed25519.

A bundle's digest covers every byte of its policy and of its constraints, so that whatever is
changed needs another approval. Approvals lie in the bundle's folder as `approval.json`; a key's
private half belongs to the person who approves, and the server needs the public one alone.
"""

import difflib
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from worldloom.core.files import read_json, write_json
from worldloom.core.names import one_line
from worldloom.serving.bundle_folder import APPROVAL, PLANT_POLICY, read_policy

_SIGNED = ("digest", "replaces", "note", "time", "by")


def _crypto() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ImportError(
            "approvals need cryptography, which is not installed; pip install 'worldloom[serve]'"
        ) from None
    return serialization, ed25519


def new_key(path: str | Path) -> Path:
    """Writes a private key to a file that only its owner can read, and the public one to .pub."""
    path = Path(path)
    public = path.with_name(path.name + ".pub")
    serialization, ed25519 = _crypto()
    for place in (path, public):
        if place.exists():
            raise ValueError(f"{place} is there already; a key is never written over")
    key, pem = ed25519.Ed25519PrivateKey.generate(), serialization.Encoding.PEM
    private = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    try:
        path.touch(mode=0o600, exist_ok=False)
        path.write_bytes(private)
        info = serialization.PublicFormat.SubjectPublicKeyInfo
        public.write_bytes(key.public_key().public_bytes(pem, info))
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error}") from None
    return public


def approve(
    bundle: str | Path, key: str | Path, replaces: str | Path | None = None, note: str = ""
) -> dict[str, Any]:
    """Signs a bundle's digest and keeps that beside its files; the approval.

    replaces: the bundle that it is to take the place of, which the approval names as well.
    """
    private = _key(key, private=True)
    digest = read_policy(bundle, PLANT_POLICY)[0]["digest"]
    former = None if replaces is None else read_policy(replaces, PLANT_POLICY)[0]["digest"]
    made = {"digest": digest, "replaces": former, "note": note, "time": time.time()}
    made["by"] = _raw(private.public_key()).hex()
    made["signature"] = private.sign(_message(made)).hex()
    others = [one for one in approvals(bundle) if one.get("by") != made["by"]]
    write_json(Path(bundle) / APPROVAL, {"approvals": [*others, made]})
    return made


def approvals(bundle: str | Path) -> list[dict[str, Any]]:
    """What `approval.json` of a bundle holds, checked or not."""
    path = Path(bundle) / APPROVAL
    try:
        return [dict(one) for one in read_json(path)["approvals"]] if path.exists() else []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(one_line(f"{path} cannot be read ({error!r}); approve it again")) from None


def require_approval(
    bundle: str | Path, digest: str, keys: Sequence[str | Path]
) -> list[dict[str, Any]]:
    """The approvals of a bundle by all of these public keys; a ValueError where one is missing."""
    if not keys:
        return []
    public = {str(path): _key(path, private=False) for path in keys}
    given = {one.get("by"): one for one in approvals(bundle)}
    valid = [given.get(_raw(key).hex()) for key in public.values()]
    for (path, key), one in zip(public.items(), valid, strict=True):
        if one is None:
            raise ValueError(f"{bundle} is not approved by {path}; run `worldloom approve` with it")
        if not _holds(key, one):
            raise ValueError(f"{bundle}: the approval by {path} is forged or damaged")
        if one["digest"] != digest:
            raise ValueError(
                f"{bundle} holds policy {digest[:12]}, and {path} approved {one['digest'][:12]}: "
                "it was changed since; approve it again"
            )
    return [one for one in valid if one is not None]


def changes(former: str | Path, bundle: str | Path) -> list[str]:
    """What differs between the constraints of two bundles, as lines of a diff."""
    texts = []
    for folder in (former, bundle):
        files = read_policy(folder, PLANT_POLICY)[1]
        name = "constraints.yaml" if "constraints.yaml" in files else "constraints.json"
        texts.append(files[name].decode("utf-8", "replace").splitlines())
    before, after = texts
    return list(difflib.unified_diff(before, after, str(former), str(bundle), lineterm="", n=1))


def _holds(key: Any, approval: dict[str, Any]) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(bytes.fromhex(approval["signature"]), _message(approval))
    except (InvalidSignature, KeyError, TypeError, ValueError):
        return False
    return True


def _message(approval: dict[str, Any]) -> bytes:
    named = {"worldloom": "approval"} | {name: approval[name] for name in _SIGNED}
    return json.dumps(named, sort_keys=True).encode()


def _raw(key: Any) -> bytes:
    serialization, _ = _crypto()
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _key(path: str | Path, *, private: bool) -> Any:
    serialization, ed25519 = _crypto()
    what, kind, load = "public", ed25519.Ed25519PublicKey, serialization.load_pem_public_key
    if private:
        what, kind = "private", ed25519.Ed25519PrivateKey
        load = partial(serialization.load_pem_private_key, password=None)
    try:
        key = load(Path(path).read_bytes())
    except OSError as error:
        raise ValueError(f"{path}: the key cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, kind):
        raise ValueError(
            f"{path} is no {what} Ed25519 key in PEM; `worldloom approve --new-key FILE` makes one"
        )
    return key
