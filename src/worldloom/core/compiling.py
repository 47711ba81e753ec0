"""Options for XLA where a program takes long to compile for what it computes."""

import functools
from typing import Any

import jax


def quick_compile(**options: Any) -> dict[str, Any]:
    """Compiler options for programs of many small loops, such as worlds; and `options` with them.

    On a CPU their loops are written the older way, without fusion emitters: MJX's step then
    compiles in 17 s instead of 29, an ARC rollout in 2.3 s instead of 2.9, and both run at about
    the same speed. Networks do not gain: PPO on ARC lost an eighth of its speed. Elsewhere, and in
    an XLA that knows no other way (jaxlib 0.12), there is nothing to set.

    Only the outermost jit takes options: `jax.jit(play, compiler_options=quick_compile())`.
    """
    if jax.default_backend() != "cpu":
        return {}
    name = "xla_cpu_use_fusion_emitters"
    return ({name: False} if _is_known(name) else {}) | options


@functools.cache
def _is_known(option: str) -> bool:
    """Whether this XLA can be told that a flag is off."""
    try:
        jax.jit(lambda: 0, compiler_options={option: False}).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
