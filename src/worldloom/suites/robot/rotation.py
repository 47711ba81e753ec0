"""Quaternions w x y z, over either array library."""

from typing import Any

from worldloom.suites.robot.types import Array


def into_frame(xp: Any, quaternion: Array, vector: Array) -> Array:
    """A vector (..., 3) of the world, seen from a frame that is turned by `quaternion` (..., 4)."""
    w, axis = quaternion[..., :1], -quaternion[..., 1:]
    across = 2.0 * xp.cross(axis, vector)
    return vector + w * across + xp.cross(axis, across)


def yaw(xp: Any, quaternion: Array) -> Array:
    """The angle (...) about the vertical."""
    w, x, y, z = (quaternion[..., i] for i in range(4))
    return xp.arctan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))
