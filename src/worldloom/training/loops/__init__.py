"""Compiled training loops, pure functions of a run's state, and the choice among them."""

from typing import Any

from worldloom.core.files import check_memory
from worldloom.core.memory import as_seen
from worldloom.core.mesh import device_mesh
from worldloom.core.protocols import PureEnv
from worldloom.training.config import TrainConfig
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer


def make_trainer(config: TrainConfig, problem: Problem) -> Trainer:
    """What trains: the loop that the algorithm asks for, in the world or from the data."""
    algorithm, env, several = config.algorithm, problem.env, config.devices > 1
    by_turns = env.turn_based and algorithm.loop != "offline"
    if several and algorithm.loop == "off_policy":
        raise ValueError(
            f"devices={config.devices}: {config.algo} trains on one device, where its memory lies; "
            "several share the worlds of on-policy algorithms and the batches of offline ones"
        )
    if problem.make_trainer is not None:
        return problem.make_trainer(config, problem)
    mesh = device_mesh(config.devices) if several else None
    shared, options = (env.default_params(),), {"compiler_options": problem.compiler_options}
    if by_turns:
        loop, shared = turn_loop(config, problem, mesh), ()
    elif algorithm.loop == "on_policy":
        from worldloom.training.loops.on_policy import OnPolicyLoop

        agent = algorithm.make(config.hyper, env.spec, problem.networks)
        env = seen_by_agents(env, config)
        loop = OnPolicyLoop(env, agent, config.num_worlds, problem.outcomes, problem.prior, mesh)
    elif algorithm.loop == "off_policy":
        from worldloom.training.loops.off_policy import StepLoop

        agent = algorithm.make(config.hyper, env.spec, problem.networks)
        loop = StepLoop(env, agent, config.num_worlds, problem.outcomes)
    else:
        from worldloom.training.loops.offline import OfflineLoop

        assert problem.data is not None
        data, hyper = problem.data(), config.hyper
        agent = algorithm.make(hyper, env.spec, problem.networks)
        loop = OfflineLoop(
            agent,
            hyper.batch_size,
            hyper.updates_per_iteration,
            mesh,
            data,
            problem.networks.encode,
            env.spec.num_agents,
        )
        shared, options = (agent.table(data),), {}
    trainer = Trainer(loop, shared, seed=config.seed, chunk=config.chunk, **options)
    remedy = "use fewer worlds, a smaller buffer or smaller networks"
    check_memory(f"{config.algo} on {config.env}", trainer.nbytes, remedy, share=0.9)
    return trainer


def seen_by_agents(env: PureEnv, config: TrainConfig) -> PureEnv:
    """A world as the agents of a run see it, in training as in evaluation."""
    return as_seen(env, config.algorithm.centralised, config.memory_size)


def turn_loop(config: TrainConfig, problem: Problem, mesh: Any = None) -> Any:
    """The loop of a turn-based world, off-policy or on-policy."""
    algorithm, env = config.algorithm, problem.env
    # A team with one network takes one step, on what all of its agents learned.
    axis = {"axis_name": algorithm.team_axis} if algorithm.team_axis else {}
    axis = axis if config.share_parameters else {}
    agent = algorithm.make(config.hyper, env.spec, problem.networks, **axis)
    shape = (env, agent, env.default_params(), config.num_worlds, config.share_parameters)
    if algorithm.loop == "off_policy":
        from worldloom.training.loops.turns import TurnLoop

        return TurnLoop(*shape)
    from worldloom.training.loops.on_policy_turns import OnPolicyTurnLoop

    return OnPolicyTurnLoop(*shape, algorithm.centralised, algorithm.team_axis, mesh)
