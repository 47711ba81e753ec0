"""`worldloom export RUN` for a plant: the policy with its safety filter, as a bundle to serve."""

import json
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from worldloom.deploy.plant_export import export_bundle, observation_statistics
from worldloom.track.arguments import parse


def command(argv: list[str]) -> int:
    """Writes the bundle, and says what is in it."""
    import tyro

    @dataclass
    class Export:
        target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
        """The folder of a run of a plant."""
        out: Path | None = None
        """Where to write the bundle; a folder named bundle in the run's own by default."""
        onnx: bool = True
        """Also write the policy and its filter as ONNX, checked against the compiled one."""
        json: bool = False
        """Print the manifest as JSON."""

    args = parse(Export, argv, "worldloom export", "write a policy with its filter as a bundle")
    from worldloom.train import plant

    loaded = plant.load_run(args.target)
    known = plant.facts(loaded.env)
    folder = export_bundle(
        args.out or args.target / "bundle",
        loaded.policy,
        loaded.constraints,
        signals={"observation": known["observation"], "action": known["action"]},
        statistics=observation_statistics(loaded.data.rows.obs),
        constraint_text=(args.target / plant.CONSTRAINTS_FILE).read_text(encoding="utf-8"),
        provenance={
            "env": loaded.config.env, "algo": loaded.config.algo, "seed": loaded.config.seed,
            "epoch": loaded.epoch, "data": loaded.data.name, "data_digest": loaded.data.digest,
        },
        onnx=args.onnx,
    )  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    if args.json:
        print(json.dumps(manifest, indent=2))
        return 0
    from worldloom.track.console import facts

    facts(
        f"{args.target}, epoch {loaded.epoch}",
        {
            "bundle": str(folder),
            "files": ", ".join(sorted(manifest["files"])),
            "serve it with": shlex.join(["worldloom", "serve", str(folder)]),
        },
    )
    return 0
