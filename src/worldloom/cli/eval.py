"""`worldloom eval RUN`: scores of a trained run, a film of it, or a game against it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from worldloom.cli.settings import flag_help, read_request, split_flags
from worldloom.core.names import suggest
from worldloom.training import console


@dataclass(frozen=True)
class Flags:
    """What the command takes."""

    episodes: int | None = None  # how many to play; by default as many as in training
    seed: int = 0  # of the episodes
    gif: str | None = None  # also write a GIF of one episode here
    record: str | None = None  # also write the episodes as a dataset for offline algorithms (npz)
    partners: str | None = None  # score its agents beside those of the runs in this folder instead
    human: bool = False  # play agent 0 yourself; a run's agents play the others
    json: bool = False  # print the result as JSON


USAGE = """usage: worldloom eval RUN [options]
       worldloom eval WORLD --human [--world.NAME VALUE ...]

Plays whole episodes of a run's newest checkpoint without exploration, and says
how they went. Runs of every suite; --gif is for gridworlds, games and robots,
--partners and --human for gridworlds."""


def command(argv: list[str]) -> int:
    """Plays whole episodes without exploration, and says how they went."""
    if not argv or "--help" in argv or "-h" in argv:
        print(f"{USAGE}\n\n{flag_help(Flags)}")
        return 0
    named, flags, others = split_flags(argv, Flags)
    if named is None:
        raise ValueError("name a run folder first, as in: worldloom eval runs/NAME")
    if flags.human:
        return _play(named, others, flags)
    if others:
        known = [f"--{field.name}" for field in fields(Flags)]
        raise ValueError(f"{others[0]}: no such option; {suggest(others[0], known)}")
    import worldloom
    from worldloom.training.evaluate import reference_lines

    console.phase("loading the run")
    run = worldloom.load(named)
    if flags.gif and not flags.gif.endswith(".gif"):
        raise ValueError(f"--gif {flags.gif}: the film is a .gif file")
    if flags.gif and run.suite.film is None:
        raise ValueError(f"--gif: runs of the {run.suite.name} suite have no film")
    console.phase("evaluating")
    if flags.partners:
        return _play_with_partners(run, named, flags)
    result = run.evaluate(flags.episodes, flags.seed)
    if flags.gif:
        assert run.suite.film is not None
        console.phase("filming")
        run.suite.film(run, Path(flags.gif), flags.seed)
    if flags.record:
        from worldloom.replay import dataset_files
        from worldloom.training.recording import record_episodes

        console.phase("recording")
        data = record_episodes(run, flags.episodes or run.config.eval_episodes, flags.seed)
        dataset_files.save(data, flags.record)
    written = {"gif": flags.gif, "record": flags.record}
    if flags.json:
        scores = {"run": named, "steps": run.steps} | result.to_dict()
        console.print_json(scores | {"references": run.references()} | written)
        return 0
    made = {name: Path(path) for name, path in written.items() if path}
    lines = result.lines() | reference_lines(run.references(), result)
    console.facts(f"{named}, step {run.steps:,}", lines | made)
    bundle = (run.folder / "bundle" / "manifest.json").is_file()
    console.next_steps(["export", named, *(["--force"] if bundle else [])])
    return 0


def _play_with_partners(run: Any, named: str, flags: Flags) -> int:
    if run.suite.partners is None:
        raise ValueError(f"--partners: runs of the {run.suite.name} suite play alone")
    if flags.gif or flags.record:
        raise ValueError("--partners gives scores alone; leave --gif and --record out")
    result = run.suite.partners(run, Path(flags.partners or ""), flags.episodes, flags.seed)
    if flags.json:
        console.print_json({"run": named, "steps": run.steps} | result.to_dict())
        return 0
    console.facts(f"{named}, step {run.steps:,}", result.lines())
    console.next_steps(["report", named])
    return 0


def _play(named: str, others: list[str], flags: Flags) -> int:
    import worldloom
    from worldloom import suites

    target: Any
    if (Path(named) / "config.json").exists():
        target = worldloom.load(named)
        suite = target.suite
    else:
        asked = read_request(named, others)
        suite, target = asked.schema.suite, suites.make(named, **asked.config.world)
    if suite.play is None:
        raise ValueError(f"--human: {named} is not a world that people can play here")
    console.end()  # the terminal is the player's now
    suite.play(target, flags.seed)
    return 0
