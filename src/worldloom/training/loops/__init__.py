"""Compiled training loops, pure functions of a run's state, and the choice among them."""

from worldloom.core.mesh import BATCH_AXIS, device_mesh
from worldloom.training.config import TrainConfig
from worldloom.training.suite import Problem
from worldloom.training.trainer import Trainer


def make_trainer(config: TrainConfig, problem: Problem) -> Trainer:
    """What trains: the loop that the algorithm asks for, in the world or from the data."""
    if problem.make_trainer is not None:
        return problem.make_trainer(config, problem)
    algorithm = config.algorithm
    if algorithm.loop == "offline":
        return _offline(config, problem)
    options = {"compiler_options": problem.compiler_options}
    env = problem.env
    if config.devices > 1 and (algorithm.loop != "on_policy" or env.turn_based):
        raise ValueError(
            f"devices={config.devices}: {config.algo} on {config.env} trains on one device; "
            "several share the worlds of on-policy algorithms with one agent"
        )
    if algorithm.loop == "on_policy" and not env.turn_based:
        from worldloom.training.loops.on_policy import OnPolicyLoop

        several = config.devices > 1
        agent = algorithm.make(
            config.hyper, env.spec, problem.networks, BATCH_AXIS if several else None
        )
        mesh = device_mesh(config.devices) if several else None
        loop = OnPolicyLoop(env, agent, config.num_worlds, problem.outcomes, problem.prior, mesh)
        return _trainer(config, loop, env.default_params(), **options)
    agent = algorithm.make(config.hyper, env.spec, problem.networks)
    if not env.turn_based:
        from worldloom.training.loops.off_policy import StepLoop

        loop = StepLoop(env, agent, config.num_worlds, problem.outcomes)
        return _trainer(config, loop, env.default_params(), **options)
    return _trainer(config, turn_loop(config, problem), **options)


def turn_loop(config: TrainConfig, problem: Problem):
    """The loop of a turn-based world, off-policy or on-policy."""
    algorithm, env = config.algorithm, problem.env
    agent = algorithm.make(config.hyper, env.spec, problem.networks)
    shape = (env, agent, env.default_params(), config.num_worlds, config.share_parameters)
    if algorithm.loop == "off_policy":
        from worldloom.training.loops.turns import TurnLoop

        return TurnLoop(*shape)
    from worldloom.training.loops.on_policy_turns import OnPolicyTurnLoop

    return OnPolicyTurnLoop(*shape, algorithm.centralised)


def _offline(config: TrainConfig, problem: Problem) -> Trainer:
    from worldloom.algos.offline import make_table
    from worldloom.training.loops.offline import OfflineLoop

    assert problem.data is not None
    data, hyper = problem.data(), config.hyper
    loop = OfflineLoop(
        config.algorithm.make(hyper, problem.env.spec, problem.networks),
        hyper.batch_size,
        hyper.updates_per_iteration,
        device_mesh(config.devices) if config.devices > 1 else None,
        data,
        problem.networks.encode,
        problem.env.spec.num_agents,
    )
    return _trainer(config, loop, make_table(data, centre=True))


def _trainer(config: TrainConfig, loop, *shared, **options) -> Trainer:
    return Trainer(loop, shared, seed=config.seed, chunk=config.chunk, **options)
