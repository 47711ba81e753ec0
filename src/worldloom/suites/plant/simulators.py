"""Simulators of a described plant, on the host: FMUs and Gymnasium environments.

    simulator:
      fmu: rig.fmu                      # FMI 2 or 3, co-simulation; or gymnasium: package:Rig-v0
      variables: {position: mass.s}     # where names differ; of Gymnasium, indices of its vectors

They are the truth to compare with: nothing is learned from them, and no policy is chosen by them.
A step goes through Python, one plant at a time, so that they are slower than a plant written in JAX
by orders of magnitude (`docs/plant-from-logs.md`).
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core.names import one_line, shown, suggest
from worldloom.core.types import Array, PyTree
from worldloom.nn.policy import PolicyState, policy_step
from worldloom.replay.dataset import Dataset
from worldloom.safety import ControlState, SafetyConstraints, filter_batch, initial_memory
from worldloom.safety.units import convert
from worldloom.suites.plant.evaluate import PlantEvaluation, Trajectories, outcome, spurious_trips
from worldloom.suites.plant.logs import reward_function
from worldloom.suites.plant.plant import PlantWorld
from worldloom.suites.plant.types import Signal


class Simulator(Protocol):
    """A plant on the host, in the description's signals, actuators and units."""

    def reset(self, seed: int, logged: np.ndarray) -> np.ndarray:
        """Signals (n,) at the start of an episode; logged (T, n): those of one in the log.

        What comes from outside, such as set points, is taken from there.
        """
        ...

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float | None, bool]:
        """Signals (n,) a step after actuators were set to (m,), a reward, whether it is over."""
        ...

    def close(self) -> None: ...


def make_simulator(plant: Any) -> Simulator:
    """The simulator that a plant's description names; a ValueError of one line where it cannot."""
    source = plant.simulator
    signals, actuators = plant.observation[: len(plant.mapping.observation)], plant.action
    made: dict[str, Callable[..., Simulator]] = {"fmu": Fmu, "gymnasium": GymnasiumSimulator}
    make = made[source.kind]
    return make(source.name, signals, actuators, dict(source.variables), plant.step_seconds)


# FMI ---------------------------------------------------------------------------------------------

_KINDS = {"2": ("Real",), "3": ("Float64", "Float32")}


class Fmu:
    """A functional mock-up unit in co-simulation, through FMPy.

    Outputs and local variables are read. Episodes begin where logged ones began: what may be set
    before a simulation begins is (`initial="exact"`, parameters), and inputs that are signals
    follow the log.
    """

    def __init__(
        self,
        path: str,
        signals: tuple[Signal, ...],
        actuators: tuple[Signal, ...],
        names: Mapping[str, Any],
        step_seconds: float,
    ):
        try:
            import fmpy
            from fmpy.simulation import instantiate_fmu
        except ImportError:
            raise ImportError(
                "an FMU needs fmpy, which is not installed; pip install 'worldloom[fmu]'"
            ) from None
        if not Path(path).is_file():
            raise ValueError(f"simulator {path}: there is no such file; check the path")
        try:
            about: Any = fmpy.read_model_description(path)
            self._major = about.fmiVersion[0]
            if about.coSimulation is None or self._major not in _KINDS:
                raise ValueError("it is no co-simulation of FMI 2 or 3")
        except Exception as error:  # fmpy raises whatever its parsers do
            raise ValueError(one_line(f"simulator {path}: {error}", 300)) from None
        self._path, self._seconds, self._begun = path, step_seconds, False
        known = {variable.name: variable for variable in about.modelVariables}
        self._signals, self._actuators = (
            [self._variable(signal, names.get(signal.name, signal.name), known) for signal in part]
            for part in (signals, actuators)
        )
        for signal, (variable, *_) in zip(actuators, self._actuators, strict=True):
            if variable.causality != "input":
                raise ValueError(
                    f"simulator {path}: {signal.name} is moved, and {variable.name} is of "
                    f"causality {variable.causality}; name an input under `variables`"
                )
        kinds = [variable.causality for variable, *_ in self._signals]
        self._outside = [i for i, kind in enumerate(kinds) if kind == "input"]
        settable = [
            i
            for i, (variable, *_) in enumerate(self._signals)
            if variable.causality in ("parameter", "input") or variable.initial == "exact"
        ]
        self._starts = [i for i in settable if self._signals[i][0].variability != "constant"]
        self._folder = tempfile.mkdtemp(prefix="worldloom-fmu-")
        try:
            fmpy.extract(path, self._folder)
            self._fmu: Any = instantiate_fmu(self._folder, about, fmi_type="CoSimulation")
        except Exception as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise self._failed(error) from None

    def _variable(self, signal: Signal, name: str, known: Mapping[str, Any]) -> Any:
        """A signal's variable, and scale and offset from its unit to the signal's."""
        where = f"simulator {self._path}: {signal.name}"
        if name not in known:
            raise ValueError(one_line(f"{where}: no variable {name}; {suggest(name, known)}"))
        variable = known[name]
        if variable.type not in _KINDS[self._major]:
            raise ValueError(f"{where}: {name} is of type {variable.type}; a real one is needed")
        unit = variable.unit or signal.unit
        try:
            offset = convert(0.0, unit, signal.unit)
            return variable, convert(1.0, unit, signal.unit) - offset, offset
        except ValueError as error:
            raise ValueError(one_line(f"{where}: {error}")) from None

    def reset(self, seed: int, logged: np.ndarray) -> np.ndarray:
        fmu, self._logged, self._step = self._fmu, logged, 0
        try:
            if self._begun:
                fmu.reset()
            self._begun = True
            if self._major == "2":
                fmu.setupExperiment(startTime=0.0)
            self._set([self._signals[i] for i in self._starts], logged[0][self._starts])
            fmu.enterInitializationMode()
            fmu.exitInitializationMode()
            return self._observe()
        except Exception as error:
            raise self._failed(error) from None

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float | None, bool]:
        try:
            self._set(self._actuators, action)
            row = self._logged[min(self._step, len(self._logged) - 1)]
            self._set([self._signals[i] for i in self._outside], row[self._outside])
            self._fmu.doStep(self._step * self._seconds, self._seconds)
            self._step += 1
            return self._observe(), None, False
        except Exception as error:
            raise self._failed(error) from None

    def close(self) -> None:
        try:
            if self._begun:
                self._fmu.terminate()
            self._fmu.freeInstance()
        except Exception as error:
            raise self._failed(error) from None
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _set(self, places: list[Any], values: np.ndarray) -> None:
        if places:
            write = self._fmu.setReal if self._major == "2" else self._fmu.setFloat64
            numbers = [
                (float(x) - offset) / scale
                for (_, scale, offset), x in zip(places, values, strict=True)
            ]
            write([variable.valueReference for variable, *_ in places], numbers)

    def _observe(self) -> np.ndarray:
        read = self._fmu.getReal if self._major == "2" else self._fmu.getFloat64
        values = read([variable.valueReference for variable, *_ in self._signals])
        pairs = zip(self._signals, values, strict=True)
        obs = np.asarray([x * scale + offset for (_, scale, offset), x in pairs], np.float64)
        # What comes from outside is what the log has, also before the next step sets it.
        row = self._logged[min(self._step, len(self._logged) - 1)]
        obs[self._outside] = row[self._outside]
        return obs

    def _failed(self, error: Exception) -> ValueError:
        return ValueError(one_line(f"simulator {self._path}: {error}", 300))


# Gymnasium ---------------------------------------------------------------------------------------


class GymnasiumSimulator:
    """A Gymnasium environment with vectors of signals and actuators, in the description's units."""

    def __init__(
        self,
        name: str,
        signals: tuple[Signal, ...],
        actuators: tuple[Signal, ...],
        names: Mapping[str, Any],
        step_seconds: float,
    ):
        try:
            import gymnasium
        except ImportError:
            raise ImportError("this simulator needs gymnasium; pip install gymnasium") from None
        try:
            self._env: Any = gymnasium.make(name)
        except Exception as error:  # whatever an environment's constructor raises
            raise ValueError(one_line(f"simulator {name}: {error}", 300)) from None
        self._name, self._size = name, len(actuators)
        self._at, self._to = (
            [names.get(signal.name, i) for i, signal in enumerate(part)]
            for part in (signals, actuators)
        )
        for what, space, part, places in (
            ("signals", self._env.observation_space, signals, self._at),
            ("actuators", self._env.action_space, actuators, self._to),
        ):
            shape = getattr(space, "shape", None)
            if shape is None or len(shape) != 1 or not isinstance(space, gymnasium.spaces.Box):
                raise ValueError(f"simulator {name}: its {what} are {space}; a vector is needed")
            whole = sorted(places) == list(range(shape[0])) if part is actuators else True
            if not whole or not all(isinstance(i, int) and 0 <= i < shape[0] for i in places):
                raise ValueError(
                    one_line(
                        f"simulator {name}: it has {shape[0]} {what}, the description "
                        f"{len(part)} at {shown(places)}; say which by `variables`"
                    )
                )

    def reset(self, seed: int, logged: np.ndarray) -> np.ndarray:
        return self._signals(self._env.reset(seed=seed)[0])

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float | None, bool]:
        given = np.zeros(self._size)
        given[self._to] = action
        try:
            answer = self._env.step(given.astype(self._env.action_space.dtype))
        except Exception as error:
            raise ValueError(one_line(f"simulator {self._name}: {error}", 300)) from None
        obs, reward, terminated, truncated, _ = answer
        return self._signals(obs), float(reward), bool(terminated or truncated)

    def close(self) -> None:
        self._env.close()

    def _signals(self, obs: Any) -> np.ndarray:
        return np.asarray(obs, np.float64)[self._at]


# The truth ---------------------------------------------------------------------------------------


def play(
    simulator: Simulator,
    world: PlantWorld,
    policy: PolicyState,
    constraints: SafetyConstraints,
    data: Dataset,
    *,
    episodes: int,
    gamma: float,
    seed: int = 0,
) -> PlantEvaluation:
    """What a policy earns in a simulator, bare and behind its filter, from the same starts.

    They are those of as many episodes of the plant's data, from all over the log.
    """
    begun, starts = time.perf_counter(), np.asarray(data.starts)
    ends = np.append(starts[1:], data.size)
    chosen = np.linspace(0, len(starts) - 1, episodes).round().astype(int)

    @partial(jax.jit, static_argnames="filtered")
    def act(obs: Array, memory: PyTree, filtered: bool) -> Any:
        proposed = policy_step(policy, obs)
        if not filtered:
            never = jnp.zeros(1, bool)
            return jnp.clip(proposed, -1.0, 1.0), never, never, memory
        action, report = filter_batch(proposed, ControlState(obs, memory), constraints)
        return action, report.intervened, report.emergency, report.memory

    @jax.jit
    def margins(obs: Array, u: Array, last: Array) -> Array:
        return world.safety(obs, u, last, world.params).margins

    def episode(filtered: bool, number: int) -> tuple[np.ndarray, ...]:
        """The columns of `Trajectories`, (T, ...)."""
        part = slice(starts[chosen[number]], ends[chosen[number]])
        logged, first = np.asarray(data.rows.obs[part], np.float64), data.rows.action[part][:1]
        rows = _Rows(world.plant, int(world.params.horizon))
        memory = jax.vmap(initial_memory, (None, 0))(constraints, jnp.asarray(first))
        known = logged[:, : rows.measured]
        obs = np.concatenate([simulator.reset(seed + number, known), logged[0, rows.measured :]])
        last = None
        for t in range(len(rows.alive)):
            action, *changed, memory = act(jnp.asarray(obs[None], jnp.float32), memory, filtered)
            u = np.asarray(world.control(action), np.float64)[0]
            after, reward, over = simulator.step(u)
            following = np.concatenate([after, rows.history(obs, u)])
            last = u if last is None else last
            changes = margins(*(jnp.asarray(x, jnp.float32) for x in (following, u, last)))
            rows.add(t, obs, np.asarray(action[0]), following, reward, changes, changed)
            obs, last = following, u
            if over or not np.isfinite(obs).all():
                break
        return rows.columns()

    def whole(filtered: bool) -> Trajectories:
        runs = [episode(filtered, i) for i in range(episodes)]
        columns: Any = (np.stack(column, 1) for column in zip(*runs, strict=True))
        return Trajectories(*columns)

    bare, filtered = whole(False), whole(True)
    limits = world.plant.limits
    return PlantEvaluation(
        bare=outcome(bare, gamma),
        filtered=outcome(filtered, gamma),
        bare_trajectories=bare,
        filtered_trajectories=filtered,
        limits=tuple(limit.name for limit in limits),
        spurious_trips=spurious_trips(bare, filtered, np.asarray([x.hard for x in limits], bool)),
        score=None,
        seconds=time.perf_counter() - begun,
    )


class _Rows:
    """The steps of one episode of a described plant."""

    def __init__(self, plant: Any, horizon: int):
        self._plant, self.measured = plant, len(plant.mapping.observation)
        self._reward = None if plant.expression is None else reward_function(plant)
        self.alive, self._changed = np.zeros(horizon, bool), np.zeros((2, horizon), bool)
        widths = ((), (len(plant.limits),), (len(plant.observation),), (len(plant.action),))
        self._columns = [np.zeros((horizon, *width)) for width in widths]

    def history(self, obs: np.ndarray, u: np.ndarray) -> np.ndarray:
        """What was done during the dead time of each actuator, a step after obs (n,) and u (m,)."""
        past, parts = obs[self.measured :], [np.zeros(0)]
        for i, steps in enumerate(self._plant.delays):
            parts.append(np.concatenate([u[i : i + 1], past[:steps]])[:steps])
            past = past[steps:]
        return np.concatenate(parts)

    def add(
        self,
        t: int,
        obs: np.ndarray,
        action: np.ndarray,
        following: np.ndarray,
        reward: float | None,
        margins: Any,
        changed: Any,
    ) -> None:
        if self._reward is not None:
            seen, after = obs[None, : self.measured], following[None, : self.measured]
            reward = float(self._reward(seen, action[None], after)[0])
        if reward is None:
            raise ValueError(
                f"{self._plant.name}: its reward is a column of the log, and the simulator has "
                "none; write it as an expression"
            )
        self.alive[t], self._changed[:, t] = True, [bool(x[0]) for x in changed]
        for column, value in zip(self._columns, (reward, margins, obs, action), strict=True):
            column[t] = np.asarray(value)

    def columns(self) -> tuple[np.ndarray, ...]:
        """In the order of `Trajectories`."""
        return (self.alive, *self._columns, *self._changed)
