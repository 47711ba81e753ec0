"""What the shell knows of a suite, and what a loop needs of one of its worlds."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from worldloom.core.lazy import lazy

if TYPE_CHECKING:
    from worldloom.algos.policy_selection import Selection
    from worldloom.core.protocols import PureEnv
    from worldloom.core.types import Array, PyTree
    from worldloom.nn.networks import Networks
    from worldloom.replay.dataset import Dataset
    from worldloom.training.config import TrainConfig
    from worldloom.training.driver import Hook


@dataclass(frozen=True)
class World:
    """A world by name: the function that makes it, and one line for people.

    `make` may be "module:function", which is imported when it is needed.
    """

    make: "str | Callable[..., PureEnv]"
    description: str = ""


@dataclass(frozen=True)
class NoSettings:
    """The settings of a suite that has none beyond the common ones."""


@dataclass(frozen=True)
class Suite:
    """A family of worlds: what is particular about training, scoring and showing them.

    worlds: those that come with it. settings: a frozen dataclass of what its runs take beyond the
    common settings. defaults(env, algo): settings that differ from the common defaults, nested as
    in a config file; with algo=None it names the usual algorithm, too. refine(env, algo, given):
    those that hang on what was given besides. problem(config, folder):
    what a loop needs; `folder` is that of a run that goes on, or None. page(folder): writes a
    run's report.html. rules: by world, a dataclass of its options where the maker's signature does
    not tell them. export(run, folder): writes a policy's bundle. film(run, path, seed): writes a
    GIF of an episode. play(run or env, seed): lets a person play. studio(run or env): a `Session`
    for the browser, which the module `studio.js` beside it shows. presets: settings by name to
    start from. select(folders, dataset, ...): which policy of several runs logged data speak for, a
    `Selection`. commands: its own commands, name -> ("module:function", one line for people).
    unused(env): names of settings of the suite that runs in this world refuse.
    no_resume(settings): why a run with these settings can never go on; "" where it can.
    definition: worlds in YAML files: keys that only its own have, and "module:function" that makes
    one from a path. shaping(env, *, option=...): a transform whose options every world of the suite
    takes beside its own; they change what is learned from, not what is scored. partners(run,
    folder, episodes, seed): scores of a run's agents beside those of other runs.
    """

    name: str
    worlds: Mapping[str, World]
    defaults: Callable[[str, str | None], Mapping[str, Any]]
    problem: "Callable[[TrainConfig, Path | None], Problem]"
    page: Callable[[Path], Path]
    export: Callable[..., Path]
    settings: type = NoSettings
    rules: Mapping[str, type] = field(default_factory=dict)
    refine: Callable[[str, str, Mapping[str, Any]], Mapping[str, Any]] | None = None
    film: Callable[..., Path] | None = None
    play: Callable[..., Any] | None = None
    studio: "Callable[..., Session] | None" = None
    select: "Callable[..., Selection] | None" = None
    presets: Mapping[str, Callable[[], Mapping[str, Any]]] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    unused: Callable[[str], Collection[str]] = lambda env: ()
    no_resume: Callable[[Mapping[str, Any]], str] = lambda settings: ""
    definition: tuple[tuple[str, ...], str] | None = None
    shaping: str | None = None  # "module:function"
    partners: Callable[..., Any] | None = None

    def rules_of(self, env: str) -> type | None:
        """The dataclass of a world's options; a registered world has options of its own."""
        return self.rules.get(env)


class Session(Protocol):
    """A person in a world, in the browser: see `worldloom.serving.studio`. Values are JSON.

    A bad message is a ValueError in one line.
    """

    def describe(self) -> dict[str, Any]:
        """What stays as it is. period: seconds from step to step, of a world that does not wait;
        scripts: files beside studio.js to load before it."""
        ...

    def reset(self, seed: int) -> dict[str, Any]:
        """A new episode; its state."""
        ...

    def act(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Does what a person asks for, and gives the state; without a word, time goes on."""
        ...

    def state(self) -> dict[str, Any]:
        """What there is to see now."""
        ...


def parts_of(package: str, **parts: str) -> dict[str, Any]:
    """Functions of a suite's package as "module:function", imported when they are called.

    Beside `parts` those that all suites have at the same place, and the usual export of a policy.
    """
    usual = {"problem": "problem:make_problem", "page": "page:write_report"}
    made = {name: lazy(f"{package}.{path}") for name, path in (usual | parts).items()}
    return {"export": lazy("worldloom.serving.policy_export:export_run")} | made


class Evaluation(Protocol):
    """Scores of trained agents."""

    @property
    def seconds(self) -> float: ...
    @property
    def mean(self) -> float:
        """The one number that runs are compared by; more is better."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """A row of eval.jsonl."""
        ...

    def lines(self) -> dict[str, str]:
        """The same for people: name -> a few words."""
        ...


# Plays episodes with what a trainer gives as its agents: evaluator(agents, key); with uniform
# actions instead where `training.evaluate.random_play` says at_random=True.
Evaluator = Callable[..., Evaluation]


_RANDOM_PLAY = lazy("worldloom.training.evaluate:random_play")


@dataclass(frozen=True)
class Problem:
    """A world to learn in, or data to learn from, and how to score what was learned.

    make_evaluator(trainer, episodes): its evaluator. outcomes(info): what to average over the
    episodes that end, from infos (T, B) to arrays (T, B). references(evaluator, agents): scores of
    agents that learn nothing, by name, which stand beside all that is learned. data(): the logged
    data, made or read when they are first asked for; None where there can be none. prior: learns
    beside an on-policy agent and pays it (see `loops.on_policy.Prior`). make_trainer: a way of
    training of the suite's own, in the place of the loop that the algorithm asks for. about(): what
    config.json says beside the settings. files: what a new run keeps in its folder, by name. hooks:
    the suite's own work between chunks. check_resume(header): raises ValueError if what the run was
    started with has changed since. pure: no callback to the host in it, so that runs can be
    vmapped. no_memory: why policies here cannot remember; "" where they can. chunk: the most
    iterations in one call of the trainer, where that is not for the settings to choose. config: the
    settings as the run keeps them, where they differ from those given: a world of a file that may
    change goes by its content.
    """

    env: "PureEnv"
    make_evaluator: Callable[[Any, int], Evaluator]
    networks: "Networks"
    outcomes: "Callable[[PyTree], Mapping[str, Array]]" = lambda info: {}
    references: Callable[[Any, Any], Mapping[str, Evaluation]] = _RANDOM_PLAY
    data: "Callable[[], Dataset] | None" = None
    prior: Any = None
    make_trainer: "Callable[[TrainConfig, Problem], Any] | None" = None
    compiler_options: dict[str, Any] | None = None
    about: Callable[[Any], Mapping[str, Any]] = lambda run: {}
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    hooks: "Sequence[Hook]" = ()
    pictures: "Sequence[Hook]" = ()
    check_resume: Callable[[Mapping[str, Any]], None] = lambda header: None
    pure: bool = True
    no_memory: str = ""
    chunk: int | None = None
    config: "TrainConfig | None" = None
