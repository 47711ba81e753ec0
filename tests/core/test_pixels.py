"""Pictures of worlds: every suite has one, and a notebook shows it."""

from io import BytesIO

import jax
import numpy as np
import pytest
from PIL import Image

import worldloom
from oracles import guess
from worldloom.core.pixels import Pixels
from worldloom.core.transforms import as_pure


def test_a_png_holds_every_pixel(tmp_path):
    array = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)
    picture = Pixels(array)
    np.testing.assert_array_equal(np.asarray(Image.open(BytesIO(picture._repr_png_()))), array)
    np.testing.assert_array_equal(Image.open(picture.save(tmp_path / "a.png")), array)
    np.testing.assert_array_equal(np.asarray(picture), array)
    assert repr(picture) == "Pixels(7 x 5)"
    with pytest.raises(ValueError, match=r"a.gif: pixels are saved as .png"):
        picture.save(tmp_path / "a.gif")


@pytest.mark.parametrize(
    "world", ["tag", "arc", "reactor", pytest.param("biped", marks=pytest.mark.slow)]
)
def test_worlds_of_every_suite_are_drawn(world):
    env = worldloom.make(world)
    fresh = env.render()
    assert fresh.array.dtype == np.uint8
    assert min(fresh.array.shape[:2]) >= 120, "large enough to be seen"
    state, _ = jax.jit(env.reset)(jax.random.key(1), env.default_params())
    assert not np.array_equal(env.render(state), fresh), "another state, another picture"


def test_a_world_without_pictures_says_so():
    env = as_pure(guess.make())
    with pytest.raises(ValueError, match="has no picture"):
        env.render()
