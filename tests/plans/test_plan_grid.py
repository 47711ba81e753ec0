"""What the plans of the original print for treasure hunt, run as they print it.

Verbatim from "JAX Implementation Plan for Sequential Mode" but for imports, sizes and, where it
is said, a slip of the plan.
"""

import time
from importlib.util import find_spec
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.adapters.sorrel import (
    JAXIQN,
    EmptyEntity,
    TreasurehuntEnv,
    TreasurehuntExperiment,
    TreasurehuntWorld,
    parallel_take_actions,
    parallel_train_agents,
)
from worldloom.replay.buffer import JAXBuffer

pytestmark = pytest.mark.usefixtures("compiled_once")

HAS_TORCH = find_spec("torch") is not None
SMALL = {"layer_size": 8, "n_quantiles": 3, "n_frames": 2, "memory_size": 64, "n_step": 1}


def make_config(folder):
    """The plan's `main.py`, with small sizes."""
    return {
        "experiment": {
            "epochs": 2,  # 1000
            "max_turns": 10,  # 50
            "record_period": 50,
            "name": "treasurehunt_jax",
            "log_dir": str(folder),
        },
        "model": {
            "agent_vision_radius": 2,
            "epsilon": 1,
            "epsilon_min": 0.00,
            "epsilon_decay": 0.001,
            "batch_size": 4,  # 256
            # Mode selection parameters
            "use_jax": True,  # Set to True for JAX, False for PyTorch
            "parallel_processing": True,  # Only used when use_jax=True
            **SMALL,
        },
        "world": {
            "height": 10,
            "width": 10,
            "gem_value": 10,
            "spawn_prob": 0.02,
            "num_agents": 2,  # 5
        },
        # No multiprocessing config - JAX uses parallel processing instead
    }


# Phase 1: the experiment -------------------------------------------------------------------------


class Logger:
    def __init__(self):
        self.epochs = []

    def record_turn(self, epoch, loss, reward, epsilon=0.0, **kwargs):
        self.epochs.append(epoch)


@pytest.mark.parametrize(
    ("use_jax", "parallel_processing", "expected"),
    [(True, True, "JAX_PARALLEL"), (True, False, "JAX_SEQUENTIAL"),
     (False, False, "PYTORCH_SEQUENTIAL")],
)  # fmt: skip
def test_main_runs_in_the_mode_that_its_switches_choose(
    use_jax, parallel_processing, expected, tmp_path
):
    if not use_jax and not HAS_TORCH:
        pytest.skip("the PyTorch mode needs torch")
    config = make_config(tmp_path)
    config["model"]["use_jax"] = use_jax
    config["model"]["parallel_processing"] = parallel_processing
    logger = Logger()
    experiment = TreasurehuntExperiment(config)

    # Determine experiment name based on mode
    use_jax = config["model"].get("use_jax", False)
    parallel = config["model"].get("parallel_processing", False) and use_jax
    if use_jax:
        mode_str = "JAX" + ("_PARALLEL" if parallel else "_SEQUENTIAL")
    else:
        mode_str = "PYTORCH_SEQUENTIAL"
    experiment_name = f"{config['experiment'].get('name', 'treasurehunt_jax')}_{mode_str}"

    # Run experiment
    if use_jax and parallel:
        # JAX with parallel processing
        run = experiment.run_experiment(animate=False, logger=logger, parallel=True)
    else:
        # Sequential mode (works for both JAX and PyTorch)
        run = experiment.run_experiment(animate=False, logger=logger, parallel=False)

    assert mode_str == expected
    assert run.folder.name.startswith(experiment_name)
    assert logger.epochs == [0, 1]


@pytest.mark.skipif(not HAS_TORCH, reason="the PyTorch mode needs torch")
def test_the_comparison_script_runs_every_mode(tmp_path):
    config = make_config(tmp_path)
    config["model"]["epsilon"] = 0.5
    results, runs = {}, []

    # Test PyTorch mode
    config["model"]["use_jax"] = False
    config["model"]["parallel_processing"] = False

    # Setup experiment
    world = TreasurehuntWorld(config=config, default_entity=EmptyEntity())
    experiment = TreasurehuntEnv(world, config)

    start_time = time.time()
    runs += [experiment.run_experiment(animate=False, logging=False, logger=None, parallel=False)]
    pytorch_time = time.time() - start_time
    results["pytorch"] = pytorch_time

    # Reset for next test
    world = TreasurehuntWorld(config=config, default_entity=EmptyEntity())
    experiment = TreasurehuntEnv(world, config)

    # Test JAX parallel mode
    config["model"]["use_jax"] = True
    config["model"]["parallel_processing"] = True

    start_time = time.time()
    runs += [experiment.run_experiment(animate=False, logging=False, logger=None, parallel=True)]
    jax_par_time = time.time() - start_time
    results["jax_parallel"] = jax_par_time

    assert [run.config.settings.mode for run in runs] == ["torch_sequential", "jax_parallel"]
    assert world.map.shape == (10, 10, 2)
    assert all(seconds > 0 for seconds in results.values())


# Phase 2: agents of an object loop ---------------------------------------------------------------


class TreasurehuntAgent:
    """The plan's agent, in the world of objects."""

    def __init__(self, number, model):
        self.number, self.model = number, model

    def pov(self, world):
        image = world.pov(self.number)
        # flatten the image to get the state
        return image.reshape(1, -1)

    def get_action(self, state: np.ndarray) -> int:
        """Gets the action from the model, using the stacked states."""
        prev_states = self.model.memory.current_state()

        # Convert JAX array to NumPy if needed
        if hasattr(prev_states, "block_until_ready"):  # JAX array
            prev_states = np.array(prev_states)

        stacked_states = np.vstack((prev_states, state))
        model_input = stacked_states.reshape(1, -1)
        action = self.model.take_action(model_input)
        return action

    def act(self, world, action):
        return world.act(self.number, action)

    def add_memory(self, state, action, reward, done):
        self.model.memory.add(state, action, reward, done)

    def is_done(self, world):
        return world.is_done


def setup_agents(world, legacy=False, seed=0):
    """The plan's `setup_agents`."""
    agents = []
    config = SimpleNamespace(model={"epsilon": 0.0, "epsilon_min": 0.0, "batch_size": 4})
    observation_spec = SimpleNamespace(input_size=(1, world.obs_size))
    action_spec = SimpleNamespace(n_actions=4)
    rng = np.random.default_rng(seed)
    for number in range(world.num_agents):
        model = JAXIQN(
            input_size=observation_spec.input_size,
            action_space=action_spec.n_actions,
            layer_size=8,  # 250
            epsilon=config.model.get("epsilon", 0.7),
            epsilon_min=config.model.get("epsilon_min", 0.01),
            device="cpu",  # or "gpu" if available
            seed=rng.integers(0, 2**31),
            n_frames=2,  # 5
            n_step=3,
            sync_freq=200,
            model_update_freq=4,
            batch_size=config.model.get("batch_size", 64),
            memory_size=64,  # 1024
            LR=0.00025,
            TAU=0.001,
            GAMMA=0.99,
            n_quantiles=3,  # 12
            legacy=legacy,
        )
        agents.append(TreasurehuntAgent(number, model))
    return agents


def take_turn(world, agents, parallel=False):
    """The plan's `take_turn`: every agent's transition, or `_take_turn_parallel`."""
    world.spawn()
    if parallel and all(hasattr(agent.model, "local_params") for agent in agents):
        return take_turn_parallel(world, agents)
    actions = []
    for agent in agents:
        state = agent.pov(world)
        action = agent.get_action(state)
        reward = agent.act(world, action)
        agent.add_memory(state, action, reward, agent.is_done(world))
        actions.append(action)
    return actions


def take_turn_parallel(world, agents):
    # Collect observations
    all_obs = []
    all_params = []
    all_rng_keys = []

    for agent in agents:
        # Get observation
        obs = agent.pov(world)
        prev_states = agent.model.memory.current_state()
        stacked_states = np.vstack((prev_states, obs))
        model_input = stacked_states.reshape(1, -1)

        all_obs.append(model_input[0])  # Remove batch dimension
        all_params.append(agent.model.local_params)
        all_rng_keys.append(agent.model.rng_key)

    # Parallel action selection
    all_actions = parallel_take_actions(
        all_params,
        np.array(all_obs),
        all_rng_keys,
        agent.model.qnetwork_local.__class__,
        n_tau=256,
    )

    # Execute actions sequentially (to avoid conflicts)
    for i, (agent, action) in enumerate(zip(agents, all_actions, strict=True)):
        # Update RNG key
        agent.model.rng_key, _ = jax.random.split(agent.model.rng_key)

        # Execute action
        reward = agent.act(world, int(action))

        # Add to memory; the plan adds the stack of the last agent for all
        done = agent.is_done(world)
        agent.add_memory(all_obs[i][-agent.model.features :], int(action), reward, done)
    return all_actions.tolist()


@pytest.fixture
def world(tmp_path):
    return TreasurehuntWorld(config=make_config(tmp_path), default_entity=EmptyEntity())


def test_parallel_actions_are_those_of_the_sequential_loop(world):
    """With the original's acting (256 random levels), from the same keys: the same choices."""
    alone, together = setup_agents(world, legacy=True), setup_agents(world, legacy=True)
    for _ in range(3):
        world.spawn()
        states = [agent.pov(world) for agent in alone]
        sequential = [agent.get_action(s) for agent, s in zip(alone, states, strict=True)]
        stacks = [
            np.vstack((agent.model.memory.current_state(), s)).reshape(-1)
            for agent, s in zip(together, states, strict=True)
        ]
        all_params = [agent.model.local_params for agent in together]
        all_rng_keys = [agent.model.rng_key for agent in together]
        parallel = parallel_take_actions(all_params, np.array(stacks), all_rng_keys, JAXIQN)
        assert parallel.tolist() == sequential
        for agent in together:
            agent.model.rng_key, _ = jax.random.split(agent.model.rng_key)


def test_a_whole_turn_can_be_taken_in_parallel(world):
    agents = setup_agents(world)
    for _ in range(6):
        actions = take_turn(world, agents, parallel=True)
        assert set(actions) <= {0, 1, 2, 3}
    assert [len(agent.model.memory) for agent in agents] == [6, 6]
    assert world.turn == 6


def test_models_themselves_act_together_as_each_acts_alone(world):
    alone, together = setup_agents(world), setup_agents(world)
    for agent in (*alone, *together):
        agent.model.set_epsilon(0.5)
    rng = np.random.default_rng(0)
    for _ in range(5):
        states = rng.random((2, 2 * world.obs_size), dtype=np.float32)
        sequential = [a.model.take_action(s) for a, s in zip(alone, states, strict=True)]
        parallel = parallel_take_actions([agent.model for agent in together], states)
        assert parallel.tolist() == sequential
    assert parallel_take_actions(together, states).shape == (2,)  # agents that have a model, too


def test_keys_of_the_old_kind_are_taken(world):
    agents = setup_agents(world)
    params = [agent.model.local_params for agent in agents]
    states = np.zeros((2, 2 * world.obs_size), np.float32)
    old = [jax.random.PRNGKey(1), jax.random.PRNGKey(2)]
    new = [jax.random.key(1), jax.random.key(2)]
    same = [parallel_take_actions(params, states, keys, JAXIQN).tolist() for keys in (old, new)]
    assert same[0] == same[1]


@pytest.mark.parametrize("legacy", [False, True])
def test_parallel_training_is_the_training_of_each(world, legacy):
    alone, together = setup_agents(world, legacy), setup_agents(world, legacy)
    assert float(parallel_train_agents(together)) == 0.0  # nothing to learn from yet
    rng = np.random.default_rng(0)
    for _ in range(20):
        state, action = rng.random(world.obs_size, dtype=np.float32), int(rng.integers(4))
        for agent in (*alone, *together):
            agent.add_memory(state, action, float(action), False)
    for _ in range(2):
        total_loss = 0
        for agent in alone:
            total_loss += agent.model.train_step()
        assert float(parallel_train_agents(together)) == pytest.approx(total_loss, rel=1e-5)
    for one, other in zip(alone, together, strict=True):
        pairs = zip(
            jax.tree.leaves(one.model.local_params),
            jax.tree.leaves(other.model.local_params),
            strict=True,
        )
        assert max(float(jnp.abs(a - b).max()) for a, b in pairs) < 1e-5


def test_an_agent_with_too_little_memory_is_skipped(world):
    agents = setup_agents(world)
    for n in range(20):
        agents[0].add_memory(np.ones(world.obs_size) * n, n % 4, 1.0, False)
    before = agents[1].model.local_params
    assert float(parallel_train_agents(agents)) > 0
    assert agents[1].model.local_params is before


def test_what_is_no_model_is_refused(world):
    with pytest.raises(ValueError, match="is no model of this package; use JAXIQN"):
        parallel_train_agents([SimpleNamespace(model=3)])
    params = [agent.model.local_params for agent in setup_agents(world)]
    with pytest.raises(ValueError, match="give all_rng_keys"):
        parallel_take_actions(params, np.zeros((2, 2 * world.obs_size)))


def test_a_whole_epoch_of_the_plans_loop_learns(world):
    """Step 2.4: turns, then training of all agents, then epsilon."""
    agents = setup_agents(world)
    for epoch in range(3):
        world.reset()
        for agent in agents:
            agent.model.start_epoch_action(epoch=epoch)
        for _ in range(10):
            take_turn(world, agents, parallel=True)
        for agent in agents:
            agent.model.end_epoch_action(epoch=epoch)
        total_loss = parallel_train_agents(agents)
        for agent in agents:
            agent.model.epsilon_decay(0.001)
    assert float(total_loss) > 0


# Phase 3: the buffer -----------------------------------------------------------------------------


def test_the_buffer_is_used_as_the_plan_uses_it():
    n_frames, memory_size, input_size = 3, 16, (2, 2)
    memory = JAXBuffer(
        capacity=memory_size,
        obs_shape=(np.array(input_size).prod(),),
        n_frames=n_frames,
    )
    for n in range(10):
        memory.add(np.full(4, n), n % 4, 1.0, 0.0)
    assert len(memory) == 10
    np.testing.assert_array_equal(memory.current_state(), [[8] * 4, [9] * 4])
    states, actions, rewards, next_states, dones, valid = memory.sample(batch_size=5)
    assert states.shape == next_states.shape == (5, 12)
    assert actions.shape == rewards.shape == dones.shape == valid.shape == (5, 1)
    first = memory.sample(5, rng_key=jax.random.PRNGKey(0))
    again = memory.sample(5, rng_key=jax.random.key(0))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    memory.add_empty()
    memory.clear()
    assert len(memory) == 0
