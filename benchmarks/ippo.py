"""Independent PPO on cleanup with 7 agents beside JaxMARL's loop on SocialJax's Clean Up.

The same rules, field, windows, networks (two torsos of 64 and 64, one network for all agents as in
JaxMARL's loop), worlds, rollouts, minibatches and epochs on both sides; runs take turns, each side
in a process of its own. `python -m benchmarks.ippo` is our side.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks import jaxmarl_peer, rejax_peer
from benchmarks.players import Player, take_turns
from worldloom.suites.grid.suite import SUITE
from worldloom.training import timer
from worldloom.training.config import TrainConfig, make_config

PEERS = Path(".venv-peers-jaxmarl")
RATIO = "ippo_vs_jaxmarl"
# SocialJax's Clean Up by options of ours; see `worldloom.suites.grid.cleanup`.
CLEAN_UP = {
    "num_agents": 7, "height": 21, "width": 30, "horizon": 1000, "radius": 5, "turning": True,
    "zap": True, "fouling": "one", "pollution_rate": 0.5, "fouling_delay": 50, "beam_length": 2,
    "beam_taper": True, "turn_order": "simultaneous",
}  # fmt: skip
NOTES = (
    "SocialJax's windows have 19 planes where ours have 11, which makes its first layer wider; its "
    "world is otherwise the same, as the tests of parity show.",
    "JaxMARL's loop is baselines/IPPO/ippo_ff_overcooked.py of its repository, unchanged but for "
    "logging, which is switched off.",
)


@dataclass(frozen=True)
class IppoSizes:
    """Whole trainings of a few updates each, so that compiling is done once."""

    agents: int = 7
    worlds: int = 4
    horizon: int = 1000
    minibatches: int = 8
    epochs: int = 4
    updates: int = 4
    repeats: int = 5


QUICK = IppoSizes(agents=2, worlds=2, horizon=20, minibatches=2, epochs=1, updates=1, repeats=1)


def measure(
    sizes: IppoSizes, raw: dict[str, Any], note: Callable[[str], None]
) -> dict[str, float | None]:
    """Environment steps a second of both sides, and their ratio."""
    checkouts = {name: checkout(name) for name in ("jaxmarl", "socialjax")}
    python = peer_python()
    raw |= {"sizes": asdict(sizes), "notes": list(NOTES)}
    setup = {"sizes": asdict(sizes), "batch": sizes.worlds, **checkouts}
    with (
        Player([sys.executable, "-m", "benchmarks.ippo"], setup | {"player": "ours"}) as ours,
        Player([str(python), jaxmarl_peer.__file__], setup | {"player": "JaxMARL"}) as theirs,
    ):
        players = {"ours": ours, "jaxmarl": theirs}
        raw["facts"] = {name: player.facts for name, player in players.items()}
        taken = take_turns(players, sizes.repeats)
    raw["seconds_per_step"] = {name: timing.to_dict() for name, timing in taken.items()}
    raw["steps_per_second"] = {name: 1.0 / timing.median for name, timing in taken.items()}
    for name, rate in raw["steps_per_second"].items():
        note(f"  {name}: {rate:,.0f} steps/s of {sizes.agents} agents")
    return {RATIO: timer.ratio(taken["jaxmarl"].median, taken["ours"].median)}


def peer_python() -> Path:
    """The Python of the peers' environment; a ValueError where it is not set up."""
    folder = Path(os.environ.get("WORLDLOOM_JAXMARL_VENV", PEERS))
    python = folder / "bin/python"
    if not python.exists():
        raise ValueError(f"{python} is not there: `make peers` sets up what is measured against")
    return python


def checkout(name: str) -> str:
    """The folder of a peer's repository; a ValueError where there is none."""
    variable, usual = f"WORLDLOOM_{name.upper()}", {"jaxmarl": "JaxMARL", "socialjax": "SocialJax"}
    path = Path(os.environ.get(variable, Path(__file__).resolve().parents[2] / usual[name]))
    if not path.is_dir():
        raise ValueError(
            f"{path} is not there: name a checkout of {usual[name]} in {variable}, or put one "
            "beside this project"
        )
    return str(path.resolve())


def settings(sizes: Mapping[str, Any]) -> TrainConfig:
    """Ours, as JaxMARL's loop has them."""
    world = CLEAN_UP | {"num_agents": sizes["agents"], "horizon": sizes["horizon"]}
    ppo = {
        "hidden": (64, 64), "activation": "tanh", "num_minibatches": sizes["minibatches"],
        "num_epochs": sizes["epochs"], "learning_rate": 5e-4, "gamma": 0.99, "gae_lambda": 0.95,
        "clip_epsilon": 0.2, "entropy_cost": 0.01, "value_cost": 0.5, "max_grad_norm": 0.5,
    }  # fmt: skip
    given = {"env": "cleanup", "algo": "ppo", "share_parameters": True, "world": world, "ppo": ppo}
    return make_config(SUITE, given | {"num_worlds": sizes["worlds"]})


def make(setup: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Our side: a training from its first state."""
    import jax

    from worldloom.suites.grid.problem import new_trainer

    config, updates = settings(setup["sizes"]), setup["sizes"]["updates"]
    trainer = new_trainer(config)
    init = jax.jit(trainer.loop.init)

    def train(seed: int) -> Any:
        trainer.load(init(jax.random.key(seed)))
        metrics = trainer.advance(updates)
        jax.block_until_ready(trainer.run)
        return metrics

    train(0)  # compiles
    facts = {
        "steps": updates * trainer.steps_per_iteration,
        "compile_seconds": trainer.compile_seconds,
        "observation": list(trainer.loop.env.spec.observation.shape),
        "jax": jax.__version__,
    }
    return train, lambda metrics, seed: float(metrics["return"].mean()), facts


if __name__ == "__main__":
    rejax_peer.serve(make)
