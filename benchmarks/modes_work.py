"""When two runs do the same work, and when every epoch of a run does all of its work.

An epoch is an iteration of a gridworld's run: an episode in every world, and the updates after it.
"""

import importlib.util
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import jax
import numpy as np

from worldloom.core.protocols import PureEnv
from worldloom.suites.grid.problem import make_env
from worldloom.training.config import TrainConfig

# Settings that decide how much is computed, beside those of the algorithm.
AMOUNTS = ("algo", "steps", "num_worlds", "share_parameters")
# How a network is asked when agents act; execution modes may differ in it, and say so.
ACTING = ("act_levels", "act_quantiles")


def changed(config: TrainConfig, *, hyper: Mapping[str, Any] | None = None, **own: Any):
    """The settings with other options of the algorithm, and others of the suite's own."""
    return replace(
        config,
        hyper=replace(config.hyper, **(hyper or {})),
        settings=replace(config.settings, **own),
    )


def same_work(configs: Mapping[str, TrainConfig], allowed: Collection[str] = ()) -> None:
    """Raises a ValueError that names what differs, unless all runs do the same work.

    The task (world, options, order of turns), the algorithm's settings and the amounts must be
    equal; mode, seed and cadence may differ. `allowed` names settings of the algorithm that may
    differ too.
    """
    (first, reference), *others = configs.items()
    for name, config in others:
        differs = differences(reference, config, allowed)
        if differs:
            raise ValueError(
                f"{first} and {name} do not do the same work: {'; '.join(differs)}. "
                "Compare runs of one task and one amount of work"
            )


def differences(a: TrainConfig, b: TrainConfig, allowed: Collection[str] = ()) -> list[str]:
    """What differs in the work of two runs, as 'name: one / other'; empty if nothing does."""
    if a.env != b.env:
        return [f"env: {a.env} / {b.env}"]
    differs = _world_differences(a, b)
    differs += [
        _pair(n, getattr(a, n), getattr(b, n)) for n in AMOUNTS if getattr(a, n) != getattr(b, n)
    ]
    if a.algo == b.algo:
        one, other = asdict(a.hyper), asdict(b.hyper)
        differs += [
            _pair(f"{a.algo}.{name}", one[name], other[name])
            for name in one
            if name not in allowed and one[name] != other[name]
        ]
    return differs


def _pair(name: str, one: Any, other: Any) -> str:
    return f"{name}: {one} / {other}"


def _world_differences(a: TrainConfig, b: TrainConfig) -> list[str]:
    worlds = make_env(a), make_env(b)
    orders = [turn_order(config, world) for config, world in zip((a, b), worlds, strict=True)]
    differs = [_pair("turn_order", *orders)] if orders[0] != orders[1] else []
    if a.world == b.world or _same_world(*worlds):
        return differs
    options = sorted((set(a.world) | set(b.world)) - {"turn_order"})
    return differs + [
        _pair(f"world option {name}", a.world.get(name, "default"), b.world.get(name, "default"))
        for name in options
        if a.world.get(name) != b.world.get(name)
    ]


def turn_order(config: TrainConfig, env: PureEnv) -> str | None:
    """The order of turns that a run really plays: the baseline's agents always alternate."""
    return "interleaved" if config.settings.mode == "torch_sequential" else env.spec.turn_order


def _same_world(a: PureEnv, b: PureEnv) -> bool:
    """Options may be written differently (a default, or its value) and mean one world."""

    def data(env: PureEnv) -> list[Any]:
        values = [getattr(env.base, f.name) for f in fields(env.base)]
        return [v for v in values if not callable(v)]

    def numbers(env: PureEnv) -> list[Any]:
        return [np.asarray(x).tolist() for x in jax.tree.leaves(env.default_params())]

    return (a.spec, data(a), numbers(a)) == (b.spec, data(b), numbers(b))


def why_not_torch(config: TrainConfig) -> str | None:
    """Why the PyTorch baseline cannot do this work; None if it can."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed; pip install 'worldloom[torch]' adds it"
    if config.env != "treasurehunt" or config.algo != "iqn":
        return f"the baseline is treasure hunt with IQN agents, not {config.env} with {config.algo}"
    env = make_env(config)
    if env.spec.turn_order != "interleaved":
        return f"its agents alternate; turn_order={env.spec.turn_order} is another task"
    iqn = config.hyper
    if config.num_worlds != 1 or iqn.gradient_steps != 1 or not iqn.legacy:
        return "its loop is one world, one update an epoch and the original's arithmetic"
    if not config.world.get("legacy") or env.base.view != "onehot" or env.base.radius is None:
        return "its world has the original's double walls and square windows of one-hot kinds"
    return None


def trains(metrics: Mapping[str, np.ndarray]) -> bool:
    """Every agent learned in every epoch: a memory that is not ready leaves NaN, or 0 in torch."""
    loss = np.asarray(metrics["agent_loss"])
    return bool(np.isfinite(loss).all() and (loss != 0.0).all())


def fill_memory(trainer: Any, config: TrainConfig) -> int:
    """Plays epochs until every agent learns; how many that took. Compiles on the way."""
    horizon = make_env(config).spec.horizon or 1
    size = config.hyper.buffer_size
    for epoch in range(size // (config.num_worlds * horizon) + 2):
        if trains(trainer.advance(1)):
            return epoch + 1
    raise ValueError(
        f"a memory of {size} transitions never held a batch of {config.hyper.batch_size}; use a "
        f"larger {config.algo}.buffer_size or a smaller {config.algo}.batch_size"
    )


def training_epochs(trainer: Any, epochs: int) -> Callable[[], None]:
    """A function that advances by `epochs` and makes sure that all of them trained."""

    def advance() -> None:
        metrics = trainer.advance(epochs)
        jax.block_until_ready(getattr(trainer, "run", None))
        if not trains(metrics):
            raise RuntimeError("a timed epoch did not train every agent: its time means nothing")

    return advance
