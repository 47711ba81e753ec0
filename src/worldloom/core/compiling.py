"""Options for XLA where a program takes long to compile for what it computes."""

from typing import Any

import jax


def quick_compile(**options: Any) -> dict[str, Any]:
    """Compiler options for programs of many small loops, such as worlds; and `options` with them.

    On a CPU their loops are written the older way, without fusion emitters: MJX's step then
    compiles in 17 s instead of 29, an ARC rollout in 2.3 s instead of 2.9, and both run at about
    the same speed. Networks do not gain: PPO on ARC lost an eighth of its speed. Elsewhere there
    is nothing to set.

    Only the outermost jit takes options: `jax.jit(play, compiler_options=quick_compile())`.
    """
    if jax.default_backend() != "cpu":
        return {}
    return {"xla_cpu_use_fusion_emitters": False} | options
