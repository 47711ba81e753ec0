"""The published roadmap for a robot's train.py runs as it is printed, but for imports and sizes.

Its code blocks stand here word for word where a comment says so; what they leave out, such as the
networks of "custom PPO", is the least that makes them run.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("mujoco", reason="needs worldloom[robot]")

from worldloom.suites.robot.wildrobot import WildRobotEnv

env_cfg = {"task": "stand", "physics": "c", "horizon": 20, "threads": 1}
NUM_ENVS = 4


class Policy(nn.Module):
    """Flax's Dense layers, as level 1 has them."""

    outputs: int

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(16)(x))
        return nn.Dense(self.outputs)(x)


class Config:
    total_updates = 2
    steps = 3


# Level 1, and level 3's environment ------------------------------------------------------------


@pytest.mark.parametrize("use_jax", [False, True], ids=["numpy", "jax"])
def test_a_training_loop_written_by_hand_runs(use_jax):
    env = WildRobotEnv(env_cfg, NUM_ENVS, use_jax=use_jax)
    cfg, rng = Config(), jax.random.PRNGKey(0)
    policy_model, value_model = Policy(env.action_size), Policy(1)
    obs = env.reset(rng) if use_jax else env.reset()
    rngs = jax.random.split(rng, 3)
    params = {
        "policy": policy_model.init(rngs[0], jnp.array(obs)),
        "value": value_model.init(rngs[1], jnp.array(obs)),
    }
    tx = optax.sgd(1e-3)
    opt_state = tx.init(params)
    before, rewards = params, []

    def total_loss(params):
        mean = policy_model.apply(params["policy"], jnp.array(batch["obs"]))
        value = value_model.apply(params["value"], jnp.array(batch["obs"]))[..., 0]
        advantage = batch["rew"] - jax.lax.stop_gradient(value)
        error = jnp.square(batch["acts"] - mean).sum(-1)
        return (advantage * error).mean() + jnp.square(batch["rew"] - value).mean()

    # As printed: for update in range(cfg.total_updates):
    for update in range(cfg.total_updates):
        rows = []
        for step in range(cfg.steps):
            # As printed: mean = policy_model.apply(params['policy'], jnp.array(obs))
            mean = policy_model.apply(params['policy'], jnp.array(obs))  # fmt: skip
            key = jax.random.fold_in(rngs[2], update * cfg.steps + step)
            acts = mean + 0.1 * jax.random.normal(key, mean.shape)
            last_obs = obs
            # As printed: obs, rew, done, info = env.step(acts)
            obs, rew, done, info = env.step(acts)
            rows.append({"obs": last_obs, "acts": np.asarray(acts), "rew": rew})
            rewards.append(np.asarray(rew))
        batch = jax.tree.map(lambda *x: jnp.stack(x), *rows)
        # As printed:
        grads = jax.grad(total_loss)(params)
        updates, opt_state = tx.update(grads, opt_state, params)
        params = optax.apply_updates(params, updates)

    assert obs.shape == (NUM_ENVS, env.observation_size)
    kind = jax.Array if use_jax else np.ndarray  # "Returns numpy arrays", and after: JAX arrays
    assert all(isinstance(x, kind) for x in (obs, rew, done))
    assert {"terms", "fell", "truncated", "final_obs", "privileged_state"} <= set(info)
    assert np.isfinite(rewards).all()
    moved = jax.tree.map(lambda a, b: (a != b).any(), before, params)
    assert all(jax.tree.leaves(moved))


def test_episodes_of_the_hand_written_interface_begin_anew():
    env = WildRobotEnv(env_cfg | {"horizon": 3}, 2)
    env.reset()
    ends = [env.step(np.zeros((2, 13)))[2:] for _ in range(4)]
    np.testing.assert_array_equal([done for done, _ in ends], [[0, 0], [0, 0], [1, 1], [0, 0]])
    assert ends[2][1]["truncated"].all()


def test_keys_of_both_kinds_begin_the_same_episodes():
    env = WildRobotEnv(env_cfg, 2, use_jax=True)
    old, new = env.reset(jax.random.PRNGKey(5)), env.reset(jax.random.key(5))
    np.testing.assert_array_equal(old, new)


def test_mistakes_of_the_hand_written_interface_are_named():
    env = WildRobotEnv(env_cfg, 2)
    with pytest.raises(ValueError, match="call reset first"):
        env.step(np.zeros((2, 13)))
    env.reset()
    with pytest.raises(ValueError, match=r"actions of shape \(13,\); they must be \(2, 13\)"):
        env.step(np.zeros(13))


# Levels 2 and 4 --------------------------------------------------------------------------------


@pytest.mark.slow
def test_braxs_ppo_trains_the_wrapped_robot_as_printed():
    pytest.importorskip("brax", reason="needs worldloom[robot]")
    # In the place of: from brax.training.agents.ppo import train as ppo
    from worldloom.adapters import brax_ppo as ppo
    from worldloom.adapters.brax import BraxWildRobotWrapper

    inference_fn, params, metrics = ppo.train(
        environment=BraxWildRobotWrapper(env_cfg),
        num_timesteps=1_000,
        episode_length=10,
        num_envs=32,
        learning_rate=3e-4,
    )
    assert np.isfinite(metrics["eval/episode_reward"])
    assert metrics["eval/avg_episode_length"] <= 10
    policy = jax.jit(inference_fn(params, deterministic=True))
    env = BraxWildRobotWrapper(env_cfg)
    state = env.reset(jax.random.PRNGKey(0))
    action, _ = policy(state.obs, jax.random.PRNGKey(1))
    assert action.shape == (env.action_size,)


@pytest.mark.parametrize("num_envs", [4096, None])
def test_the_printed_sizes_are_accepted(num_envs, monkeypatch):
    """The whole printed calls, up to the training itself, which takes minutes."""
    pytest.importorskip("brax", reason="needs worldloom[robot]")
    from worldloom.adapters import brax_ppo as ppo
    from worldloom.adapters.brax import BraxWildRobotWrapper

    calls = []

    def train(environment, num_timesteps, **options):
        calls.append(options)
        return "inference_fn", "params", "metrics"

    monkeypatch.setattr(ppo.ppo, "train", train)
    if num_envs is None:
        inference_fn, params, metrics = ppo.train(
            environment=BraxWildRobotWrapper(env_cfg),
            num_timesteps=1_000_000,
            # Brax handles: networks, gradients, optimizers, training loop
            # All JIT-compiled internally
        )
        assert calls[0]["episode_length"] == 20  # the world's own
    else:
        inference_fn, params, metrics = ppo.train(
            environment=BraxWildRobotWrapper(env_cfg),
            num_timesteps=1_000_000,
            episode_length=1000,
            num_envs=4096,
            learning_rate=3e-4,
        )
        # Brax's own default of 32 would fail its assertion: 32 * 16 is no multiple of 4096.
        assert calls[0]["batch_size"] * calls[0]["num_minibatches"] == 4096
    assert (inference_fn, params, metrics) == ("inference_fn", "params", "metrics")
