"""Three ways to move the same robot: MuJoCo's C engine in jit, MJX, and a plain loop over MuJoCo.

Each is for B worlds on a leading axis: `step(physics, target, force, dynamics)` moves servos
towards `target` (B, n) for one step of control while `force` (B, 2) pushes the base. `dynamics` is
None where all worlds are as the model is. What an engine keeps is qpos, qvel and the solver's warm
start, so that many calls are the same as one long simulation, to the bit.
"""

import copy
import hashlib
import inspect
import os
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from jax.custom_batching import custom_vmap

from worldloom.adapters.brax_compat import quiet_import
from worldloom.core.files import write_bytes
from worldloom.core.names import suggest
from worldloom.core.types import PyTree
from worldloom.suites.robot.model import Robot, mujoco
from worldloom.suites.robot.types import Array, Dynamics, Physics, Reading

EngineName = Literal["auto", "c", "mjx", "numpy"]
TRACED_FOLDER = "worldloom-traced"  # in the compilation cache


class Engine:
    """Moves robots. States are kept as bits of float64, unless an engine has another form."""

    def __init__(self, robot: Robot):
        self.robot = robot
        self._fields = _Fields(robot)

    def pack(self, qpos: np.ndarray, qvel: np.ndarray, warmstart: np.ndarray) -> Any:
        """`Physics.full` of N states, float64 (N, ...), in numpy."""
        return _as_bits(np.concatenate([qpos, qvel, warmstart], axis=-1).astype(np.float64))

    def unpack(self, full: Any) -> np.ndarray:
        """qpos, qvel and warm start side by side, float64 (N, nq + 2 nv)."""
        return _as_doubles(np.asarray(full))

    def step(
        self, physics: Physics, target: Array, force: Array, dynamics: Dynamics | None
    ) -> Physics:
        """One step of control in B worlds."""
        raise NotImplementedError


def make_engine(name: EngineName, robot: Robot, threads: int | None = None) -> Engine:
    """An engine by name; `auto` is C on a CPU and MJX elsewhere."""
    if name not in get_args(EngineName):
        known = list(get_args(EngineName))
        raise ValueError(f"there is no physics={name!r}; {suggest(str(name), known)}")
    if name == "auto":
        name = "c" if jax.default_backend() == "cpu" else "mjx"
    if name == "c":
        return CEngine(robot, threads)
    return MjxEngine(robot) if name == "mjx" else LoopEngine(robot)


# States as numbers -----------------------------------------------------------------------------


def _as_bits(rows: np.ndarray) -> np.ndarray:
    """float64 (..., m) as uint32 (..., m, 2): doubles cannot cross a callback while x64 is off."""
    return np.ascontiguousarray(rows).view(np.uint32).reshape(*rows.shape, 2)


def _as_doubles(bits: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(bits).view(np.float64)[..., 0]


def _reading(qpos: np.ndarray, qvel: np.ndarray, sensors: np.ndarray) -> Reading:
    with np.errstate(over="ignore"):  # what has diverged may be beyond float32: infinite then
        return Reading(*(x.astype(np.float32) for x in (qpos, qvel, sensors)))


class _Fields:
    """The model's numbers that differ between worlds, as functions of their `Dynamics`."""

    def __init__(self, robot: Robot):
        model = robot.model
        names = ("geom_friction", "pair_friction", "body_mass", "body_inertia", "body_ipos")
        names += ("dof_damping", "actuator_gainprm", "actuator_biasprm")
        self._nominal = {n: x.copy() for n in names if (x := getattr(model, n)).size}
        self._trunk = robot.trunk[:, None]

    def of(self, xp: Any, dynamics: Dynamics) -> dict[str, Array]:
        """Each field (B, ...)."""
        nominal = self._nominal
        # Of all geoms, floor included: where two touch, the larger friction counts.
        friction = dynamics.friction[:, None, None]
        mass = dynamics.mass[:, None]
        strength, damping = (x[:, None, None] for x in (dynamics.strength, dynamics.damping))
        places = np.arange(nominal["actuator_gainprm"].shape[1])
        gain, bias, rate = (places == i for i in range(3))
        touching = ("geom_friction", "pair_friction")
        return {
            **{name: nominal[name] * friction for name in touching if name in nominal},
            "body_mass": nominal["body_mass"] * mass,
            "body_inertia": nominal["body_inertia"] * mass[:, :, None],
            "body_ipos": nominal["body_ipos"] + self._trunk * dynamics.com[:, None, :],
            "dof_damping": nominal["dof_damping"] * dynamics.damping[:, None],
            "actuator_gainprm": nominal["actuator_gainprm"] * xp.where(gain, strength, 1.0),
            "actuator_biasprm": nominal["actuator_biasprm"]
            * xp.where(bias, strength, xp.where(rate, damping, 1.0)),
        }


# MuJoCo C --------------------------------------------------------------------------------------


class CEngine(Engine):
    """MuJoCo's C engine on a pool of threads, called from inside of compiled programs.

    The same at any number of threads, and the same as `LoopEngine`, to the bit. On several devices
    it must run under `shard_map`, where each device calls for its own worlds.
    """

    def __init__(self, robot: Robot, threads: int | None = None):
        cores = os.cpu_count() or 1
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads}; it must be at least 1")
        super().__init__(robot)
        self.threads = threads or max(1, cores // jax.local_device_count())
        self._idle: dict[tuple[int, bool], list[tuple[Any, np.ndarray]]] = {}
        self._lock = threading.Lock()

    @contextmanager
    def _batch(self, size: int, randomised: bool) -> Any:
        """A batch that nobody else uses, as devices call at the same time; and its dynamics."""
        key = (size, randomised)
        with self._lock:
            idle = self._idle.setdefault(key, [])
            batch, written = idle.pop() if idle else (None, np.full((size, 7), np.nan, np.float32))
        if batch is None:
            from mujoco.batch import Batch

            batch = Batch(self.robot.model, size, nthread=self.threads)
        try:
            yield batch, written
        finally:
            with self._lock:
                self._idle[key].append((batch, written))

    def _write(self, batch: Any, written: np.ndarray, dynamics: Dynamics) -> None:
        """Gives the worlds of a batch their models: those that began an episode, most do not."""
        rows = np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(dynamics)], axis=1)
        new = np.flatnonzero((rows != written).any(-1))
        if len(new):
            some = jax.tree.map(lambda x: x[new], dynamics)
            for name, values in self._fields.of(np, some).items():
                batch.expand(name)[new] = values
            written[new] = rows[new]

    def _advance(
        self, full: np.ndarray, target: np.ndarray, force: np.ndarray, dynamics: Dynamics | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        lead = target.shape[:-1]  # a callback may be mapped over more axes than one
        model, robot = self.robot.model, self.robot
        nq, nv = model.nq, model.nv
        rows = _as_doubles(full).reshape(-1, nq + 2 * nv)
        with self._batch(len(rows), dynamics is not None) as (batch, written):
            batch.qpos[:], batch.qvel[:] = rows[:, :nq], rows[:, nq : nq + nv]
            batch.qacc_warmstart[:] = rows[:, nq + nv :]
            batch.ctrl[:] = target.reshape(len(rows), -1)
            batch.xfrc_applied[:, robot.base_body, :2] = force.reshape(len(rows), -1)
            if dynamics is not None:
                leaves = [np.asarray(x) for x in jax.tree.leaves(dynamics)]
                flat = (x.reshape(len(rows), *x.shape[len(lead) :]) for x in leaves)
                self._write(batch, written, Dynamics(*flat))
            sensors = batch.bind("sensordata")
            batch.step(nstep=robot.substeps)
            new = np.concatenate([batch.qpos, batch.qvel, batch.qacc_warmstart], axis=-1)
            reading = _reading(batch.qpos, batch.qvel, sensors)
        return tuple(
            x.reshape(*lead, *x.shape[1:])
            for x in (_as_bits(new), reading.qpos, reading.qvel, reading.sensors)
        )  # pyright: ignore[reportReturnType]

    def step(
        self, physics: Physics, target: Array, force: Array, dynamics: Dynamics | None
    ) -> Physics:
        like = (physics.full, *jax.tree.leaves(physics.reading))
        shapes = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like)
        given, structure = jax.tree.flatten((physics.full, target, force, dynamics))
        axes = [x.ndim for x in given]  # counted from the end, rows stay where they are

        def advance(pieces: list[list[Any]]) -> Any:
            whole = [
                np.concatenate([np.asarray(piece) for piece in some], axis=-axis)
                for some, axis in zip(pieces, axes, strict=True)
            ]
            return self._advance(*structure.unflatten(whole))

        full, qpos, qvel, sensors = jax.pure_callback(
            advance, shapes, [_pieces(x) for x in given], vmap_method="broadcast_all"
        )
        return Physics(full, Reading(qpos, qvel, sensors))


def _pieces(x: Array) -> list[Array]:
    """The rows of an array in pieces of 64 KiB at most.

    What a callback is given, XLA copies: larger arrays in the background, on the threads in which
    callbacks wait. With a callback on each of them, as on several devices, nothing would go on.
    """
    rows = max(1, 2**16 * x.shape[0] // max(x.nbytes, 1))
    return [x[i : i + rows] for i in range(0, x.shape[0], rows)]


# MuJoCo in a plain loop ------------------------------------------------------------------------


class LoopEngine(Engine):
    """`mj_step`, one world after the other, in numpy: slow, obvious, and what the others must be.

    Works on numpy arrays outside of jit. `model` and `data` are MuJoCo's, as the last world left
    them: contacts and forces are those of the instant before the engine's last step.
    """

    def __init__(self, robot: Robot):
        super().__init__(robot)
        self.model = copy.copy(robot.model)  # its fields are written to
        self.data = mujoco().MjData(self.model)

    def step(
        self, physics: Physics, target: Array, force: Array, dynamics: Dynamics | None
    ) -> Physics:
        engine, model, data = mujoco(), self.model, self.data
        nq, nv = model.nq, model.nv
        fields = {} if dynamics is None else self._fields.of(np, dynamics)
        rows = self.unpack(physics.full)
        full, sensors = np.empty_like(rows), np.empty((len(rows), model.nsensordata))
        for i, row in enumerate(rows):
            for name, values in fields.items():
                getattr(model, name)[:] = values[i]
            data.qpos[:], data.qvel[:] = row[:nq], row[nq : nq + nv]
            data.qacc_warmstart[:] = row[nq + nv :]
            data.ctrl[:] = target[i]
            data.xfrc_applied[self.robot.base_body, :2] = force[i]
            for _ in range(self.robot.substeps):
                engine.mj_step(model, data)
            full[i] = np.concatenate([data.qpos, data.qvel, data.qacc_warmstart])
            sensors[i] = data.sensordata
        reading = _reading(full[:, :nq], full[:, nq : nq + nv], sensors)
        return Physics(_as_bits(full), reading)


# MJX -------------------------------------------------------------------------------------------


class MjxEngine(Engine):
    """MuJoCo written in JAX: no call leaves the program, any device, float32 (float64 with x64)."""

    @cached_property
    def _mjx(self) -> Any:
        try:
            with quiet_import():
                from mujoco import mjx
        except ImportError as error:
            raise ValueError(
                'physics="mjx" needs mujoco-mjx, which is not installed; '
                'pip install "worldloom[robot]"'
            ) from error
        return mjx

    @cached_property
    def _model(self) -> Any:
        with jax.ensure_compile_time_eval():
            return self._mjx.put_model(self.robot.model)

    @cached_property
    def _data(self) -> Any:
        with jax.ensure_compile_time_eval():
            return self._mjx.make_data(self.robot.model)

    def pack(self, qpos: np.ndarray, qvel: np.ndarray, warmstart: np.ndarray) -> np.ndarray:
        return np.concatenate([qpos, qvel, warmstart], axis=-1).astype(jnp.zeros(()).dtype)

    def unpack(self, full: Any) -> np.ndarray:
        return np.asarray(full, np.float64)

    @cached_property
    def _identity(self) -> bytes:
        """Of all that a step depends on beside its arguments."""
        model = self.robot.model
        content = np.empty(mujoco().mj_sizeModel(model), np.uint8)
        mujoco().mj_saveModel(model, None, content)
        code = inspect.getsource(MjxEngine) + inspect.getsource(_Fields)
        baked = (self.robot.substeps, self.robot.base_body)
        return digest(metadata.version("mujoco-mjx"), code, *baked, content.tobytes())

    def step(
        self, physics: Physics, target: Array, force: Array, dynamics: Dynamics | None
    ) -> Physics:
        full, sensors = self._mappable(physics.full, target, force, dynamics)
        nq, nv = self.robot.model.nq, self.robot.model.nv
        parts = (full[:, :nq], full[:, nq : nq + nv], sensors)
        return Physics(full, Reading(*(x.astype(jnp.float32) for x in parts)))

    @cached_property
    def _mappable(self) -> Any:
        """`_advance`, kept from process to process; mapped, it is one call for all worlds."""

        @custom_vmap
        def advance(*args: Any) -> Any:
            return kept(self._advance, self._identity, *args)(*args)

        @advance.def_vmap
        def many(size: int, batched: Any, *args: Any) -> Any:
            def merged(x: Array, mapped: bool) -> Array:
                x = x if mapped else jnp.broadcast_to(x, (size, *x.shape))
                return x.reshape(-1, *x.shape[2:])

            out = advance(*jax.tree.map(merged, args, tuple(batched)))
            return jax.tree.map(lambda x: x.reshape(size, -1, *x.shape[1:]), out), (True, True)

        return advance

    def _advance(
        self, full: Array, target: Array, force: Array, dynamics: Dynamics | None
    ) -> tuple[Array, Array]:
        """qpos, qvel and warm start side by side (B, ...), and sensors (B, ...)."""
        fields = {} if dynamics is None else self._fields.of(jnp, dynamics)
        many = jax.vmap(self._one)

        # Mapped inside of the loop: the other way round, MJX is traced three times over.
        def one(_: int, now: tuple[Array, Array]) -> tuple[Array, Array]:
            return many(now[0], target, force, fields)

        sensors = jnp.zeros((len(target), self.robot.model.nsensordata), full.dtype)
        return jax.lax.fori_loop(0, self.robot.substeps, one, (full, sensors))

    def _one(
        self, row: Array, target: Array, force: Array, fields: dict[str, Array]
    ) -> tuple[Array, Array]:
        """One step of the engine: qpos, qvel and warm start, and what was sensed before it."""
        nq, nv = self.robot.model.nq, self.robot.model.nv
        model = self._model.replace(**fields) if fields else self._model
        pushed = self._data.xfrc_applied.at[self.robot.base_body, :2].set(force)
        data = self._data.replace(
            qpos=row[:nq],
            qvel=row[nq : nq + nv],
            qacc_warmstart=row[nq + nv :],
            ctrl=target.astype(row.dtype),
            xfrc_applied=pushed,
        )
        data = self._mjx.step(model, data)
        return jnp.concatenate([data.qpos, data.qvel, data.qacc_warmstart]), data.sensordata


# Programs that take long to trace ----------------------------------------------------------------


def kept(function: Callable[..., PyTree], key: bytes, *args: PyTree) -> Callable[..., PyTree]:
    """`function` for arguments like `args`, read from the cache if it was traced before.

    JAX's compilation cache keeps what XLA makes of a program, not the program: MJX is Python that
    takes seconds to run through before XLA is even asked. Where there is such a cache, the traced
    program is kept beside what is compiled, as `jax.export` writes it.

    key: all that the function depends on beside its arguments. What is returned cannot be mapped
    or differentiated. On several devices, and without a cache, it is the function itself.
    """
    cache = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if not cache or jax.device_count() > 1:
        return function
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), args)
    platform = jax.default_backend()
    context = f"{jax.__version__} {platform} {jax.config.jax_enable_x64} {shapes}"  # pyright: ignore[reportAttributeAccessIssue]
    name = hashlib.sha256(key + context.encode()).hexdigest()[:32]
    path = Path(cache) / TRACED_FOLDER / name
    try:
        made = export.deserialize(bytearray(path.read_bytes()))
    except Exception:  # not there, or no longer understood
        structure = jax.tree.structure(shapes)

        def flat(*leaves: Any) -> PyTree:  # what is exported knows no structs of ours
            return function(*jax.tree.unflatten(structure, leaves))

        made = export.export(jax.jit(flat), platforms=[platform])(*jax.tree.leaves(shapes))
        with suppress(OSError):  # a cache that cannot be written to is no reason to stop
            path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, bytes(made.serialize()))
    # Called as it will be when it is read: XLA must find the same program in its own cache.
    return lambda *args: made.call(*jax.tree.leaves(args))


def digest(*parts: Any) -> bytes:
    """A hash of texts and bytes."""
    sha256 = hashlib.sha256()
    for part in parts:
        sha256.update(part if isinstance(part, bytes) else str(part).encode())
        sha256.update(b"\0")
    return sha256.digest()
