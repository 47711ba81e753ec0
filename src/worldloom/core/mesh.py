"""Devices: lay a batch axis over a mesh, copy parameters to all of it."""

import jax
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
            f"device_mesh: num_devices={count}, but this process sees {len(devices)} "
            f"{devices[0].platform} device(s); ask for 1 to {len(devices)}"
        )
    return Mesh(np.asarray(devices[:count]), (BATCH_AXIS,))


def shard_leading(tree: PyTree, mesh: Mesh) -> PyTree:
    """Every leaf split over the mesh along its first axis."""
    count = mesh.devices.size
    for leaf in jax.tree.leaves(tree):
        if leaf.ndim == 0 or leaf.shape[0] % count:
            raise ValueError(
                f"shard_leading: a leaf of shape {leaf.shape} does not split over {count} "
                "devices; its first axis must be a multiple of their number"
            )
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(BATCH_AXIS)))


def replicate(tree: PyTree, mesh: Mesh) -> PyTree:
    """Every leaf copied to every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
