"""Checkpoints of a whole run with orbax: all of it, as it was, or none of it.

A checkpoint is written beside its final place and renamed when it is complete, so a killed run
leaves at most an ignored half. It holds a sha256 of its arrays, which is checked whenever it is
read: one that is damaged is passed over for the one before it. Typed keys are stored as their
words; arrays of size zero, which orbax refuses, are left out and made again.
"""

import errno
import gc
import hashlib
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.draws import is_key
from worldloom.core.files import damaged_name, sync
from worldloom.core.types import PyTree

_DIGEST = "sha256"  # the name under which a checkpoint holds it, beside the arrays


def _words(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _name(path: Any, words: Any) -> str:
    # With type and shape: orbax would cast to the type it is asked for without a word, and find
    # another shape only while it reads, which leaves loose ends that complain on their own.
    return f"{jax.tree_util.keystr(path)} {words.dtype}{list(words.shape)}"


def _to_plain(tree: PyTree) -> dict[str, jax.Array]:
    plain = [(path, _words(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]
    return {_name(path, words): words for path, words in plain if words.size}


def _digest(plain: Mapping[str, np.ndarray]) -> np.ndarray:
    """A sha256 of names, types, shapes and bytes."""
    sha = hashlib.sha256()
    for name, value in sorted(plain.items()):
        sha.update(f"{name} {value.dtype}{value.shape}".encode())
        sha.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return np.frombuffer(sha.digest(), np.uint8)


def _from_plain(plain: Mapping[str, np.ndarray], like: PyTree) -> PyTree:
    def restored(path: Any, leaf: Any) -> jax.Array:
        words = jax.eval_shape(_words, leaf)
        value = plain.get(_name(path, words), np.zeros(words.shape, words.dtype))
        # By way of the host: arrays that orbax ties to a device would compile every program anew.
        value = jnp.asarray(value)
        return jax.random.wrap_key_data(value) if is_key(leaf) else value

    return jax.tree_util.tree_map_with_path(restored, like)


@contextmanager
def _loose_ends_tied() -> Iterator[None]:
    """Keeps what orbax gave up from complaining, at length, on standard error.

    Reads and writes end on threads of their own, or when they are collected, after the error that
    ended the whole. That error says what went wrong.
    """
    logger, hooks, caught = logging.getLogger("absl"), (sys.unraisablehook, sys.excepthook), []
    logger.disabled = True
    sys.unraisablehook, sys.excepthook = caught.append, lambda *_: None
    try:
        yield
        for unraisable in caught:  # nothing went wrong: these are somebody else's
            hooks[0](unraisable)
    except (ValueError, OSError):
        gc.collect()
        time.sleep(0.2)
        raise
    finally:
        sys.unraisablehook, sys.excepthook = hooks
        logger.disabled = False


class Checkpoints:
    """The checkpoints in one folder, by iteration; the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int = 2):
        # Imported here: orbax takes longer to import than a short run takes to train.
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.folder = Path(folder).absolute()
        # One process writes and reads whole arrays: orbax need not wait for any other.
        own, alone = jax.process_index(), ocp.options.MultiprocessingOptions()
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=False
        )
        if jax.process_count() > 1:
            alone = ocp.options.MultiprocessingOptions(
                primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process {own}"
            )
            options.create, options.multiprocessing_options = False, alone
            self.folder.mkdir(parents=True, exist_ok=True)
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        self._manager = ocp.CheckpointManager(self.folder, options=options, item_handlers=handler)

    @property
    def latest(self) -> int | None:
        """The iteration of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(self, iteration: int, run: PyTree) -> None:
        """Writes the run's state, unless this iteration is already there.

        An OSError means that nothing was written, and that what was there still is.
        """
        if iteration == self.latest:
            return
        # In numpy: orbax would store with an array on a device which device that was.
        plain = {name: np.asarray(words) for name, words in _to_plain(run).items()}
        arguments = self._ocp.args.StandardSave(plain | {_DIGEST: _digest(plain)})
        path = self.folder / str(iteration)
        with _loose_ends_tied():
            try:
                self._manager.save(iteration, args=arguments)
                self._manager.wait_until_finished()
                for written in [*path.rglob("*"), path, self.folder]:
                    sync(written)
            except Exception as error:
                number = re.search(r"os_error_code='(\d+)'", str(error))  # as tensorstore tells it
                if number is None and not isinstance(error, OSError):
                    raise
                number = int(number[1]) if number else getattr(error, "errno", None) or errno.EIO
            else:
                return
            # Not from the error, whose text fills a screen, and whose frames hold what lingers.
            raise OSError(number, f"{os.strerror(number)}: {path}")

    def restore(self, like: PyTree, iteration: int | None = None) -> PyTree:
        """The state saved at `iteration` (the newest sound one by default), as `like` is built.

        `like` may hold arrays or `jax.ShapeDtypeStruct`s. Newer ones that are damaged are named on
        standard error.
        """
        newest_first = sorted(self._manager.all_steps(), reverse=True)
        complaints = []
        for step in newest_first if iteration is None else [iteration]:
            try:
                state = self._read(step, like)
            except ValueError as error:
                complaints.append(str(error))
                continue
            for complaint in complaints:
                print(f"{complaint}; the one before it is used", file=sys.stderr)
            return state
        if not complaints:
            raise ValueError(f"{self.folder} holds no complete checkpoint; train from the start")
        # Of a run with other settings all are sound, and all are others.
        others = [text for text in complaints if "is damaged" not in text]
        if others:
            raise ValueError(f"{others[0]}; use the settings it was trained with")
        none = f", and so are {len(complaints) - 1} before it" if len(complaints) > 1 else ""
        raise ValueError(f"{complaints[0]}{none}; copy it from elsewhere, or train from the start")

    def _read(self, iteration: int, like: PyTree) -> PyTree:
        """A state as it was saved; a ValueError if it is damaged, or has other arrays."""
        path = self.folder / str(iteration)
        with _loose_ends_tied():
            try:
                shapes: Any = self._manager.item_metadata(iteration)
                shapes = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in shapes.items()}
                arguments = self._ocp.args.StandardRestore(shapes)
                stored = dict(self._manager.restore(iteration, args=arguments))
                plain = {name: np.asarray(value) for name, value in stored.items()}
            except (MemoryError, PermissionError):  # of this machine, and not of the checkpoint
                raise
            except Exception as error:
                complaint = f"{path} is damaged ({type(error).__name__})"
            else:
                complaint = None
            if complaint:  # not from the error, whose frames hold what lingers
                raise ValueError(complaint)
        digest = plain.pop(_DIGEST, None)
        if digest is not None and not np.array_equal(digest, _digest(plain)):
            raise ValueError(f"{path} is damaged (its sha256 is another)")
        if plain.keys() != jax.eval_shape(_to_plain, like).keys():
            raise ValueError(
                f"{path} is a checkpoint of another configuration: its arrays are not those of "
                "this run"
            )
        if digest is None:
            print(f"{path} was written without a sha256: damage would not show", file=sys.stderr)
        return _from_plain(plain, like)

    def forget_after(self, iteration: int) -> None:
        """Makes `iteration` the newest: later ones get other names, what was cut short is removed.

        For the one process that writes here.
        """
        for step in self._manager.all_steps():
            if step > iteration:
                path = self.folder / str(step)
                path.rename(damaged_name(path))
        for half in self.folder.glob("*.orbax-checkpoint-tmp*"):
            shutil.rmtree(half, ignore_errors=True)
        self._manager.reload()

    def close(self) -> None:
        self._manager.close()
