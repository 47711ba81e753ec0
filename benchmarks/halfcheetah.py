"""NeoRL-2's SafetyHalfCheetah: reward and speed limit of its rows, and episodes in MuJoCo.

The task is MuJoCo's half cheetah with its own position as the first of 18 observations (arXiv
2503.19267): it is paid for its speed along x less a tenth of its squared action, and fined 100
where it is faster than 3.2096 m/s. It never ends but by its 1,000 steps. The body is Gymnasium's
`half_cheetah.xml`, five steps of 0.01 s to one of the task, started near rest as there: released
rows follow from each other to 1e-6 in the median.

Speed is a difference of positions of over 100 m divided by 0.05 s. Rows in float32 hold it to
about 2e-4 m/s, and rewards likewise.
"""

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.protocols import EnvSpec
from worldloom.core.spaces import Box
from worldloom.core.types import Array
from worldloom.nn.policy import PolicyState, policy_step

SCORE_MIN, SCORE_MAX = -283.0, 2507.0  # mean returns that NeoRL-2 maps to 0 and 100
SPEED_LIMIT = 3.2096  # m/s
FINE = -100.0  # the reward of a step that is too fast
STEP_SECONDS = 0.05
SUBSTEPS = 5
ACTION_COST = 0.1
HORIZON = 1000
START_NOISE = 0.1  # half-width of positions, deviation of velocities
OBS_SIZE, ACTION_SIZE = 18, 6


def normalised_score(mean_return: float) -> float:
    """NeoRL-2's score of a mean return over episodes."""
    return 100.0 * (mean_return - SCORE_MIN) / (SCORE_MAX - SCORE_MIN)


def speed(obs: Array, next_obs: Array) -> Array:
    """Along x in m/s (...,), from observations (..., 18) before and after a step."""
    return (next_obs[..., 0] - obs[..., 0]) / STEP_SECONDS


def speed_margin(obs: Array, next_obs: Array) -> Array:
    """How far below the limit in m/s (...,); below 0 where it is broken."""
    return SPEED_LIMIT - speed(obs, next_obs)


def cost(obs: Array, next_obs: Array) -> Array:
    """1 where the limit is broken, else 0 (...,)."""
    return (speed(obs, next_obs) > SPEED_LIMIT).astype(jnp.float32)


def reward(obs: Array, action: Array, next_obs: Array) -> Array:
    """(...,) for observations (..., 18) and actions (..., 6)."""
    fast = speed(obs, next_obs)
    effort = ACTION_COST * jnp.square(action).sum(-1)
    return jnp.where(fast > SPEED_LIMIT, FINE, fast - effort)


SPEC = EnvSpec(
    "safetyhalfcheetah",
    Box(-1e6, 1e6, (OBS_SIZE,)),
    Box(-1.0, 1.0, (ACTION_SIZE,)),
    horizon=HORIZON,
    reward=reward,
)


# Episodes ----------------------------------------------------------------------------------------


def why_not() -> str | None:
    """What is missing to play it; None if nothing is."""
    missing = [name for name in ("mujoco", "gymnasium") if find_spec(name) is None]
    return f"{' and '.join(missing)} not installed: worldloom[robot,plant]" if missing else None


@cache
def load() -> Any:
    """The body as MuJoCo's model."""
    import gymnasium
    import mujoco

    assert gymnasium.__file__ is not None
    assets = Path(gymnasium.__file__).parent / "envs/mujoco/assets"
    return mujoco.MjModel.from_xml_path(str(assets / "half_cheetah.xml"))


def set_state(body: Any, obs: np.ndarray) -> None:
    """Puts MuJoCo's data where an observation (18,) says."""
    import mujoco

    mujoco.mj_resetData(load(), body)
    body.qpos[:], body.qvel[:] = obs[:9], obs[9:]
    mujoco.mj_forward(load(), body)


def step(body: Any, action: np.ndarray) -> np.ndarray:
    """The observation (18,) after a step under an action (6,) in [-1, 1]."""
    import mujoco

    body.ctrl[:] = action
    mujoco.mj_step(load(), body, nstep=SUBSTEPS)
    return np.concatenate([body.qpos, body.qvel])


class Scorer:
    """Plays whole episodes from the same starts, whatever the policy: mean returns."""

    has_loops = False  # nobody has tuned a PID controller for it

    def __init__(self, episodes: int, horizon: int = HORIZON, seed: int = 0):
        import mujoco

        self.episodes, self.horizon = episodes, horizon
        self._bodies = [mujoco.MjData(load()) for _ in range(episodes)]
        noise = np.random.default_rng(seed)
        position = noise.uniform(-START_NOISE, START_NOISE, (episodes, 9))
        velocity = START_NOISE * noise.standard_normal((episodes, 9))
        self._starts = np.concatenate([load().qpos0 + position, velocity], -1)
        self._act = jax.jit(policy_step)

    def __call__(self, policy: PolicyState) -> float:
        obs, paid = self._starts, np.zeros(self.episodes)
        for body, start in zip(self._bodies, obs, strict=True):
            set_state(body, start)
        for _ in range(self.horizon):
            action = np.asarray(self._act(policy, jnp.asarray(obs, jnp.float32)), np.float64)
            after = np.stack([step(*pair) for pair in zip(self._bodies, action, strict=True)])
            fast = (after[:, 0] - obs[:, 0]) / STEP_SECONDS
            effort = ACTION_COST * np.square(action).sum(-1)
            paid += np.where(fast > SPEED_LIMIT, FINE, fast - effort)
            obs = after
        return float(paid.mean())
