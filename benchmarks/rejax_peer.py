"""rejax, the peer of the algorithms' benchmark, driven in a process of an environment of its own.

This file is run by its path there and imports nothing of Worldloom. It is told what to set up in
one line of JSON on standard input, and trains from another seed for each line after that, so that
the runs of both sides can be taken in turn. Every line is answered with one line of JSON.
"""

import json
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def serve(make: Callable[[dict[str, Any]], tuple[Any, Any, dict[str, Any]]]) -> None:
    """Sets up what the first line asks for, then trains and plays for every line.

    `make(setup)` returns `train(seed)`, compiled, which is timed, `evaluate(trained, seed)`, which
    gives the mean return, and facts, of which `steps` are the environment steps of a training.
    """
    setup = json.loads(sys.stdin.readline())
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries print as they please

    def answer(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=answers, flush=True)

    start = time.perf_counter()
    train, evaluate, facts = make(setup)
    answer(facts | {"setup_seconds": time.perf_counter() - start})
    for seed, _ in enumerate(sys.stdin):
        start = time.perf_counter()
        trained = train(seed)
        seconds = time.perf_counter() - start
        answer({"seconds": seconds, "score": evaluate(trained, seed)})


def make(setup: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """rejax's own training loop without the evaluations in it, which are not what is measured."""
    import jax
    import numpy as np
    from rejax import get_algo
    from rejax.evaluate import evaluate

    algo = get_algo(setup["algo"]).create(**setup["rejax"])
    steps_per_iteration = algo.num_envs * getattr(algo, "num_steps", 1)
    steps_per_iteration *= getattr(algo, "policy_delay", 1)
    iterations = max(1, round(setup["steps"] / steps_per_iteration))

    def train(key):
        state = algo.init_state(key)
        return jax.lax.fori_loop(0, iterations, lambda _, s: algo.train_iteration(s), state)

    def play(state, key):
        act = greedy(setup["algo"], algo, state)
        # `algo.env` may be wrapped; the policy is asked as `algo.make_act` does it.
        return evaluate(act, key, algo.env, algo.env_params, setup["episodes"])[1].mean()

    start = time.perf_counter()
    program = jax.jit(train).lower(jax.random.PRNGKey(0)).compile()
    compile_seconds = time.perf_counter() - start
    played = jax.jit(play)
    facts = {
        "steps": iterations * steps_per_iteration,
        "compile_seconds": compile_seconds,
        "version": version("rejax"),
        "gymnax": version("gymnax"),
        "jax": version("jax"),
    }
    return (
        lambda seed: jax.block_until_ready(program(jax.random.PRNGKey(seed))),
        lambda state, seed: float(np.asarray(played(state, jax.random.PRNGKey(1000 + seed)))),
        facts,
    )


def greedy(name: str, algo: Any, state: Any) -> Callable[[Any, Any], Any]:
    """`act(obs, key)` without chance: rejax's own `make_act` explores a little."""
    import jax.numpy as jnp

    def act(obs, key):
        if algo.normalize_observations:
            obs = algo.normalize_obs(state.obs_rms_state, obs)
        obs = obs[None]
        if name in ("dqn", "pqn"):
            return algo.agent.apply(state.q_ts.params, obs).argmax(-1)[0]
        params = state.actor_ts.params
        if name == "td3":
            return algo.actor.apply(params, obs)[0]
        chosen = algo.actor.apply(params, obs, method="_action_dist")
        if algo.discrete:
            return chosen.mode()[0]
        low, high = algo.actor.action_range
        if name == "sac":
            return (algo.actor.action_loc + algo.actor.action_scale * jnp.tanh(chosen.loc))[0]
        return jnp.clip(chosen.loc, low, high)[0]

    return act


if __name__ == "__main__":
    serve(make)
