"""`python -m benchmarks.merge PART.json RESULT.json`: sections measured apart, in a result file.

Each section keeps the command, the commit and the date it was measured with.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from worldloom.core.files import read_json, write_json

# Entries of `raw` that a section writes besides the one of its own name.
BESIDES = {"scores": ("published_scores",), "server": ("killed", "wedged")}


def merge(result: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """`result` with the sections that `part` measured; a ValueError where that would be wrong."""
    for name in ("kind", "suite"):
        if result.get(name) != part.get(name):
            raise ValueError(f"{name}: {part.get(name)!r} does not go into {result.get(name)!r}")
    if part.get("quick"):
        raise ValueError("a quick run's figures mean nothing; measure in full size")
    if part["errors"] or not part["complete"]:
        raise ValueError(f"the part is not whole: {part['errors'] or 'it was stopped'}")
    merged = json.loads(json.dumps(result))
    # What was measured before, in one run, has its date.
    known = merged.setdefault("measured", {})
    for name in merged.get("sections", ()):
        known.setdefault(name, {"date": result["date"], "command": result["command"]})
    for name, facts in part["measured"].items():
        for entry in (name, *BESIDES.get(name, ())):
            if entry in part["raw"]:
                merged["raw"][entry] = part["raw"][entry]
        merged["raw"].pop(f"{name}_measured_apart", None)
        known[name] = facts | {"command": part["command"]}
        known[name] |= {
            key: part[key] for key in ("machine", "versions") if part[key] != result[key]
        }
        if name in part.get("skipped", {}):
            raise ValueError(f"{name} was skipped: {part['skipped'][name]}")
        merged.get("skipped", {}).pop(name, None)
    merged["ratios"] |= {name: x for name, x in part["ratios"].items() if x is not None}
    if "sections" in merged:
        merged["sections"] += [name for name in part["measured"] if name not in merged["sections"]]
    return merged


def main(argv: Sequence[str]) -> int:
    """Writes the merged result in the place of the old one; 0, or 2 and a line."""
    if len(argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    part, result = map(Path, argv)
    try:
        write_json(result, merge(read_json(result), read_json(part)))
    except (OSError, ValueError, KeyError) as error:
        print(f"{part} into {result}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
