"""Datasets as npz files, with the keys of NeoRL-2: obs, action, next_obs, reward, done, truncated.

NeoRL-2 codes ends as follows, in every training file of it that was looked at: `done` is 1 where
the task itself ended (Simglucose: 111 of 280 trajectories, a glucose out of bounds) and `truncated`
is 1 where time ran out (DMSD: all 1,000 of them, each at step 100). No row has both. So `done` is
our `terminated`, and not, as the name may suggest, the end of an episode of either kind.

Beside those keys our own files hold cost, log_prob, name, provenance and digest, the last of which
is verified when they are read. `time` (N,) is read for the checks, and `index`, the first rows of
the episodes, where a file has it. No file is ever unpickled.
"""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import atomic_path, check_memory
from worldloom.core.names import listed, one_line, shown
from worldloom.replay.dataset import Dataset, columns_of, from_columns
from worldloom.replay.dataset_checks import OPTIONAL, Defect, Range, Report, check

FORMAT = "worldloom dataset 1"
KEYS = ("obs", "action", "next_obs", "reward", "done", "truncated")


@dataclass(frozen=True)
class Logged:
    """Columns (N, ...) as they were read, named as in `Rows`: not checked, not repaired."""

    source: Path
    columns: dict[str, np.ndarray]
    name: str = ""
    provenance: tuple[tuple[str, str], ...] = ()
    digest: str = ""  # what the file says of itself
    observation: tuple[Range, ...] = ()  # ranges that were declared
    action: tuple[Range, ...] = ()
    lines: np.ndarray | None = field(default=None, repr=False)  # (N,), of a text file
    defects: tuple[Defect, ...] = ()  # that reading came upon

    def check(self, observation: tuple[Range, ...] = (), action: tuple[Range, ...] = ()) -> Report:
        """Every defect; ranges that are given take the place of those declared."""
        return check(
            self.columns,
            observation=observation or self.observation,
            action=action or self.action,
            lines=self.lines,
            found_before=self.defects,
        )

    def dataset(self) -> Dataset:
        """On the device; a ValueError if no learner could use it, or if it is not what it was."""
        fatal = self.check().fatal()
        if fatal is not None:
            raise ValueError(
                f"{self.source}: {fatal.message}; `worldloom data check {self.source}` lists "
                "every defect"
            )
        columns = {name: value for name, value in self.columns.items() if "time" not in name}
        made = from_columns(**columns, name=self.name, provenance=self.provenance)
        if self.digest and made.digest != self.digest:
            raise ValueError(
                f"{self.source}: its content has digest {made.digest[:12]}, it was written with "
                f"{self.digest[:12]}; the file was changed or damaged, take a sound copy"
            )
        return made


def load(path: str | Path) -> Dataset:
    """The dataset in an npz file; a ValueError of one line if it is none, or of no use."""
    return read_npz(path).dataset()


def read_npz(path: str | Path) -> Logged:
    """An npz file's columns; a ValueError of one line if they cannot be read."""
    path = Path(path)
    stored = _arrays(path)
    missing = [key for key in KEYS if key not in stored]
    if missing:
        raise ValueError(
            f"{path}: there is no {', '.join(missing)}; it holds "
            f"{listed(stored, 80) or 'nothing'}, a dataset needs {', '.join(KEYS)}"
        )
    columns = {key: stored[key] for key in (*KEYS, *OPTIONAL) if key in stored}
    for key in ("reward", "done", "truncated", "log_prob", "time", "next_time"):
        if key in columns and columns[key].ndim == 2 and columns[key].shape[1] == 1:
            columns[key] = columns[key][:, 0]  # a column that some write as a matrix
    if "cost" in columns and columns["cost"].ndim == 1:
        columns["cost"] = columns["cost"][:, None]
    columns["terminated"] = columns.pop("done")
    defects = _apply_index(path, columns, stored["index"]) if "index" in stored else ()
    return Logged(
        path,
        columns,
        name=_text(path, stored, "name") or path.stem,
        provenance=_provenance(path, stored),
        digest=_text(path, stored, "digest"),
        defects=tuple(defects),
    )


def save(dataset: Dataset, path: str | Path, *, force: bool = False, compress: bool = True) -> Path:
    """Writes an npz file whole or not at all; one that is there is kept unless `force`."""
    path = Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"{path}: the name of a dataset's file must end in .npz")
    refuse_to_overwrite(path, force)
    columns = columns_of(dataset)
    arrays: dict[str, Any] = {"done": columns.pop("terminated"), **columns}
    for key in ("done", "truncated"):
        arrays[key] = arrays[key].astype(np.float32)  # as NeoRL-2 has them
    texts = {
        "format": FORMAT,
        "name": dataset.name,
        "digest": dataset.digest,
        "provenance": json.dumps([list(pair) for pair in dataset.provenance]),
    }
    arrays |= {key: np.asarray(text) for key, text in texts.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as draft, draft.open("wb") as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)
    return path


def refuse_to_overwrite(path: Path, force: bool) -> None:
    """A FileExistsError of one line where something is there already."""
    if path.exists() and not force:
        raise FileExistsError(f"{path} is there already; use --force to replace it")


# Reading -----------------------------------------------------------------------------------------


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an npz file, whatever may be wrong with it put in one line."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: there is no such file")
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not an npz file")
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{path} is not an npz file, or only a part of one; write it by np.savez")
    arrays: dict[str, np.ndarray] = {}
    key = ""
    check_memory(path, _declared(path))
    try:
        with np.load(path, allow_pickle=False) as file:
            for key in file.files:
                arrays[key] = file[key]
    except Exception as error:  # numpy, zipfile and zlib have many words for one thing
        name = one_line(key, 60) or "the file"
        if "allow_pickle" in str(error):
            raise ValueError(
                f"{path}: {name} holds Python objects, which are never unpickled; save it as an "
                "array of numbers"
            ) from None
        reason = one_line(error, 120) or type(error).__name__
        raise ValueError(f"{path}: {name} is damaged ({reason}); take a sound copy") from None
    # A member that is no array comes back as bytes.
    return {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}


def _declared(path: Path) -> int:
    """The bytes that the members of a zip file say they unpack to; no more than that is read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    except Exception as error:
        reason = one_line(error, 120)
        raise ValueError(f"{path} is damaged ({reason}); take a sound copy") from None


def _text(path: Path, stored: Mapping[str, np.ndarray], key: str) -> str:
    if key not in stored:
        return ""
    if stored[key].shape != () or stored[key].dtype.kind != "U":
        raise ValueError(
            f"{path}: {key} must be one text, not {stored[key].dtype} of shape {stored[key].shape}"
        )
    return str(stored[key])


def _provenance(path: Path, stored: Mapping[str, np.ndarray]) -> tuple[tuple[str, str], ...]:
    text = _text(path, stored, "provenance")
    try:
        return tuple((str(name), str(value)) for name, value in json.loads(text or "[]"))
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            f"{path}: provenance must be a JSON list of pairs, not {shown(text)}"
        ) from None


def _apply_index(path: Path, columns: dict[str, np.ndarray], index: np.ndarray) -> list[Defect]:
    """Ends episodes where `index` says that others begin: a log that stops there is truncated."""
    rows = len(columns["reward"]) if columns["reward"].ndim else 0
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise ValueError(f"{path}: index must be whole numbers of shape (episodes,)")
    starts = index.astype(np.int64)
    if len(starts) and (starts.min() < 0 or starts.max() > rows):
        wrong = int(starts[(starts < 0) | (starts > rows)][0])
        raise ValueError(f"{path}: index names row {wrong}; there are rows 0 to {rows - 1}")
    following = np.append(starts[1:], rows)
    empty = [
        Defect("empty_episode", int(row), "index", f"row {row}: episode {i} has no step")
        for i, row in enumerate(starts)
        if following[i] <= row
    ]
    ends = np.unique(starts[starts > 0]) - 1
    flags = columns["truncated"], columns["terminated"]
    if all(flag.shape == (rows,) and flag.dtype.kind in "bifu" for flag in flags):
        truncated = columns["truncated"].copy()
        truncated[ends[columns["terminated"][ends] == 0]] = 1
        columns["truncated"] = truncated
    return empty
