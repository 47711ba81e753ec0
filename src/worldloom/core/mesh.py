"""Devices and processes: lay a batch axis over a mesh, copy parameters to all of it.

Several processes are one program on the devices of all: each runs the same Python on the same
inputs, holds its own part of what is spread, and writes nothing unless it leads.
"""

import os
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldloom.core.draws import is_key
from worldloom.core.types import PyTree

BATCH_AXIS = "batch"


def device_mesh(num_devices: int | None = None) -> Mesh:
    """A one-dimensional mesh over the first `num_devices` devices (all of them by default)."""
    devices = jax.devices()
    count = len(devices) if num_devices is None else num_devices
    if not 1 <= count <= len(devices):
        platform, cores = devices[0].platform, os.cpu_count() or 1
        more = ""
        if platform == "cpu" and cores > len(devices):
            more = f", or for up to {cores} with `worldloom train --devices`: one for each core"
        raise ValueError(
            f"device_mesh: num_devices={count}, but there are {len(devices)} "
            f"{platform} device(s); ask for 1 to {len(devices)}{more}"
        )
    return Mesh(np.asarray(devices[:count]), (BATCH_AXIS,))


def split_processor(num_devices: int) -> None:
    """Makes one processor `num_devices` devices, if it has as many cores; before JAX uses any.

    XLA's pool has a thread for each core, in which every device's program runs and waits for work
    that it hands to the same pool. With a device for each core all may wait for ever (seen with
    MJX, and with callbacks that are given more than 100 KiB), so the pool is made larger.
    """
    cores = os.cpu_count() or 1
    if num_devices > cores:
        return
    os.environ.setdefault("NPROC", str(cores + num_devices))
    with suppress(RuntimeError):  # JAX has started: what there is must do
        jax.config.update("jax_num_cpu_devices", num_devices)


def share_of(count: int, what: str, mesh: Mesh | None) -> int:
    """How many of `count` each device of a mesh has; `what` they are, for the refusal."""
    devices = 1 if mesh is None else mesh.devices.size
    if count % devices:
        raise ValueError(
            f"{what}={count} cannot be shared by {devices} devices; use a multiple of that"
        )
    return count // devices


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Every leaf copied to every device of the mesh."""
    return place(tree, mesh, PartitionSpec())


def place(tree: PyTree, mesh: Mesh, spec: PyTree) -> PyTree:
    """The tree laid over the mesh as `spec`, a prefix of it, says.

    Where there are several processes, each has the whole tree to begin with.
    """
    is_part = {"is_leaf": lambda x: isinstance(x, PartitionSpec)}
    parts = jax.tree.broadcast(spec, tree, **is_part)
    where = jax.tree.map(lambda part: NamedSharding(mesh, part), parts, **is_part)
    if jax.process_count() == 1:
        return jax.device_put(tree, where)

    def put(leaf: Any, place: NamedSharding) -> Any:  # by way of the host: it is not on the others
        if is_key(leaf):
            words = jax.device_put(np.asarray(jax.random.key_data(leaf)), place)
            return jax.random.wrap_key_data(words)
        return jax.device_put(np.asarray(leaf), place)

    return jax.tree.map(put, tree, where)


# Processes -------------------------------------------------------------------------------------

# The number of processes, by schedulers that jax then asks for the rest, and what else they set in
# those that they started together. Slurm tells the number in a job's script too, which is alone.
SCHEDULERS = {
    "SLURM_NTASKS": "SLURM_STEP_NODELIST",
    "OMPI_COMM_WORLD_SIZE": "OMPI_COMM_WORLD_RANK",
}
# The three arguments of `join`, for those who start the processes themselves. jax reads the first
# of them alone, and that also where Slurm tells the others.
VARIABLES = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")


def join(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> bool:
    """Makes this process one of several that compute together; whether there are any others.

    Before anything else uses a device. Without arguments, variables of the environment decide:
    `VARIABLES`, or those of a scheduler.
    """
    if coordinator is None and num_processes is None and process_id is None:
        coordinator, num_processes, process_id = _from_variables()
        if num_processes == 1 or (num_processes is None and not _scheduled()):
            return False
    elif coordinator is None or num_processes is None or process_id is None:
        raise ValueError(
            f"coordinator={coordinator}, num_processes={num_processes}, process_id={process_id}: "
            "several processes need all three, or a scheduler that tells them"
        )
    if num_processes is not None and not 0 <= (process_id or 0) < num_processes:
        raise ValueError(
            f"process_id={process_id} of num_processes={num_processes}; they are counted from 0"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(coordinator, num_processes, process_id)
    return True


def _from_variables() -> tuple[str, int, int] | tuple[None, None, None]:
    """What `VARIABLES` say; nothing where they leave processes to a scheduler, or to nobody."""
    address, count, place = (os.environ.get(name) for name in VARIABLES)
    if count is None and place is None:
        return None, None, None
    if address and count and place and count.isdigit() and place.isdigit():
        return address, int(count), int(place)
    given = f"{VARIABLES[0]}={address}, {VARIABLES[1]}={count}, {VARIABLES[2]}={place}"
    raise ValueError(f"{given}: set all three, the last two to numbers, or neither of these two")


def _scheduled() -> bool:
    """Whether a scheduler started this process together with others."""
    sizes = [os.environ.get(size, "") for size, mark in SCHEDULERS.items() if mark in os.environ]
    return any(size.isdigit() and int(size) > 1 for size in sizes)


def leads() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return jax.process_index() == 0


def agreed(flag: bool) -> bool:
    """The leader's flag, in every process; all must ask at the same time."""
    if jax.process_count() == 1:
        return flag
    from jax.experimental import multihost_utils

    return bool(multihost_utils.broadcast_one_to_all(np.asarray(flag)))


def to_host(tree: PyTree) -> PyTree:
    """The whole of every leaf that lies on several devices or processes, in numpy (keys as keys).

    All processes must ask for it at the same time.
    """

    def whole(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or len(leaf.sharding.device_set) == 1:
            return leaf
        if is_key(leaf):
            return jax.random.wrap_key_data(jnp.asarray(np.asarray(jax.random.key_data(leaf))))
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(whole, tree)
