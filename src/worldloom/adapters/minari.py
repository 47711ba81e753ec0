"""Datasets from and to Minari's HDF5 format, written and read by Minari itself.

Minari keeps datasets below the folder that MINARI_DATASETS_PATH names, by ids such as
``reactor/expert-v0``. An episode of T steps has T + 1 observations there, so the next observation
of a step must be the observation of the next one. The cost of each limit is in ``infos["cost"]``
(T + 1, C), their sum in ``infos["total_cost"]`` (T + 1,), and the log-probability of actions in
``infos["log_prob"]``; the first entry of each belongs to the reset and is 0.
"""

import json
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from worldloom.core.files import replace_folder
from worldloom.replay.dataset import Dataset
from worldloom.replay.dataset_checks import Defect, columns_of, lost_link
from worldloom.replay.dataset_files import Logged, refuse_to_overwrite

_ROOT = "MINARI_DATASETS_PATH"
_OWN = "worldloom"  # the key of what we add to a dataset's metadata


def load(source: str | Path, root: str | Path | None = None) -> Dataset:
    """The dataset of that id or in that folder; a ValueError of one line if it is of no use."""
    return read_minari(source, root).dataset()


def read_minari(source: str | Path, root: str | Path | None = None) -> Logged:
    """A Minari dataset's columns. Actions of another finite box are scaled to [-1, 1].

    Args:
        source: a dataset's id, or the folder it is in.
        root: where ids are looked for; by default the folder that MINARI_DATASETS_PATH names.
    """
    minari = _minari()
    folder = find(source, root)
    if folder is None:
        raise ValueError(
            f"{source}: there is no Minari dataset of that id in {_root(root)}, nor such a folder"
        )
    try:
        stored = minari.MinariDataset(folder)
        metadata = stored.storage.metadata
        episodes = list(stored.iterate_episodes())
    except (OSError, KeyError, ValueError, AssertionError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{folder} is not a Minari dataset that can be read: {reason}") from None
    _box(folder, "observation", stored.observation_space)
    low, high = _box(folder, "action", stored.action_space)
    own = metadata.get(_OWN)
    own = json.loads(own) if isinstance(own, str) else {}
    columns, defects = _columns(folder, episodes)
    provenance = [(str(name), str(value)) for name, value in own.get("provenance", [])]
    if not own:
        provenance.append(("minari", stored.id))
        finite = np.isfinite(low).all() and np.isfinite(high).all()
        if finite and not ((low == -1.0).all() and (high == 1.0).all()):
            columns["action"] = 2.0 * (columns["action"] - low) / (high - low) - 1.0
            provenance.append(("actions", f"scaled from {low.tolist()} to {high.tolist()}"))
    return Logged(
        folder,
        columns,
        name=own.get("name", stored.id),
        provenance=tuple(provenance),
        digest=own.get("digest", ""),
        defects=tuple(defects),
    )


def save(
    dataset: Dataset,
    dataset_id: str,
    root: str | Path | None = None,
    *,
    env: str | None = None,
    author: str = "",
    email: str = "",
    description: str = "",
    force: bool = False,
) -> Path:
    """Writes a Minari dataset whole or not at all, and returns its folder.

    Args:
        dataset_id: such as ``reactor/expert-v0``; the version is needed.
        root: where it goes; by default the folder that MINARI_DATASETS_PATH names.
        env: id of the Gymnasium environment that `recover_environment` makes again; none by
            default, as observations are in physical units here and normalised there.
        force: replace a dataset that is there.
    """
    minari = _minari()
    from gymnasium.spaces import Box

    base = _root(root)
    target = base / dataset_id
    refuse_to_overwrite(target, force)
    broken = lost_link(columns_of(dataset))
    if broken is not None:
        raise ValueError(
            f"{dataset_id}: row {broken}: its next observation is not that of the next row; Minari "
            "keeps one for both, use npz"
        )
    width, moves = dataset.rows.obs.shape[1], dataset.rows.action.shape[1]
    base.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".worldloom-", dir=base) as draft:
        with _datasets_path(draft), warnings.catch_warnings():
            # Minari asks for links, authors and environments that a dataset need not have.
            warnings.simplefilter("ignore", UserWarning)
            made = minari.create_dataset_from_buffers(
                dataset_id,
                _buffers(dataset),
                env=env,
                author=author or None,
                author_email=email or None,
                description=description or None,
                data_format="hdf5",
                observation_space=Box(-np.inf, np.inf, (width,), np.float32),
                action_space=Box(-1.0, 1.0, (moves,), np.float32),
            )
            own = {"name": dataset.name, "digest": dataset.digest, "provenance": dataset.provenance}
            made.storage.update_metadata({_OWN: json.dumps(own)})
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_folder(Path(draft) / dataset_id, target)
    return target


def find(source: str | Path, root: str | Path | None = None) -> Path | None:
    """The folder with a dataset's metadata, of a folder or an id; None where there is none."""
    for folder in (Path(source), _root(root) / str(source)):
        for place in (folder, folder / "data"):
            if (place / "metadata.json").is_file():
                return place
    return None


# Minari ------------------------------------------------------------------------------------------


def _minari() -> Any:
    try:
        import h5py  # noqa: F401
        import minari
    except ImportError as error:
        raise ImportError(
            f"worldloom.adapters.minari needs minari with HDF5 ({error.name} is missing); "
            "pip install 'worldloom[plant]'"
        ) from error
    return minari


def _root(root: str | Path | None) -> Path:
    """Minari's own rule, unless a folder is given."""
    given = root or os.environ.get(_ROOT)
    return Path(given) if given else Path.home() / ".minari" / "datasets"


@contextmanager
def _datasets_path(folder: str) -> Iterator[None]:
    """Minari takes its folder from the environment alone."""
    before = os.environ.get(_ROOT)
    os.environ[_ROOT] = folder
    try:
        yield
    finally:
        if before is None:
            del os.environ[_ROOT]
        else:
            os.environ[_ROOT] = before


def _box(folder: Path, what: str, space: Any) -> tuple[np.ndarray, np.ndarray]:
    from gymnasium.spaces import Box

    if not isinstance(space, Box) or len(space.shape) != 1:
        raise ValueError(
            f"{folder}: the {what} space is {space}; only boxes of one axis can be read, flatten it"
        )
    return space.low, space.high


# Episodes ----------------------------------------------------------------------------------------


def _buffers(dataset: Dataset) -> list[Any]:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    columns = columns_of(dataset)
    starts = np.append(np.asarray(dataset.starts), dataset.size)
    infos = {name: columns[name] for name in ("cost", "log_prob") if name in columns}
    if "cost" in columns:
        infos["total_cost"] = columns["cost"].sum(1)
    build: Any = EpisodeBuffer  # its fields are declared as lists; arrays are what HDF5 wants

    def episode(first: int, stop: int) -> Any:
        rows = {name: column[first:stop] for name, column in columns.items()}
        return build(
            observations=np.concatenate([rows["obs"], rows["next_obs"][-1:]]),
            actions=rows["action"],
            rewards=rows["reward"],
            terminations=rows["terminated"],
            truncations=rows["truncated"],
            infos={
                name: np.concatenate([np.zeros_like(value[:1]), value[first:stop]])
                for name, value in infos.items()
            }
            or None,
        )

    return [episode(*ends) for ends in pairwise(starts.tolist())]


def _columns(folder: Path, episodes: list[Any]) -> tuple[dict[str, np.ndarray], list[Defect]]:
    """The columns of all episodes, and those that are empty."""
    parts: dict[str, list[np.ndarray]] = {}
    defects: list[Defect] = []
    rows = 0
    for number, episode in enumerate(episodes):
        steps = len(episode.rewards)
        if steps == 0:
            message = f"row {rows}: episode {episode.id} has no step"
            defects.append(Defect("empty_episode", rows, "episode", message))
            continue
        obs = np.asarray(episode.observations)
        if len(obs) != steps + 1:
            raise ValueError(
                f"{folder}: episode {episode.id} has {len(obs)} observations for {steps} steps; "
                f"it must have {steps + 1}"
            )
        truncated = np.asarray(episode.truncations).astype(bool)
        terminated = np.asarray(episode.terminations).astype(bool)
        if number < len(episodes) - 1 and not (truncated[-1] or terminated[-1]):
            truncated[-1] = True  # another one begins: the log stops here
        of_episode = {
            "obs": obs[:-1],
            "action": np.asarray(episode.actions)[:steps],
            "reward": np.asarray(episode.rewards),
            "next_obs": obs[1:],
            "terminated": terminated,
            "truncated": truncated,
        }
        infos = episode.infos if isinstance(episode.infos, dict) else {}
        for name in ("cost", "log_prob"):
            if name in infos:  # one for the reset, as Minari has it, or none
                of_episode[name] = np.asarray(infos[name])[-steps:]
        for name, value in of_episode.items():
            parts.setdefault(name, []).append(value)
        rows += steps
    if not rows:
        raise ValueError(f"{folder}: none of its {len(episodes)} episodes has a step")
    incomplete = [name for name, listed in parts.items() if sum(map(len, listed)) != rows]
    if incomplete:
        raise ValueError(f"{folder}: only some episodes have infos[{incomplete[0]!r}]")
    columns = {name: np.concatenate(listed) for name, listed in parts.items()}
    if "cost" in columns and columns["cost"].ndim == 1:
        columns["cost"] = columns["cost"][:, None]
    return columns, defects
