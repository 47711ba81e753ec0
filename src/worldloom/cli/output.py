"""What commands print: JSON for programs, facts for people."""

import json
from typing import Any

from worldloom.core.files import plain


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    print(json.dumps(plain(value), indent=2))
