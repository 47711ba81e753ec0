"""Where agents that remember cannot be: one line that says so."""

import jax.numpy as jnp
import pytest

import worldloom
from worldloom.core.memory import WithMemory

pytestmark = pytest.mark.usefixtures("compiled_once")
GRU = {"hidden": (8,), "num_minibatches": 1, "memory": "gru", "memory_units": 4}
SMALL = {
    "algo": "ppo", "ppo": GRU, "steps": 12, "num_worlds": 2, "eval_every": 0, "record_every": 0,
    "eval_episodes": 2, "report": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    world = {"height": 5, "width": 5, "num_agents": 2, "horizon": 6}
    return worldloom.train("tag", out=tmp_path_factory.mktemp("runs") / "a", world=world, **SMALL)


def test_a_run_acts_with_what_is_remembered(run):
    env = run.problem.env
    obs = env.reset(worldloom.core.draws.as_key(jnp.uint32([0, 0])), env.default_params())[1].obs
    with pytest.raises(ValueError, match=r"at first zeros \(\.\.\., 8\)"):
        run.act(obs)
    action = run.act(WithMemory(obs, jnp.zeros((2, 8))))
    assert (action.now.shape, action.memory.shape) == ((2,), (2, 8))
    again = run.act(WithMemory(obs, action.memory))
    assert (again.memory != action.memory).any()


def test_what_cannot_be_done_with_it_is_refused(run, tmp_path):
    from worldloom.suites.grid.human import trained
    from worldloom.training.recording import record_episodes

    for call, done in (
        (lambda: run.export(tmp_path / "bundle"), "exported"),
        (lambda: record_episodes(run, 2), "recorded as data"),
        (lambda: trained(run), "played with"),
    ):
        with pytest.raises(ValueError, match=f"cannot be {done} yet") as refused:
            call()
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("env", "why"), [("reactor", "controllers"), ("arc", "edit grids")])
def test_suites_without_memories_say_so(env, why, tmp_path):
    with pytest.raises(ValueError, match=rf"{env}: ppo\.memory='gru', but .*{why}.*'none'"):
        worldloom.train(env, out=tmp_path / "a", **SMALL)
    assert not (tmp_path / "a").exists()
