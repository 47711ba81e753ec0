"""Scripted controllers of three qualities, as logged data come from."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.names import suggest
from worldloom.core.types import Array, Key
from worldloom.suites.plant.plant import PlantWorld

Quality = Literal["expert", "medium", "random"]
QUALITIES: tuple[Quality, ...] = get_args(Quality)


class Tuning(struct.PyTreeNode):
    """How well loops are tuned; numbers, so that worlds of a batch may differ in them."""

    gain: Any  # a factor on the gains of the plant's loops
    noise: Any  # of what is added to actions, beside their distance to the nearest end
    uniform: Any  # whether actions are drawn from all of [-1, 1] instead


# A plant on which half of the gain costs next to nothing has a `medium_tuning` of its own.
TUNINGS: dict[Quality, Tuning] = {
    "expert": Tuning(1.0, 0.03, False),
    "medium": Tuning(0.5, 0.3, False),
    "random": Tuning(0.0, 1.0, True),
}
TUNED = Tuning(1.0, 1e-3, False)  # the loops by themselves, with a noise that nobody would see
SMALLEST_ROOM = 2e-3  # for noise, at the ends themselves


class Memory(struct.PyTreeNode):
    """What L loops remember: sums of errors (L,), and the last errors (L,)."""

    integral: Array
    last: Array
    begun: Array  # bool ()


class Controller(NamedTuple):
    """`act(tuning, key, memory, obs)` gives the action (m,), its log-density () and a new memory.

    The density is the one that the action, as it is returned, has in [-1, 1]^m at this point of
    the controller's episode. A fifth argument (L,) takes the place of the loops' own set points.
    """

    init: Callable[[], Memory]
    act: Callable[..., tuple[Array, Array, Memory]]


def loops_of(world: PlantWorld) -> Controller:
    """The plant's loops as a controller, tuned as well as every call says."""
    plant, loops = world.plant, world.plant.loops
    signals = {signal.name: i for i, signal in enumerate(plant.observation)}
    actuators = {signal.name: i for i, signal in enumerate(plant.action)}
    for loop in loops:
        setpoint = loop.setpoint if isinstance(loop.setpoint, str) else loop.signal
        named = ((loop.actuator, actuators), (loop.signal, signals), (setpoint, signals))
        for name, known in named:
            if name not in known:
                raise ValueError(f"{plant.name}: a loop names {name!r}; {suggest(name, known)}")
    size, count = len(plant.action), len(loops)
    ranges = [(signal.high - signal.low) for signal in plant.observation]
    measured = np.asarray([signals[loop.signal] for loop in loops], np.int32)
    spans = np.asarray([ranges[i] for i in measured], np.float32)
    # (m, L): which loops move which actuator. An action spans 2, from -1 to 1, and gains are
    # shares of the whole range.
    moves = np.zeros((size, count), np.float32)
    bias = np.zeros(size, np.float32)
    for i, loop in enumerate(loops):
        moves[actuators[loop.actuator], i] = 2.0
        bias[actuators[loop.actuator]] += loop.bias
    gains = [(loop.proportional, loop.integral, loop.derivative) for loop in loops]
    gains = np.asarray(gains, np.float32).reshape(count, 3)
    follows = np.asarray([isinstance(loop.setpoint, str) for loop in loops], bool)
    points = [signals.get(str(loop.setpoint), 0) for loop in loops]  # 0 where it is a number
    fixed = [0.0 if isinstance(loop.setpoint, str) else loop.setpoint for loop in loops]
    points, fixed = np.asarray(points, np.int32), np.asarray(fixed, np.float32)

    def init() -> Memory:
        zeros = jnp.zeros(count, jnp.float32)
        return Memory(zeros, zeros, jnp.asarray(False))

    def act(
        tuning: Tuning, key: Key, memory: Memory, obs: Array, setpoints: Any = fixed
    ) -> tuple[Array, Array, Memory]:
        error = (jnp.where(follows, obs[points], setpoints) - obs[measured]) / spans
        integral = memory.integral + error
        change = jnp.where(memory.begun, error - memory.last, 0.0)
        pushed = tuning.gain * (gains[:, 0] * error + gains[:, 1] * integral + gains[:, 2] * change)
        mean = moves @ pushed + bias
        # Sums do not grow while the actuator is at its end: there is nothing to wind up.
        over = jnp.where(jnp.abs(mean) > 1.0, mean, 0.0) @ moves
        integral = jnp.where(gains[:, 1] * error * over > 0.0, memory.integral, integral)
        action, density = _draw(key, jnp.clip(mean, -1.0, 1.0), tuning)
        return action, density, Memory(integral, error, jnp.asarray(True))

    return Controller(init, act)


def without_memory(world: PlantWorld) -> Callable[[Array], Array]:
    """The plant's loops as far as they need no memory: obs (n,) -> action (m,), proportional."""
    plant = world.plant
    loops_of(world)  # which refuses names that do not exist
    signals = {signal.name: i for i, signal in enumerate(plant.observation)}
    actuators = {signal.name: i for i, signal in enumerate(plant.action)}

    def act(obs: Array) -> Array:
        action = [jnp.zeros((), obs.dtype) for _ in plant.action]
        for loop in plant.loops:
            measured, moved = signals[loop.signal], actuators[loop.actuator]
            signal = plant.observation[measured]
            point = loop.setpoint
            setpoint = obs[signals[point]] if isinstance(point, str) else point
            error = (setpoint - obs[measured]) / (signal.high - signal.low)
            action[moved] += 2.0 * loop.proportional * error + loop.bias
        return jnp.clip(jnp.stack(action), -1.0, 1.0)

    return act


def _draw(key: Key, mean: Array, tuning: Tuning) -> tuple[Array, Array]:
    """An action (m,) around the mean (m,), and its log-density ().

    Noise shrinks towards the ends of an actuator's range: where a thousandth of it is what is
    wanted, a hundredth would not be noise but another controller. It is normal, truncated so that
    the action stays in [-1, 1]: what is clipped instead has no density at the ends.
    """
    uniform = 2.0 * draws.uniform(key, mean.shape) - 1.0
    spread = tuning.noise * jnp.maximum(1.0 - jnp.abs(mean), SMALLEST_ROOM)
    root = np.float32(np.sqrt(2.0)) * spread
    low, high = jax.lax.erf((-1.0 - mean) / root), jax.lax.erf((1.0 - mean) / root)
    middle = low + 0.5 * (uniform + 1.0) * (high - low)
    # The inverse of 1 is infinite.
    noise = jax.lax.erf_inv(jnp.clip(middle, -1.0 + 2.0**-23, 1.0 - 2.0**-23))
    action = jnp.clip(mean + root * noise, -1.0, 1.0)
    away = (action - mean) / spread
    size = np.float32(np.sqrt(0.5 * np.pi)) * spread * (high - low)
    density = -0.5 * away * away - jnp.log(size)
    flat = jnp.float32(-np.log(2.0))
    return (
        jnp.where(tuning.uniform, uniform, action),
        jnp.where(tuning.uniform, flat, density).sum(),
    )
