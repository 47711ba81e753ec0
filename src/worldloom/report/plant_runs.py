"""Runs of plants for people: what `worldloom train reactor` and `worldloom eval` say."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from worldloom.core import mesh
from worldloom.report.plant_report import write_plant_report
from worldloom.track.arguments import name_values, parse
from worldloom.track.sinks import plain
from worldloom.train import plant
from worldloom.train.driver import Hook
from worldloom.train.plant_config import PlantTrainConfig
from worldloom.train.plant_evaluate import Outcome, PlantEvaluation
from worldloom.train.progress import PlantProgress
from worldloom.train.tracking import tracking_hooks


class PlantPictures(Hook):
    """report.html at the end of a run."""

    def on_end(self, run: plant.PlantRun) -> None:
        write_plant_report(run.folder)


def train_plant(
    settings: Mapping[str, Any], out: str | Path | None = None, report: bool = True
) -> plant.PlantRun:
    """Learns with the settings of a `PlantTrainConfig`."""
    config = PlantTrainConfig(**settings)
    folder = Path(out) if out else plant.new_folder(Path("runs"), config)
    return plant.run(config, folder, hooks=[PlantPictures()] if report else [])


# Commands ----------------------------------------------------------------------------------------


def train_command(argv: list[str]) -> int:
    """`worldloom train reactor ...`: learns from logged data, and says how it went."""
    import tyro

    base = _starting_point(argv)

    @dataclass(frozen=True)
    class Settings:
        algo: str = base.algo
        """bc, td3bc, iql, cql, rebrac or edac."""
        dataset: str = base.dataset
        """What a scripted controller logs (expert, medium, mixed, random), or an npz file."""
        seed: int = base.seed
        data_steps: int = base.data_steps
        """Rows that a scripted controller logs."""
        data_seed: int = base.data_seed
        epochs: int = base.epochs
        updates_per_epoch: int = base.updates_per_epoch
        batch_size: int = base.batch_size
        hidden: tuple[int, ...] = base.hidden
        constraints: str | None = base.constraints
        """A YAML file of constraints; without one, what the plant's limits amount to."""
        devices: int = base.devices
        chunk: int = base.chunk
        """Epochs in one compiled call, between which the host reports."""
        eval_every: int = base.eval_every
        """Epochs between evaluations in the plant; 0: only at the end."""
        eval_episodes: int = base.eval_episodes
        checkpoint_every: int = base.checkpoint_every
        judge_updates: int = base.judge_updates
        """Of fitted Q evaluation at the end; 0: no off-policy estimate."""

    @dataclass(frozen=True)
    class Train:
        env: Annotated[str, tyro.conf.Positional] = base.env
        """The plant; `worldloom envs` lists them."""
        world: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
        """Options of the plant, such as disturbance=0.5 horizon=300."""
        hyper: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=VALUE ...")] = ()
        """The algorithm's own numbers, such as alpha=2.5 gamma=0.95."""
        out: Path = Path("runs")
        """Folder in which the run gets a folder of its own."""
        resume: Path | None = None
        """Go on with this run folder from its newest checkpoint, to --epochs."""
        track: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = ()
        """Also show the run in mlflow or tensorboard."""
        report: bool = True
        """Write report.html."""
        json: bool = False
        """Print the result as JSON."""
        settings: Annotated[Settings, tyro.conf.arg(name="")] = field(default_factory=Settings)

    args = parse(Train, argv, "worldloom train", "learn to control a plant from logged data")
    chosen = {f.name: getattr(args.settings, f.name) for f in fields(Settings)}
    config = replace(
        base, env=args.env, world=dict(base.world) | name_values(args.world),
        hyper=dict(base.hyper) | name_values(args.hyper), **chosen,
    )  # fmt: skip
    if config.devices > 1:
        mesh.split_processor(config.devices)
    folder = args.resume or plant.new_folder(args.out, config)
    hooks: list[Hook] = [PlantProgress(), *([PlantPictures()] if args.report else [])]
    hooks += tracking_hooks(args.track, folder)
    again = shlex.join(["worldloom", "train", "--resume", str(folder)])
    command = shlex.join(["worldloom", "train", *argv])
    try:
        result = plant.run(
            config, folder, resume=args.resume is not None, hooks=hooks, command=command
        )
    except KeyboardInterrupt:
        if not (folder / "config.json").exists():
            raise
        print(f"stopped at once; go on from the last checkpoint: {again}", file=sys.stderr)
        return 130
    _tell(result, folder, again, args.json)
    return 130 if result.interrupted else 0


def _starting_point(argv: list[str]) -> PlantTrainConfig:
    """The settings that arguments change: a resumed run's own, or the defaults."""
    for n, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name == "--resume" and (equals or n + 1 < len(argv)):
            return plant.read_config(Path(value if equals else argv[n + 1]))
    return PlantTrainConfig()


def _tell(result: plant.PlantRun, folder: Path, again: str, as_json: bool) -> None:
    timing = result.timing()
    summary: dict[str, Any] = {"run": str(folder), "epoch": result.epoch} | timing
    if result.evaluation is not None:
        summary |= result.evaluation.to_dict()
    judged = folder / "judgement.json"
    if judged.exists():
        summary["judgement"] = json.loads(judged.read_text())
    if as_json:
        summary |= {"interrupted": result.interrupted, "resume": again}
        print(json.dumps(plain(summary), indent=2))
        return
    from worldloom.track.console import facts

    limits = [limit.name for limit in result.evaluator.env.base.plant.limits]
    shown = {"in the plant": "not evaluated yet"}
    if result.evaluation is not None:
        shown = scores_of(result.evaluation, limits)
    for estimate in summary.get("judgement", {}).get("estimates", []):
        shown[f"by {estimate['method']}"] = (
            f"{estimate['value']:.1f} ({estimate['low']:.1f} to {estimate['high']:.1f}) "
            f"discounted; in truth {summary['judgement']['true_return']:.1f}"
        )
    shown["training"] = (
        f"{timing['train_seconds']:.1f} s for {result.updates:,} updates "
        f"({timing['updates_per_second']:,.0f} updates/s)"
    )
    shown["compiling"] = f"{timing['compile_seconds']:.1f} s"
    shown["run folder"] = str(folder)
    if (folder / "report.html").exists():
        shown["report"] = str(folder / "report.html")
    if result.interrupted:
        shown["go on with"] = again
    elif result.epoch:
        shown["ship it with"] = shlex.join(["worldloom", "export", str(folder)])
    config = result.config
    facts(f"{config.env}, {config.algo} on {config.dataset}, seed {config.seed}", shown)


def scores_of(evaluation: PlantEvaluation, limits: Sequence[str]) -> dict[str, str]:
    """What the episodes came to, in lines for people."""
    lines = {}
    for name, outcome in (("bare", evaluation.bare), ("filtered", evaluation.filtered)):
        told = outcome.to_dict()
        lines[f"return, {name}"] = f"{told['return']:.1f} +- {told['return_stderr']:.1f} (s.e.)"
        lines[f"limits, {name}"] = _crossed(outcome, limits)
    lines["filter"] = (
        f"acts in {evaluation.filtered.interventions:.1%} of the steps, "
        f"{evaluation.filtered.emergencies:.2%} are emergency actions"
    )
    if evaluation.score is not None:
        lines["normalised score"] = f"{evaluation.score:.1f}, as NeoRL-2 has it, bare"
    return lines


def _crossed(outcome: Outcome, limits: Sequence[str]) -> str:
    crossed = [
        f"{name} in {share:.2%}"
        for name, share in zip(limits, outcome.violated, strict=True) if share > 0.0
    ]  # fmt: skip
    return "crossed: " + ", ".join(crossed) + " of the steps" if crossed else "never crossed"


def eval_command(argv: list[str]) -> int:
    """`worldloom eval RUN` for a run of a plant: whole episodes, bare and filtered."""
    import tyro

    @dataclass
    class Eval:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run of a plant."""
        episodes: int | None = None
        """How many to play; by default as many as in training."""
        seed: int = 0
        json: bool = False

    args = parse(Eval, argv, "worldloom eval", "score a run of a plant")
    loaded = plant.load_run(args.target)
    result = loaded.evaluate(args.episodes, args.seed)
    if args.json:
        summary = {"run": str(args.target), "epoch": loaded.epoch} | result.to_dict()
        print(json.dumps(plain(summary), indent=2))
        return 0
    from worldloom.track.console import facts

    limits = [limit.name for limit in loaded.env.base.plant.limits]
    facts(f"{args.target}, epoch {loaded.epoch}", scores_of(result, limits))
    return 0
