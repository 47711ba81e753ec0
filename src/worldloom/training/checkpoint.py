"""Checkpoints of a whole run with orbax: all of it or none of it.

A checkpoint is written beside its final place and renamed when it is complete, so a killed run
leaves at most an ignored half. Typed keys are stored as their words; arrays of size zero, which
orbax refuses, are left out and made again.
"""

import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.draws import is_key
from worldloom.core.types import PyTree

# What orbax says of arrays with other names; types and shapes are in the names.
_OTHER_ARRAYS = ("Structure mismatch", "structures do not match")


def _words(leaf: Any) -> jax.Array:
    return jax.random.key_data(leaf) if is_key(leaf) else leaf


def _name(path: Any, words: Any) -> str:
    # With type and shape: orbax would cast to the type it is asked for without a word, and find
    # another shape only while it reads, which leaves loose ends that complain on their own.
    return f"{jax.tree_util.keystr(path)} {words.dtype}{list(words.shape)}"


def _to_plain(tree: PyTree) -> dict[str, jax.Array]:
    plain = [(path, _words(leaf)) for path, leaf in jax.tree.leaves_with_path(tree)]
    return {_name(path, words): words for path, words in plain if words.size}


def _from_plain(plain: dict[str, jax.Array], like: PyTree) -> PyTree:
    def restored(path: Any, leaf: Any) -> jax.Array:
        words = jax.eval_shape(_words, leaf)
        value = plain.get(_name(path, words), np.zeros(words.shape, words.dtype))
        # By way of the host: arrays that orbax ties to a device would compile every program anew.
        value = jnp.asarray(np.asarray(value))
        return jax.random.wrap_key_data(value) if is_key(leaf) else value

    return jax.tree_util.tree_map_with_path(restored, like)


@contextmanager
def _loose_ends_tied() -> Iterator[None]:
    """Keeps reads that orbax gave up from complaining, at length, on standard error.

    They end on threads of their own, or when they are collected, after the error that ended the
    restore. That error says what went wrong.
    """
    hook, caught = sys.unraisablehook, []
    sys.unraisablehook = caught.append
    try:
        yield
        for unraisable in caught:  # nothing went wrong: these are somebody else's
            hook(unraisable)
    except ValueError:
        gc.collect()
        time.sleep(0.2)
        raise
    finally:
        sys.unraisablehook = hook


class Checkpoints:
    """The checkpoints in one folder, by iteration; the newest `keep` are kept."""

    def __init__(self, folder: Path, keep: int = 2):
        # Imported here: orbax takes longer to import than a short run takes to train.
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.folder = Path(folder).absolute()
        # One process writes and reads whole arrays: orbax need not wait for any other.
        own = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(
            primary_host=own, active_processes={own}, barrier_sync_key_prefix=f"process {own}"
        )
        options = ocp.CheckpointManagerOptions(
            max_to_keep=keep, create=True, enable_async_checkpointing=False
        )
        if jax.process_count() > 1:
            options.create, options.multiprocessing_options = False, alone
            self.folder.mkdir(parents=True, exist_ok=True)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def latest(self) -> int | None:
        """The iteration of the newest complete checkpoint."""
        return self._manager.latest_step()

    def save(self, iteration: int, run: PyTree) -> None:
        """Writes the run's state, unless this iteration is already there."""
        if iteration == self.latest:
            return
        plain = _to_plain(run)
        if jax.process_count() > 1:  # orbax takes an array on a device for a part of one
            plain = jax.tree.map(np.asarray, plain)
        self._manager.save(iteration, args=self._ocp.args.StandardSave(plain))
        self._manager.wait_until_finished()

    def restore(self, like: PyTree, iteration: int | None = None) -> PyTree:
        """The state saved at `iteration` (the newest by default), with the structure of `like`.

        `like` may hold arrays or `jax.ShapeDtypeStruct`s.
        """
        iteration = self.latest if iteration is None else iteration
        if iteration is None:
            raise ValueError(f"{self.folder} holds no complete checkpoint; train from the start")
        shapes = self._ocp.args.StandardRestore(jax.eval_shape(_to_plain, like))
        with _loose_ends_tied():
            try:
                plain = self._manager.restore(iteration, args=shapes)
            except Exception as error:
                complaint = self._complaint(iteration, error)
            else:
                return _from_plain(dict(plain), like)
            raise ValueError(complaint)  # not from the error, whose frames hold what lingers

    def _complaint(self, iteration: int, error: Exception) -> str:
        """A checkpoint that cannot be read is damaged, unless its arrays are others."""
        path = self.folder / str(iteration)
        if any(words in str(error) for words in _OTHER_ARRAYS):
            return (
                f"{path} is a checkpoint of another configuration: its arrays are not those of "
                "this run; use the settings it was trained with"
            )
        return (
            f"{path} is damaged ({type(error).__name__}); "
            "delete it to go on from an earlier one, or train from the start"
        )

    def close(self) -> None:
        self._manager.close()
