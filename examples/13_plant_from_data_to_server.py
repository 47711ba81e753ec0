"""A reactor's controller: learned from logged data, evaluated, exported with its filter, served.

python examples/13_plant_from_data_to_server.py [--quick]      needs: pip install 'worldloom[serve]'

What it does is what these commands do, one after the other:

    worldloom train reactor --algo iql --dataset medium
    worldloom eval runs/RUN
    worldloom export runs/RUN
    worldloom serve runs/RUN/bundle --no-token
    worldloom audit replay runs/RUN/audit.jsonl runs/RUN/bundle
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from worldloom.cli import main as cli

SMALL = (
    "--data-steps 2000 --steps 100 --iql.updates-per-iteration 50 --iql.batch-size 32 "
    "--iql.hidden 16 16 --eval-episodes 4 --ope-updates 50 --world.horizon 30 --no-report"
)


def worldloom(line: str) -> None:
    """Runs a command in this process."""
    code = cli.main(line.split())
    if code:
        sys.exit(code)


def main(quick: bool) -> None:
    root = Path(tempfile.mkdtemp(prefix="worldloom-plant-"))
    more = SMALL if quick else "--steps 30000"
    worldloom(f"train reactor --algo iql --dataset medium --out {root} {more}")
    (folder,) = root.iterdir()
    ope = json.loads((folder / "ope.json").read_text())
    print("discounted return, estimated from data alone:")
    for estimate in ope["estimates"]:
        print(f"  {estimate['value']:.1f} by {estimate['method']}")
    print(f"  {ope['true_return']:.1f} in truth")

    worldloom(f"eval {folder} --episodes 8")
    worldloom(f"export {folder} --no-onnx")
    bundle = folder / "bundle"
    serve = ["serve", str(bundle), "--no-token", "--port", "0", "--json", "--deadline", "5"]
    command = [str(Path(sys.executable).with_name("worldloom")), *serve]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        measured = [0.5, 350.0, 300.0, 350.0, 0.55]  # as `worldloom.make("reactor")` orders them
        standing = {"jacket_setpoint": 300.0, "feed": 100.0}  # where the actuators are at first
        for _ in range(3):
            request = {"plant": "north", "observation": measured, "previous": standing}
            body = json.dumps(request).encode()
            asked = urllib.request.Request(f"{url}/act", body, {"Content-Type": "application/json"})
            with urllib.request.urlopen(asked, timeout=30) as answer:
                decision = json.load(answer)
            print(f"do {decision['action']}", "in an emergency" * decision["emergency"])
        server.terminate()
    # What the server wrote down is executed again, and must be the same to the bit.
    worldloom(f"audit replay {folder / 'audit.jsonl'} {bundle}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny run, to see that it works")
    main(parser.parse_args().quick)
