"""A bundle as a folder of files: written whole or not at all, and read only if it is unchanged."""

import hashlib
import io
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from worldloom.core.files import plain, replace_folder

MANIFEST = "manifest.json"
CASES = "self_test.npz"
POLICY = "worldloom policy"
PLANT_POLICY = "worldloom plant policy"


class Format(NamedTuple):
    """A kind of bundle: its version, its programs, and what its manifest says of their numbers."""

    version: int
    programs: tuple[str, ...]
    meaning: tuple[str, ...]


FORMATS = {
    POLICY: Format(1, ("policy.jax",), ("observation", "action")),
    PLANT_POLICY: Format(
        2, ("control.jax", "emergency.jax", "start.jax"), ("signals", "constraints", "emergency")
    ),
}


def write_folder(folder: str | Path, files: Mapping[str, bytes]) -> Path:
    """Writes a bundle's files, whole or not at all, and returns its folder.

    A bundle that is there already is replaced; anything else is left alone.
    """
    folder = check_target(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        draft.chmod(0o755)
        for name, content in files.items():
            (draft / name).write_bytes(content)
        return replace_folder(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def read_policy(
    folder: str | Path, kind: str = PLANT_POLICY
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The manifest of a bundle, which is the one that its digest names, and its files' content.

    A bundle of another kind or version, a file that is missing and one that was changed are a
    ValueError. What is returned is what was checked: nothing is read twice.
    """
    folder = Path(folder)
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise ValueError(f"{folder} is no bundle of a policy: it has no {MANIFEST}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); export the policy again") from None
    given = manifest.get("kind") if isinstance(manifest, dict) else None
    if given != kind:
        raise ValueError(f"{path} is of kind {given!r}, not the manifest of a {kind}")
    version, programs, meaning = FORMATS[kind]
    if manifest.get("version") != version:
        raise ValueError(
            f"{path} is of version {manifest.get('version')}, this worldloom reads {version}; "
            "export the policy again with it, or use the worldloom that wrote it "
            f"({manifest.get('worldloom')})"
        )
    listed = manifest.get("files")
    if not isinstance(listed, dict):
        raise ValueError(f"{path} lists no files; export the policy again")
    files = {}
    for name, digest in listed.items():
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise ValueError(f"{path}: {name!r} is no name of a file in a bundle; do not use it")
        file = folder / name
        if not file.is_file():
            raise ValueError(f"{folder}: {name} is missing; copy the whole bundle")
        files[name] = file.read_bytes()
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise ValueError(
                f"{folder}: {name} is not the file that was exported (its sha256 differs from the "
                "manifest's); copy the bundle again"
            )
    missing = [name for name in (*programs, CASES) if name not in files]
    if missing:
        raise ValueError(f"{folder}: {MANIFEST} does not list {missing[0]}; export it again")
    missing = [name for name in meaning if name not in manifest]
    if missing or not isinstance(manifest.get("digest"), str):
        raise ValueError(f"{folder}: {MANIFEST} has no {(*missing, 'digest')[0]}; export it again")
    actual = digest_of(files, manifest)
    if manifest["digest"] != actual:
        raise ValueError(
            f"{folder}: {MANIFEST} names policy {manifest['digest'][:12]}, its programs and what "
            f"is said of them are {actual[:12]}; copy the bundle again"
        )
    return manifest, files


def digest_of(files: Mapping[str, bytes], manifest: Mapping[str, Any]) -> str:
    """Names a policy and what its numbers mean: the sha256 of its programs and of that.

    The same program with another order or range of signals controls the plant differently.
    """
    _, programs, meaning = FORMATS[manifest["kind"]]
    joined = hashlib.sha256()
    for name in programs:
        joined.update(hashlib.sha256(files[name]).digest())
    said = {name: manifest[name] for name in meaning}
    joined.update(json.dumps(said, sort_keys=True).encode())
    return joined.hexdigest()


def check_target(folder: str | Path) -> Path:
    """A folder that a bundle may be written to: it holds one and nothing else, or is not there."""
    folder = Path(folder)
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


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """The sha256 of every file, for the manifest."""
    return {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}


def _strangers(folder: Path) -> list[str]:
    """What lies in a bundle's folder and is not of it, such as an audit log.

    Everything, where the manifest is damaged or somebody else's: it cannot say what is of it.
    """
    if not folder.is_dir():
        return []
    try:
        actual = json.loads((folder / MANIFEST).read_bytes())
        ours = str(actual["kind"]).startswith("worldloom ")
        own = {MANIFEST, "__pycache__", *actual["files"]} if ours else set()
    except (OSError, ValueError, KeyError, TypeError):
        own = set()
    return sorted(path.name for path in folder.iterdir() if path.name not in own)
