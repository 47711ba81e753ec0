"""Records random play in SocialJax's own worlds: python record_socialjax.py CHECKOUT OUT.

Run by a Python that has SocialJax's requirements (jax 0.6, flax 0.10, Python 3.10 to 3.12), which
are not ours; only what it writes is read by the tests.
"""

import sys
from pathlib import Path

import numpy as np

STEPS, FIRST = 400, 60  # FIRST steps in which coins appear


def play(env, state, key, steps, prepare=lambda state, key: state):
    """States before and after each of so many steps of random actions, and rewards."""
    import jax

    rows = []
    for _ in range(steps):
        key, act_key, step_key, prepare_key = jax.random.split(key, 4)
        state = prepare(state, prepare_key)
        actions = jax.random.randint(act_key, (env.num_agents,), 0, env.num_actions)
        _, after, reward, _, _ = env.step_env(step_key, state, actions)
        rows.append((state, actions, reward, after))
        state = after
    return state, rows


def with_resources(state, key):
    """Everybody holds something: agents at random gather too little to play with."""
    import jax

    one, other = jax.random.randint(key, (2, len(state.agent_locs)), 0, 3)
    kind = state.coop_resources.dtype
    return state.replace(coop_resources=one.astype(kind), defect_resources=other.astype(kind))


def table(rows, *names):
    """Arrays (steps, ...) of what the rows hold."""
    out = {
        "action": np.stack([np.asarray(row[1]) for row in rows]),
        "reward": np.stack([np.asarray(row[2]).reshape(-1) for row in rows]),
    }
    for when, place in (("before", 0), ("after", 3)):
        for name in names:
            values = [np.asarray(getattr(row[place], name)) for row in rows]
            out[f"{when}_{name}"] = np.stack(values)
    return out


def main(checkout: str, out: str) -> None:
    sys.path.insert(0, checkout)
    import jax
    import socialjax

    selfish = {"shared_rewards": False, "num_inner_steps": 100_000}
    usual, key = ("grid", "agent_locs", "reborn_locs"), jax.random.key(0)
    make = socialjax.make
    for name, env_name, agents in (
        ("harvest", "harvest_common_open", 7),
        ("dilemma", "pd_arena", 16),
    ):
        env = make(env_name, num_agents=agents, **selfish)
        prepare = (with_resources,) if name == "dilemma" else ()
        _, rows = play(env, env.reset(key)[1], key, STEPS, *prepare)
        more = ("coop_resources", "defect_resources", "stay_time") if name == "dilemma" else ()
        np.savez(Path(out) / f"{name}.npz", **table(rows, *usual, *more))
    rich = make("coin_game", regrow_rate=0.02, **selfish)
    state, _ = play(rich, rich.reset(key)[1], key, FIRST)
    _, rows = play(make("coin_game", regrow_rate=0.0, **selfish), state, key, STEPS)
    np.savez(Path(out) / "coins.npz", **table(rows, "grid", "agent_locs"))
    rates = {"regrowth_prob_iron": 0.005, "regrowth_prob_gold": 0.03, "gold_mining_window": 8}
    env = make("coop_mining", num_agents=10, **rates, **selfish)
    _, rows = play(env, env.reset(key)[1], key, STEPS)
    names = ("grid", "agent_locs", "ore_miners", "partial_ore_countdown")
    np.savez(Path(out) / "mining.npz", **table(rows, *names))


if __name__ == "__main__":
    main(*sys.argv[1:])
