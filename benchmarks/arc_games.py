"""Our games against arcengine: frames per second, and that both show the same frames.

`python -m benchmarks.arc_games` serves blocks of our play the way the peers do.
"""

import hashlib
import math
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.arc_peers import serve
from benchmarks.arc_worlds import over_devices
from benchmarks.players import Player, take_turns
from benchmarks.record import Record
from worldloom.training.timer import ratio

PEERS = Path(".venv-peers-arcengine")
PLAYED = ("glide", "crates", "lights")
CHECKED = 60  # actions whose frames are compared


def described(name: str) -> dict[str, Any]:
    """A game as both sides are told of it: levels, actions to draw from, actions to check."""
    import numpy as np

    from worldloom import suites

    world = suites.make(name).base
    game, choices = world.game, actions_of(world)
    order = np.random.default_rng(0).integers(0, len(choices), CHECKED)
    return {
        "game": name,
        "lives": game.lives,
        "undo": game.undo,
        "actions": list(game.actions),
        "levels": [
            {"size": list(level.size), "limit": level.limit}
            | {"kinds": {kind: [list(cell) for cell in at] for kind, at in level.kinds.items()}}
            for level in game.levels
        ],
        "choices": choices,
        "order": order.tolist(),
        "check": [choices[n] for n in order],
    }


def actions_of(world: Any) -> list[list[int]]:
    """The actions of the space as arcengine takes them: id, and row and column of a pixel."""
    import jax
    import numpy as np

    level = world.params.levels.at(0)
    moves = jax.vmap(lambda action: world.move(action, level))(np.arange(world.num_actions))
    return np.column_stack([moves.id, np.maximum(moves.pixel, 0)]).tolist()


def digest_of(env: Any, order: list[int]) -> str:
    """The frames that follow each of the actions, as one digest."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from worldloom.suites.arc.games import camera

    params, game = env.default_params(), env.base.game

    @jax.jit
    def play(actions):
        def one(state, action):
            state, _ = env.step(jax.random.key(0), state, action, params)
            return state, camera.frame(game, params.levels, state)

        return jax.lax.scan(one, env.reset(jax.random.key(0), params)[0], actions)[1]

    frames = np.asarray(play(jnp.asarray(order, jnp.int32)))
    return hashlib.sha256(frames.tobytes()).hexdigest()


def ours(setup: dict[str, Any]) -> tuple[Any, int, dict[str, Any]]:
    """A block of random play in which every frame of every game is drawn and written."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec

    from worldloom import suites
    from worldloom.core import draws, rollout
    from worldloom.core.compiling import quick_compile
    from worldloom.core.mesh import BATCH_AXIS
    from worldloom.core.transforms import autoreset_batch
    from worldloom.suites.arc.games import camera
    from worldloom.training.timer import compiled

    env = suites.make(setup["game"])
    params, game = env.default_params(), env.base.game
    devices = math.gcd(jax.device_count(), setup["batch"])
    count, steps = setup["batch"] // devices, setup["steps"] // setup["batch"]
    worlds = autoreset_batch(env, count)

    def start(keys, params):
        state, _ = worlds.reset(keys[0], params)
        return state, jnp.zeros((count, camera.SIDE, camera.SIDE), jnp.int8)

    def play(keys, playing, params):
        def choose(playing, memory, key):
            return draws.integers(key, (count,), env.spec.action.n), memory

        def step(playing, action, key):
            state, after = worlds.step(key, playing[0], action, params)
            # Carried along, so that each of them is written in every step.
            frames = jax.vmap(lambda one: camera.frame(game, params.levels, one))(state)
            return (state, frames), after.reward.max()

        playing, _, paid = rollout.play_steps(choose, step, keys[0], playing, (), steps)
        return playing, paid.max()[None]

    part, all_ = PartitionSpec(BATCH_AXIS), PartitionSpec()
    keys = iter(jax.random.split(jax.random.key(1), 4096 * devices).reshape(-1, devices))
    playing = over_devices(start, devices, part, all_)(next(keys), params)
    program = over_devices(play, devices, part, part, all_)
    played, seconds = compiled(
        program, next(keys), playing, params, compiler_options=quick_compile()
    )
    state = jax.eval_shape(lambda key: env.reset(key, params)[0], jax.random.key(0))
    facts = {
        "devices": devices,
        "compile_seconds": seconds,
        "bytes_per_world": sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state)),
        "digest": digest_of(env, setup["order"]),
    }

    def block():
        nonlocal playing
        playing, paid = jax.block_until_ready(played(next(keys), playing, params))
        return paid

    return block, count * devices * steps, facts


def peer(**setup: Any) -> Player:
    """arcengine in the environment that `make peers` sets up."""
    python = PEERS / "bin/python"
    if not python.exists():
        raise ValueError(f"{python} is not there: `make peers` sets up what is measured against")
    script = Path(__file__).with_name("arcengine_games.py")
    return Player([str(python), str(script)], {"player": "arcengine", "devices": None} | setup)


def games(sizes: Any, record: Record, raw: dict[str, Any]) -> None:
    """Frames per second of random play in three games, blocks taken in turn."""
    cores = os.cpu_count() or 1
    own = [sys.executable, "-m", "benchmarks.arc_games"]
    raw["unit"] = "frames per second: random action, step, 64 x 64 frame written, automatic reset"
    raw["batch"], raw["games"] = sizes.batch, {}
    for name in PLAYED:
        known: dict[str, Any] = described(name) | {"batch": sizes.batch}
        mine = known | {"player": "ours", "steps": sizes.batch * sizes.game_steps}
        theirs = known | {"steps": sizes.arcengine_steps}
        with ExitStack() as stack:
            ready = {
                "ours": stack.enter_context(Player(own, mine | {"devices": cores})),
                "arcengine": stack.enter_context(peer(**theirs)),
                "arcengine_processes": stack.enter_context(peer(**theirs, processes=cores)),
            }
            facts = {who: player.facts for who, player in ready.items()}
            if len({fact["digest"] for fact in facts.values()}) != 1:
                raise ValueError(f"{name}: the sides do not show the same frames")
            timed = take_turns(ready, sizes.repeats)
        each = {who: timing.median for who, timing in timed.items()}
        best = min(each["arcengine"], each["arcengine_processes"])
        raw["games"][name] = {
            "frames_per_second": {who: 1.0 / seconds for who, seconds in each.items()},
            "seconds_per_frame": {who: timing.to_dict() for who, timing in timed.items()},
            "ratio": ratio(best, each["ours"]),
            "facts": facts,
        }
        rates = ", ".join(f"{who} {1.0 / seconds:,.0f}" for who, seconds in each.items())
        record.note(f"  {name}: {rates} frames/s")
    least = min(game["ratio"] for game in raw["games"].values())
    record.result["ratios"]["games_vs_arcengine"] = least


if __name__ == "__main__":
    serve({"ours": ours})
