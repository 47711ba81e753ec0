"""Devices: lay a batch axis over a mesh, copy parameters to all of it."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from worldloom.core.types import PyTree

BATCH_AXIS = "batch"


def device_mesh(num_devices: int | None = None) -> Mesh:
    """A one-dimensional mesh over the first `num_devices` devices (all of them by default)."""
    devices = jax.devices()
    count = len(devices) if num_devices is None else num_devices
    if not 1 <= count <= len(devices):
        raise ValueError(
            f"device_mesh: num_devices={count}, but there are {len(devices)} "
            f"{devices[0].platform} device(s); ask for 1 to {len(devices)}"
        )
    return Mesh(np.asarray(devices[:count]), (BATCH_AXIS,))


def shard_leading(tree: PyTree, mesh: Mesh) -> PyTree:
    """Every leaf split over the mesh along its first axis."""
    count = mesh.devices.size
    for path, leaf in jax.tree.leaves_with_path(tree):
        shape = jnp.shape(leaf)
        if not shape or shape[0] % count:
            raise ValueError(
                f"shard_leading: leaf {jax.tree_util.keystr(path)!r} of shape {shape} does not "
                f"split over {count} devices; its first axis must be a multiple of that"
            )
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(BATCH_AXIS)))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Every leaf copied to every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
