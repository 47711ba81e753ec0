"""`worldloom export RUN`: a trained robot's policy as a bundle for the machine that runs it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from worldloom.deploy.export import export_policy
from worldloom.track.arguments import parse


def command(argv: list[str]) -> int:
    """Writes the bundle, and says what is in it."""
    import tyro

    @dataclass
    class Export:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run of the biped."""
        out: Path | None = None
        """Where to write the bundle; a folder named bundle in the run's own by default."""
        json: bool = False
        """Print the manifest as JSON."""

    args = parse(Export, argv, "worldloom export", "write a trained policy as a bundle")
    from worldloom.train.driver import env_of

    suite = env_of(args.target)
    if suite != "biped":
        raise ValueError(f"{args.target} is a run of {suite}; only policies of the biped export")
    from worldloom.train.robot import load_run, read_config

    if read_config(args.target).by_brax:
        raise ValueError(
            f"{args.target} was learned by Brax's PPO, whose networks the numpy runtime does not "
            "know; export a run of our own PPO: level 1, 3 or 4"
        )
    loaded = load_run(args.target)
    folder = export_policy(
        args.out or args.target / "bundle", loaded.world.robot, loaded.world.task,
        loaded.agents.params, activation=loaded.config.network.activation,
        normaliser=loaded.agents.normaliser,
    )  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    if args.json:
        print(json.dumps(manifest, indent=2))
        return 0
    from worldloom.track.console import facts

    layers = " - ".join(str(size) for size in manifest["network"]["layers"])
    facts(
        f"{args.target}, update {loaded.update}",
        {
            "bundle": str(folder),
            "network": f"{layers}, {manifest['network']['activation']}",
            "runs at": f"{manifest['control']['rate_hz']} Hz, with numpy alone",
            "check it": f"python {folder / 'policy_runtime.py'}",
        },
    )
    return 0
