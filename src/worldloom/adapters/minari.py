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

import worldloom
from worldloom.core.files import check_memory, read_json, replace_folder
from worldloom.core.names import one_line, shown
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
    _check_declared(folder)
    try:
        stored = minari.MinariDataset(folder)
        metadata = stored.storage.metadata
        episodes = list(stored.iterate_episodes())
    except Exception as error:  # whatever Minari, Gymnasium and HDF5 make of what is not theirs
        raise _unreadable(folder, error) from None
    _box(folder, "observation", stored.observation_space)
    low, high = _box(folder, "action", stored.action_space)
    name, digest, provenance = _own_words(folder, metadata.get(_OWN))
    columns, defects = _columns(folder, episodes)
    if not name:
        provenance.append(("minari", stored.id))
        finite = np.isfinite(low).all() and np.isfinite(high).all()
        if finite and not ((low == -1.0).all() and (high == 1.0).all()):
            if columns["action"].shape[1:] != low.shape or not (low < high).all():
                raise ValueError(f"{folder}: its actions do not fit the box of its action space")
            columns["action"] = 2.0 * (columns["action"] - low) / (high - low) - 1.0
            provenance.append(("actions", f"scaled from {low.tolist()} to {high.tolist()}"))
    return Logged(
        folder,
        columns,
        name=name or stored.id,
        provenance=tuple(provenance),
        digest=digest,
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
        env: id of the Gymnasium environment that `recover_environment` makes again; by default the
            world that was logged, if it is known by name, with the observations as they are here:
            in physical units.
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
                env=env or _env_spec(dataset),
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


def _env_spec(dataset: Dataset) -> Any:
    """What makes the world that was logged again; None where no world is known to fit the data."""
    origin = dict(dataset.provenance)
    if origin.get("env") not in worldloom.worlds():
        return None
    from gymnasium.envs.registration import EnvSpec

    from worldloom.adapters.gymnasium import gym_name, make_env

    try:
        options = json.loads(origin.get("options") or "{}")
        space = worldloom.make(origin["env"], **options).spec.observation
    except (ValueError, TypeError):  # written by another version, or by hand
        return None
    if getattr(space, "shape", None) != dataset.rows.obs.shape[1:]:
        return None
    return EnvSpec(
        gym_name(origin["env"]),
        entry_point=f"{make_env.__module__}:{make_env.__name__}",
        kwargs={"world": origin["env"], "physical_units": True, **options},
    )


# What files say of themselves --------------------------------------------------------------------

_MOST_PACKED = 2000  # bytes that one byte of a file may stand for; deflate comes to 1,032
_MOST_NESTED = 8


def _check_declared(folder: Path) -> None:
    """Raises ValueError unless the files hold what they declare, before Minari believes them."""
    import h5py

    about = read_json(folder / "metadata.json")
    kinds = {"observation_space": str, "action_space": str, "total_episodes": int}
    for name, kind in kinds.items():  # without spaces Minari would run what `env_spec` names
        value = about.get(name) if isinstance(about, dict) else None
        if not isinstance(value, kind) or isinstance(value, bool):
            words = f"{name} is {shown(value)} in metadata.json"
            raise ValueError(f"{folder} is not a Minari dataset that can be read: {words}")
    if about.get("data_format") != "hdf5":
        raise ValueError(
            f"{folder}: its format is {shown(about.get('data_format'))}; only hdf5 is read"
        )
    path = folder / "main_data.hdf5"
    try:
        with h5py.File(path, "r") as file:
            episodes, total = len(file), _declared_bytes(file)
    except Exception as error:
        raise _unreadable(folder, error) from None
    if not 0 <= about["total_episodes"] <= episodes:
        raise ValueError(
            f"{folder}: metadata.json speaks of {shown(about['total_episodes'])} episodes, the "
            f"file has {episodes}; take a sound copy"
        )
    check_memory(path, total)


def _declared_bytes(group: Any, depth: int = 0) -> int:
    """What the arrays below a group come to in memory."""
    import h5py

    total = 0
    for name in group:
        item = group[name] if isinstance(group.get(name, getlink=True), h5py.HardLink) else None
        if isinstance(item, h5py.Group) and depth < _MOST_NESTED:
            total += _declared_bytes(item, depth + 1)
        elif not isinstance(item, h5py.Dataset) or item.external:
            raise ValueError(f"{one_line(name, 60)} is a link, or nested too deeply")
        elif item.nbytes > _MOST_PACKED * item.id.get_storage_size():
            raise ValueError(f"{item.name} declares {item.nbytes:,} bytes that are not in the file")
        else:
            total += item.nbytes
    return total


def _unreadable(folder: Path, error: Exception) -> ValueError:
    reason = one_line(error, 150) or type(error).__name__
    return ValueError(f"{folder} is not a Minari dataset that can be read: {reason}")


def _own_words(folder: Path, text: Any) -> tuple[str, str, list[tuple[str, str]]]:
    """Name, digest and provenance that `save` has written down; empty of data that others wrote."""
    if text is None:
        return "", "", []
    try:
        own = json.loads(text)
        origin = [(str(name), str(value)) for name, value in own["provenance"]]
        name, digest = own["name"], own["digest"]
    except (ValueError, TypeError, KeyError, RecursionError):
        name = digest = None
    if not isinstance(name, str) or not isinstance(digest, str):
        raise ValueError(f"{folder}: {_OWN} in metadata.json is damaged; take a sound copy")
    return name or folder.parent.name, digest, origin


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
        listed = ("observations", "actions", "rewards", "terminations", "truncations")
        arrays = {name: np.asarray(getattr(episode, name)) for name in listed}
        flat = next((name for name, array in arrays.items() if not array.ndim), None)
        if flat is not None or any(array.dtype.kind not in "bifu" for array in arrays.values()):
            raise ValueError(f"{folder}: episode {number} does not hold numbers of each step")
        steps = len(arrays["rewards"])
        if steps == 0:
            message = f"row {rows}: episode {episode.id} has no step"
            defects.append(Defect("empty_episode", rows, "episode", message))
            continue
        obs = arrays["observations"]
        if len(obs) != steps + 1:
            raise ValueError(
                f"{folder}: episode {episode.id} has {len(obs)} observations for {steps} steps; "
                f"it must have {steps + 1}"
            )
        for name in listed[1:]:
            count = len(arrays[name]) if name == "actions" else arrays[name].size
            if count != steps:
                raise ValueError(f"{folder}: episode {number} has {count} {name} for {steps} steps")
        truncated, terminated = (
            arrays[name].reshape(steps).astype(bool) for name in ("truncations", "terminations")
        )
        if number < len(episodes) - 1 and not (truncated[-1] or terminated[-1]):
            truncated[-1] = True  # another one begins: the log stops here
        of_episode = {
            "obs": obs[:-1],
            "action": arrays["actions"],
            "reward": arrays["rewards"].reshape(steps),
            "next_obs": obs[1:],
            "terminated": terminated,
            "truncated": truncated,
        }
        infos = episode.infos if isinstance(episode.infos, dict) else {}
        for name in ("cost", "log_prob"):
            if name in infos:  # one for the reset, as Minari has it, or none
                of_episode[name] = np.atleast_1d(infos[name])[-steps:]
        for name, value in of_episode.items():
            parts.setdefault(name, []).append(value)
        rows += steps
    if not rows:
        raise ValueError(f"{folder}: none of its {len(episodes)} episodes has a step")
    incomplete = [name for name, listed in parts.items() if sum(map(len, listed)) != rows]
    if incomplete:
        raise ValueError(f"{folder}: only some episodes have infos[{incomplete[0]!r}]")
    for name, listed in parts.items():
        if len({part.shape[1:] for part in listed}) > 1:
            raise ValueError(f"{folder}: episodes differ in the shape of their {name}")
    columns = {name: np.concatenate(listed) for name, listed in parts.items()}
    if "cost" in columns and columns["cost"].ndim == 1:
        columns["cost"] = columns["cost"][:, None]
    return columns, defects
