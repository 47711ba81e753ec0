"""Tasks drawn from rule families, inside jit: so that no world pays for another's rule.

A `lax.switch` under `vmap` would compute every family for every task; here each program draws the
tasks of its own families, mapped over the numbers that tell them apart, and the blocks are joined.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from worldloom.core import draws
from worldloom.core.compiling import quick_compile
from worldloom.core.names import suggest
from worldloom.core.types import Array, Key
from worldloom.suites.arc import planes
from worldloom.suites.arc.generators import objects, resized, whole
from worldloom.suites.arc.generators.grids import Example, Family, Level, draw_rule
from worldloom.suites.arc.tasks import Pair, Task, TaskSet
from worldloom.suites.arc.types import TaskBuffer

FAMILIES: dict[str, Family] = whole.FAMILIES | objects.FAMILIES | resized.FAMILIES
# Every sixth by name, chosen before anything was trained.
HELD_OUT: tuple[str, ...] = tuple(sorted(FAMILIES)[3::6])
TRAINED: tuple[str, ...] = tuple(name for name in FAMILIES if name not in HELD_OUT)


def family_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of families, all known: "trained" and "held-out" stand for many, none for trained."""
    many = {"trained": TRAINED, "held-out": HELD_OUT, "all": tuple(FAMILIES)}
    chosen = [each for name in names or ("trained",) for each in many.get(name, (name,))]
    for name in chosen:
        if name not in FAMILIES:
            hint = suggest(name, [*many, *FAMILIES])
            raise ValueError(f"arc: there is no family {name!r} of rules; {hint}")
    return tuple(dict.fromkeys(chosen))


def draw_examples(
    key: Key, families: Sequence[str], per_family: int, pairs: int, level: Level
) -> Example:
    """Tasks of each family, one family after the other: leaves (F * per_family, pairs, ...)."""

    def task(draw: Callable[..., Example], numbers: dict[str, Array], key: Key) -> Example:
        rule_key, pair_key = draws.split(key)
        rule = draw_rule(rule_key)
        return jax.vmap(lambda k: draw(rule, k, level, **numbers))(draws.split(pair_key, pairs))

    def family_keys(n: Array) -> Key:
        return draws.split(jax.random.fold_in(key, n), per_family)

    keys = jax.vmap(family_keys)(jnp.arange(len(families)))
    members: dict[Callable[..., Example], list[int]] = {}
    for n, name in enumerate(families):
        members.setdefault(FAMILIES[name].draw, []).append(n)
    blocks = []
    for draw, own in members.items():
        each = [FAMILIES[families[n]].numbers for n in own]
        numbers = {name: jnp.array([one[name] for one in each]) for name in each[0]}
        of_family = jax.vmap(partial(task, draw), (None, 0))
        blocks.append(jax.vmap(of_family)(numbers, keys[np.array(own)]))
    place = np.argsort(np.concatenate(list(members.values())))

    def joined(*leaves: Array) -> Array:
        both = jnp.concatenate(leaves)[place]
        return both.reshape(-1, *both.shape[2:])

    return jax.tree.map(joined, *blocks)


def to_planes(cells: Array, words: int) -> Array:
    """Grids of uint32 (..., 4, words) from colours (..., H, W), inside jit."""
    bits = [(cells >> p) & 1 for p in range(planes.PLANES)]
    return jnp.stack([planes.pack_plane(bit.astype(bool), words) for bit in bits], axis=-2)


def to_buffer(examples: Example, demonstrations: int) -> TaskBuffer:
    """The tasks (T, pairs) as worlds take them: so many pairs demonstrate, the rest are tests."""
    tasks, pairs, side = examples.input.shape[:3]
    words = planes.words_for((side, side))
    grids = jnp.stack([examples.input, examples.output], axis=2)
    sizes = jnp.stack([examples.input_size, examples.output_size], axis=2)
    packed = to_planes(grids, words).reshape(tasks * pairs, 2, planes.PLANES, words)
    start = jnp.arange(tasks, dtype=jnp.int32) * pairs
    mixed = packed.reshape(-1) * (jnp.arange(packed.size, dtype=jnp.uint32) * 2 + 1)
    return TaskBuffer(
        grids=packed,
        sizes=sizes.reshape(-1, 2, 2),
        task=jnp.repeat(jnp.arange(tasks, dtype=jnp.int32), pairs),
        demos_start=start,
        demos_count=jnp.full(tasks, demonstrations, jnp.int32),
        tests_start=start + demonstrations,
        tests_count=jnp.full(tasks, pairs - demonstrations, jnp.int32),
        identity=mixed.sum(dtype=jnp.uint32),
        grid_shape=(side, side),
    )


def generate(
    families: Sequence[str] = (),
    per_family: int = 8,
    seed: int = 0,
    demonstrations: int = 3,
    tests: int = 1,
    level: Level | None = None,
) -> TaskSet:
    """A set of drawn tasks, on the host; the families are its groups. None named: those trained."""
    names, level = family_names(families), level or Level()
    draw = jax.jit(
        lambda key: draw_examples(key, names, per_family, demonstrations + tests, level)[:4],
        compiler_options=quick_compile(),
    )
    inputs, input_sizes, outputs, output_sizes = map(np.asarray, draw(jax.random.key(seed)))

    def pair(task: int, n: int) -> Pair:
        (h, w), (high, wide) = input_sizes[task, n], output_sizes[task, n]
        return Pair(
            inputs[task, n, :h, :w].astype(np.int8), outputs[task, n, :high, :wide].astype(np.int8)
        )

    made, groups = [], {}
    for task in range(len(inputs)):
        name = names[task // per_family]
        title = f"{name.replace(' ', '-')}-{task % per_family}"
        every = [pair(task, n) for n in range(demonstrations + tests)]
        made.append(Task(title, tuple(every[:demonstrations]), tuple(every[demonstrations:])))
        groups[name] = (*groups.get(name, ()), title)
    return TaskSet(tuple(made), "generated", "all", groups)
