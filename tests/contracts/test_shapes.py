"""The shapes in public signatures are checked while tests run, and only then."""

import importlib
import inspect

import jax
import jax.numpy as jnp
import pytest
from jaxtyping import TypeCheckError

from shape_checker import is_shape
from worldloom.nn.values import epsilon_greedy, take_action
from worldloom.replay.ring import Ring
from worldloom.safety.projection import project


def functions_of(module):
    """The functions of a module and of its classes; of properties their getters."""
    for value in vars(module).values():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        for member in vars(value).values() if inspect.isclass(value) else [value]:
            function = member.fget if isinstance(member, property) else member
            if inspect.isfunction(function):
                yield function


def test_every_listed_module_says_a_shape(pytestconfig):
    *modules, _ = pytestconfig.getoption("jaxtyping_packages").split(",")
    for name in modules:
        functions = functions_of(importlib.import_module(name))
        hints = [hint for f in functions for hint in inspect.get_annotations(f).values()]
        assert any(map(is_shape, hints)), f"{name} is listed but no annotation in it has a shape"


def test_an_action_for_each_row():
    with pytest.raises(TypeCheckError, match="take_action"):
        take_action(jnp.zeros((4, 3)), jnp.zeros(5, jnp.int32))
    with pytest.raises(TypeCheckError, match="take_action"):
        take_action(jnp.zeros((4, 3)), jnp.zeros(4))  # numbers of actions are whole


def test_a_row_of_values_for_each_choice():
    with pytest.raises(TypeCheckError, match="epsilon_greedy"):
        epsilon_greedy(jnp.zeros(3), jax.random.key(0), 0.1)


def test_bounds_for_each_row_of_a_projection():
    box = -jnp.ones(2), jnp.ones(2)
    with pytest.raises(TypeCheckError, match="project"):
        project(jnp.zeros(2), jnp.ones((3, 2)), jnp.ones(2), *box, 4)


def test_methods_are_checked_under_transformations():
    ring = Ring(capacity=8)
    with pytest.raises(TypeCheckError, match="age"):
        jax.vmap(lambda slot: ring.age(None, slot))(jnp.zeros(3))
