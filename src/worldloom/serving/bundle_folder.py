"""A bundle as a folder of files: written whole or not at all, and read only if it is unchanged."""

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.files import plain, replace_folder, restore_folder
from worldloom.serving.policy_runtime import digest_of, read_bundle

MANIFEST = "manifest.json"
CASES = "self_test.npz"
APPROVAL = "approval.json"  # signatures of the digest, which vanish with the bundle
POLICY = "worldloom policy"
PLANT_POLICY = "worldloom plant policy"


class Format(NamedTuple):
    """A kind of bundle: its version, and its programs."""

    version: int
    programs: tuple[str, ...]


FORMATS = {
    POLICY: Format(2, ("policy.jax",)),
    PLANT_POLICY: Format(3, ("control.jax", "emergency.jax", "start.jax")),
}


def write_folder(folder: str | Path, files: Mapping[str, bytes]) -> Path:
    """Writes a bundle's files, whole or not at all, and returns its folder.

    A bundle that is there already is replaced; anything else is left alone.
    """
    place = check_target(folder).resolve()  # a link stays one
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        draft.chmod(0o755)
        for name, content in files.items():
            (draft / name).write_bytes(content)
        replace_folder(draft, place)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Path(folder)


def read_policy(
    folder: str | Path, kind: str = PLANT_POLICY
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a bundle of programs and its files' content; see `read_bundle`."""
    folder = restore_folder(folder)
    version, programs = FORMATS[kind]
    manifest, files = read_bundle(folder, kind, version)
    missing = [name for name in (*programs, CASES) if name not in files]
    if missing:
        raise ValueError(f"{folder}: {MANIFEST} does not list {missing[0]}; export it again")
    return manifest, files


def check_target(folder: str | Path) -> Path:
    """A folder that a bundle may be written to: it holds one and nothing else, or is not there."""
    folder = restore_folder(folder)
    filled = folder.is_file() or (folder.is_dir() and any(folder.iterdir()))
    if filled and not (folder / MANIFEST).is_file():
        raise ValueError(f"export: {folder} exists and is no bundle; name another folder")
    strangers = _strangers(folder)
    if strangers:
        raise ValueError(
            f"export: {folder} also holds {strangers[0]}, which is not of the bundle and would be "
            "lost; move it, or name another folder"
        )
    return folder


def npz(arrays: Mapping[str, np.ndarray]) -> bytes:
    """The content of an npz file."""
    stored = io.BytesIO()
    named: dict[str, Any] = dict(arrays)
    np.savez(stored, **named)
    return stored.getvalue()


def json_bytes(value: Any) -> bytes:
    """The content of a JSON file."""
    return (json.dumps(plain(value), indent=2) + "\n").encode()


def with_manifest(manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, bytes]:
    """A bundle's files with their manifest, which knows their sha256 and has a digest of it all."""
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    facts = plain({**manifest, "files": hashes})
    return {**files, MANIFEST: json_bytes(facts | {"digest": digest_of(facts)})}


def _strangers(folder: Path) -> list[str]:
    """What lies in a bundle's folder and is not of it, such as an audit log.

    Everything, where the manifest is damaged or somebody else's: it cannot say what is of it.
    """
    if not folder.is_dir():
        return []
    try:
        actual = json.loads((folder / MANIFEST).read_bytes())
        ours = str(actual["kind"]).startswith("worldloom ")
        own = {MANIFEST, APPROVAL, "__pycache__", *actual["files"]} if ours else set()
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    return sorted(path.name for path in folder.iterdir() if path.name not in own)
