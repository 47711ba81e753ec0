"""The grid suite: multi-agent gridworlds in which every agent has its own network."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from worldloom.core.checks import check_fields
from worldloom.training.suite import Suite, World, parts_of

Mode = Literal["torch_sequential", "jax_sequential", "jax_parallel", "jax_fused"]
JAX_MODES: tuple[Mode, ...] = ("jax_sequential", "jax_parallel", "jax_fused")
MODES: tuple[Mode, ...] = ("torch_sequential", *JAX_MODES)
WORLDS = {
    "treasurehunt": "short-sighted agents share a field in which gems appear",
    "tag": "one agent is it, and passes that on by touching another",
    "cleanup": "apples grow while somebody cleans the river, unpaid",
    "staghunt": "a hare feeds one hunter; a stag feeds all, but takes two",
    "harvest": "apples regrow near others: a patch eaten bare stays so",
    "coins": "any coin pays, but one of another's colour costs them",
    "prisoners_dilemma": "what agents gathered decides how they play each other",
    "coop_mining": "iron pays one miner; gold pays more, but takes two",
}
# Episodes of 1,000 turns, where the others have 50 to 200: fewer worlds at once fill as large a
# memory, and fewer episodes take as long to evaluate.
LONG = ("harvest", "coins", "prisoners_dilemma", "coop_mining")


@dataclass(frozen=True)
class GridSettings:
    """What runs in gridworlds take beyond the common settings."""

    mode: Mode = "jax_fused"  # how it is executed: see `worldloom bench modes`
    tuned: bool = False  # torch_sequential without the original's useless work
    dataset: str = ""  # an npz file of transitions, for `bc` (eval --record)

    def __post_init__(self):
        check_fields("grid", self, choices={"mode": MODES})


def defaults(env: str, algo: str | None) -> Mapping[str, Any]:
    """Settings that learn treasure hunt in seconds; of long episodes fewer, in minutes."""
    common: dict[str, Any] = {
        "algo": algo or "iqn",
        "steps": 128_000,
        "num_worlds": 32,
        "eval_every": 32_000,
        "eval_episodes": 200,
        "checkpoint_every": 64_000,
        "record_every": 80_000,
    }
    if env in LONG:
        often = dict.fromkeys(("eval_every", "checkpoint_every", "record_every"), 128_000)
        common |= {"steps": 256_000, "num_worlds": 8, "eval_episodes": 32} | often
    if algo == "bc":
        never = dict.fromkeys(("eval_every", "checkpoint_every", "record_every"), 0)
        return common | never | {"steps": 10_000, "chunk": 1}
    on_policy = {"gamma": 0.9, "learning_rate": 1e-3, "num_minibatches": 4}
    own = {"ppo": on_policy, "mappo": on_policy, "pqn": {"gamma": 0.9}, "vdn": {"gamma": 0.9}}
    if algo in own:
        sizes = (512_000, 16) if env in LONG else (1_280_000, 64)
        return common | {"steps": sizes[0], "num_worlds": sizes[1], algo: own[algo]}
    if env in LONG and common["algo"] in ("iqn", "dqn", "qlearning"):
        # Two episodes of every world; as many updates a step as elsewhere would double the time.
        remembered = {"buffer_size": 16_016, "gradient_steps": 100, "epsilon_steps": 128_000}
        return common | {common["algo"]: remembered}
    return common


def original(**changes: Any) -> dict[str, Any]:
    """Settings of the original treasure hunt, nested as `make_config` takes them, but for changes.

    Its task, network, memory and schedule: 1,000 epochs of one world with one update each.
    """
    from worldloom.algos.iqn import IQNConfig

    turns = 50
    settings: dict[str, Any] = {
        "env": "treasurehunt",
        "algo": "iqn",
        "world": {"num_frames": 5, "legacy": True},
        "steps": 1000 * turns,
        "num_worlds": 1,
        "chunk": 25,
        "eval_every": 100 * turns,
        "checkpoint_every": 250 * turns,
        "record_every": 250 * turns,
        "iqn": asdict(IQNConfig.original()),
    }
    for name, value in changes.items():
        nested = isinstance(value, Mapping) and name in settings
        settings[name] = settings[name] | dict(value) if nested else value
    return settings


def no_resume(settings: Mapping[str, Any]) -> str:
    """The PyTorch baseline keeps, as the original does, nothing but its networks."""
    is_torch = settings.get("mode") == "torch_sequential"
    return "Runs of torch_sequential cannot be resumed." if is_torch else ""


SUITE = Suite(
    name="grid",
    worlds={n: World(f"worldloom.suites.grid.{n}:make", text) for n, text in WORLDS.items()},
    settings=GridSettings,
    defaults=defaults,
    **parts_of(
        "worldloom.suites.grid",
        film="problem:film",
        play="human:play_run",
        studio="studio:GridSession",
        partners="partners:play_with_partners",
    ),
    presets={"original": original},
    no_resume=no_resume,
    definition=(("kinds",), "worldloom.suites.grid.definition:load"),
    shaping="worldloom.suites.grid.rewards:social_rewards",
)
