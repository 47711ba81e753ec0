"""Simulators of a described plant, on the host: FMUs and Gymnasium environments.

    simulator:
      fmu: rig.fmu                      # FMI 2 or 3, co-simulation; or gymnasium: package:Rig-v0
      variables: {position: mass.s}     # where names differ; of Gymnasium, indices of its vectors

They are the truth to compare with: nothing is learned from them, and no policy is chosen by them.
A step goes through Python, one plant at a time: slower than a plant in JAX by orders of magnitude.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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

Parts = tuple[tuple[Signal, ...], tuple[Signal, ...]]  # signals and actuators


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
    source, signals = plant.simulator, plant.observation[: len(plant.mapping.observation)]
    parts, names = (signals, plant.action), dict(source.variables)
    if source.kind == "gymnasium":
        return GymnasiumSimulator(source.name, parts, names)
    if plant.expression is None:
        raise ValueError(
            f"simulator {source.name}: the reward of {plant.name} is a column of the log, which no "
            "FMU has; write it as an expression"
        )
    return Fmu(source.name, parts, names, plant.step_seconds)


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    """Makes one line of whatever a simulator raises."""
    try:
        yield
    except Exception as error:
        text = str(error) or type(error).__name__
        raise ValueError(one_line(f"simulator {name}: {text}", 300)) from None


class Fmu:
    """A functional mock-up unit in co-simulation, through FMPy.

    Outputs and local variables are read. Episodes begin where logged ones began: what may be set
    before a simulation begins is (`initial="exact"`, parameters), and inputs that are signals
    follow the log.
    """

    def __init__(self, path: str, parts: Parts, names: Mapping[str, Any], step_seconds: float):
        try:
            import fmpy
            from fmpy.simulation import instantiate_fmu
        except ImportError:
            raise ImportError(
                "an FMU needs fmpy, which is not installed; pip install 'worldloom[fmu]'"
            ) from None
        self._path, self._seconds, self._begun = path, step_seconds, False
        with _errors_of(path):
            if not Path(path).is_file():
                raise ValueError("there is no such file; check the path")
            about: Any = fmpy.read_model_description(path)
            self._two = about.fmiVersion.startswith("2")
            if about.coSimulation is None or about.fmiVersion[0] not in "23":
                raise ValueError("it is no co-simulation of FMI 2 or 3")
            known = {variable.name: variable for variable in about.modelVariables}
            self._signals, self._actuators = (
                [_variable(signal, names.get(signal.name, signal.name), known) for signal in part]
                for part in parts
            )
            for signal, (variable, *_) in zip(parts[1], self._actuators, strict=True):
                if variable.causality != "input":
                    raise ValueError(
                        f"{signal.name} is moved, and {variable.name} is of causality "
                        f"{variable.causality}; name an input under `variables`"
                    )
        outside = [variable.causality == "input" for variable, *_ in self._signals]
        starts = [
            variable.variability != "constant"
            and (variable.causality in ("parameter", "input") or variable.initial == "exact")
            for variable, *_ in self._signals
        ]
        self._outside, self._starts = (np.flatnonzero(part).tolist() for part in (outside, starts))
        self._folder = tempfile.mkdtemp(prefix="worldloom-fmu-")
        try:
            with _errors_of(path):
                fmpy.extract(path, self._folder)
                self._fmu: Any = instantiate_fmu(self._folder, about, fmi_type="CoSimulation")
        except ValueError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    def reset(self, seed: int, logged: np.ndarray) -> np.ndarray:
        self._logged, self._step = logged, 0
        with _errors_of(self._path):
            if self._begun:
                self._fmu.reset()
            self._begun = True
            if self._two:
                self._fmu.setupExperiment(startTime=0.0)
            self._set([self._signals[i] for i in self._starts], logged[0][self._starts])
            self._fmu.enterInitializationMode()
            self._fmu.exitInitializationMode()
            return self._observe()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float | None, bool]:
        with _errors_of(self._path):
            self._set(self._actuators, action)
            self._set([self._signals[i] for i in self._outside], self._now()[self._outside])
            self._fmu.doStep(self._step * self._seconds, self._seconds)
            self._step += 1
            return self._observe(), None, False

    def close(self) -> None:
        try:
            with _errors_of(self._path):
                if self._begun:
                    self._fmu.terminate()
                self._fmu.freeInstance()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _now(self) -> np.ndarray:
        return self._logged[min(self._step, len(self._logged) - 1)]

    def _set(self, places: list[Any], values: np.ndarray) -> None:
        if places:
            pairs = zip(places, values, strict=True)
            numbers = [(float(x) - offset) / scale for (_, scale, offset), x in pairs]
            write = self._fmu.setReal if self._two else self._fmu.setFloat64
            write([variable.valueReference for variable, *_ in places], numbers)

    def _observe(self) -> np.ndarray:
        read = self._fmu.getReal if self._two else self._fmu.getFloat64
        values = read([variable.valueReference for variable, *_ in self._signals])
        pairs = zip(self._signals, values, strict=True)
        obs = np.asarray([x * scale + offset for (_, scale, offset), x in pairs], np.float64)
        obs[self._outside] = self._now()[self._outside]  # which the next step sets
        return obs


def _variable(signal: Signal, name: str, known: Mapping[str, Any]) -> tuple[Any, float, float]:
    """A signal's variable, and scale and offset from its unit to the signal's."""
    if name not in known:
        raise ValueError(f"{signal.name}: no variable {name}; {suggest(name, known)}")
    variable = known[name]
    if variable.type not in ("Real", "Float64"):
        raise ValueError(f"{signal.name}: {name} is of type {variable.type}; use a real one")
    try:
        unit = variable.unit or signal.unit
        offset = convert(0.0, unit, signal.unit)
        return variable, convert(1.0, unit, signal.unit) - offset, offset
    except ValueError as error:
        raise ValueError(f"{signal.name}: {error}") from None


class GymnasiumSimulator:
    """A Gymnasium environment with vectors of signals and actuators, in the description's units."""

    def __init__(self, name: str, parts: Parts, names: Mapping[str, Any]):
        try:
            import gymnasium
        except ImportError:
            raise ImportError("this simulator needs gymnasium; pip install gymnasium") from None
        self._name = name
        self._at, self._to = (
            [names.get(signal.name, i) for i, signal in enumerate(part)] for part in parts
        )
        with _errors_of(name):
            self._env: Any = gymnasium.make(name)
            for what, space, places in (
                ("signals", self._env.observation_space, self._at),
                ("actuators", self._env.action_space, self._to),
            ):
                if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
                    raise ValueError(f"its {what} are {space}; a vector is needed")
                size = space.shape[0]
                whole = what == "signals" or len(set(places)) == size
                if not whole or max(places) >= size:
                    raise ValueError(
                        f"it has {size} {what}, the description {len(places)} at {shown(places)}; "
                        "say which by `variables`"
                    )

    def reset(self, seed: int, logged: np.ndarray) -> np.ndarray:
        with _errors_of(self._name):
            return np.asarray(self._env.reset(seed=seed)[0], np.float64)[self._at]

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float | None, bool]:
        given = np.zeros(len(self._to), self._env.action_space.dtype)
        given[self._to] = action
        with _errors_of(self._name):
            obs, reward, terminated, truncated, _ = self._env.step(given)
            over = bool(terminated or truncated)
            return np.asarray(obs, np.float64)[self._at], float(reward), over

    def close(self) -> None:
        self._env.close()


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
    begun, plant, horizon = time.perf_counter(), world.plant, int(world.params.horizon)
    measured = len(plant.mapping.observation)  # pyright: ignore[reportAttributeAccessIssue]
    reward_of = None if plant.expression is None else reward_function(plant)  # pyright: ignore
    starts = np.asarray(data.starts)
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

    def episode(filtered: bool, number: int) -> list[np.ndarray]:
        """The columns of `Trajectories`, (T, ...)."""
        part = slice(starts[chosen[number]], ends[chosen[number]])
        logged, first = np.asarray(data.rows.obs[part], np.float64), data.rows.action[part][:1]
        memory = jax.vmap(initial_memory, (None, 0))(constraints, jnp.asarray(first))
        known, past = logged[:, :measured], logged[0, measured:]
        obs, last, rows = np.append(simulator.reset(seed + number, known), past), None, []
        while len(rows) < horizon:
            one = jnp.asarray(obs[None], jnp.float32)
            action, intervened, emergency, memory = act(one, memory, filtered)
            u = np.asarray(world.control(action), np.float64)[0]
            after, reward, over = simulator.step(u)
            if reward_of is not None:
                reward = reward_of(obs[None, :measured], np.asarray(action), after[None])[0]
            following = np.append(after, _history(plant, obs[measured:], u))
            crossed = margins(following, u, u if last is None else last)
            rows.append((True, reward, crossed, obs, action[0], intervened[0], emergency[0]))
            obs, last = following, u
            if over or not np.isfinite(obs).all():
                break
        columns = [np.asarray(column) for column in zip(*rows, strict=True)]
        rest = horizon - len(rows)
        return [np.concatenate([c, np.zeros((rest, *c.shape[1:]), c.dtype)]) for c in columns]

    def whole(filtered: bool) -> Trajectories:
        runs = [episode(filtered, i) for i in range(episodes)]
        columns: Any = (np.stack(column, 1) for column in zip(*runs, strict=True))
        return Trajectories(*columns)

    bare, filtered = whole(False), whole(True)
    hard = np.asarray([limit.hard for limit in plant.limits], bool)
    return PlantEvaluation(
        bare=outcome(bare, gamma),
        filtered=outcome(filtered, gamma),
        bare_trajectories=bare,
        filtered_trajectories=filtered,
        limits=tuple(limit.name for limit in plant.limits),
        spurious_trips=spurious_trips(bare, filtered, hard),
        score=None,
        seconds=time.perf_counter() - begun,
    )


def _history(plant: Any, past: np.ndarray, u: np.ndarray) -> np.ndarray:
    """What was done during the dead time of each actuator, a step after `past` and u (m,)."""
    parts, at = [np.zeros(0)], 0
    for i, steps in enumerate(plant.delays):
        parts.append(np.append(u[i], past[at : at + steps])[:steps])
        at += steps
    return np.concatenate(parts)
