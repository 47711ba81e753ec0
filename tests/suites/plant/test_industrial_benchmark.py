import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from worldloom.core.transforms import batch
from worldloom.suites.plant import industrial_benchmark as ib

STEPS, NUM = 200, 24
# Rows of a run under a load of 88 that comes with Siemens' code (MIT): velocity, gain, shift,
# angle, effective gain and velocity, negative miscalibration, fatigue before spikes, delayed cost.
PUBLISHED = np.asarray([
    [50.74475, 51.89863, 49.27068, -2, 0.303837, 0.103451, 0.624789, 57.8773, 149.9032],
    [50.09589, 48.84138, 51.33484, -3, 0.330316, 0.101601, 0.778994, 61.7422, 149.9032],
    [50.57040, 50.53826, 50.29031, -4, 0.315476, 0.102344, 0.853458, 59.4803, 149.9032],
    [51.22178, 55.16244, 49.57198, -5, 0.276809, 0.105932, 0.888197, 53.8149, 149.9032],
    [51.61578, 46.14952, 53.59930, -6, 0.354622, 0.094841, 0.660941, 62.4826, 149.9032],
    [51.63228, 43.17125, 49.64575, -5, 0.382667, 0.091468, 0.885053, 65.1236, 151.2410],
    [51.67041, 52.67070, 48.16952, -4, 0.297331, 0.102009, 0.897430, 55.9745, 152.1654],
    [51.75417, 49.48610, 49.63868, -3, 0.324635, 0.098244, 0.779700, 59.1301, 153.7051],
    [52.71811, 46.58936, 54.52490, -2, 0.350584, 0.092768, 0.630146, 60.8047, 155.8129],
    [53.23788, 39.71883, 53.08574, -1, 0.416802, 0.084082, 0.459544, 66.1490, 158.2287],
    [53.21669, 49.68171, 55.69204, 0, 0.322921, 0.095015, 0.291608, 57.2658, 157.7475],
    [53.69137, 52.53284, 54.26075, 1, 0.298487, 0.097022, 0.099526, 53.8237, 154.4972],
    [53.71922, 45.57056, 50.91970, 2, 0.359976, 0.089406, -0.102555, 60.6231, 152.8533],
    [53.23816, 38.61979, 55.78808, 3, 0.428056, 0.082880, -0.102590, 67.0096, 155.5532],
])  # fmt: skip

NAMES = {
    "load": "p", "velocity": "v", "gain": "g", "shift": "h", "fatigue": "fatigue",
    "consumption": "consumption", "angle": "angle", "domain": "domain", "response": "response",
    "hidden_velocity": "hidden_v", "hidden_gain": "hidden_g",
}  # fmt: skip


class Plain:
    """The paper's machine in float64, one step after the other, with the luck it is given."""

    def __init__(self, load):
        self.p, self.v, self.g, self.h = load, 50.0, 50.0, 50.0
        self.costs = [math.exp((2 * load + 325) / 100)] * 10
        self.domain, self.response, self.angle = 1, 1, 0
        self.hidden_v = self.hidden_g = 0.0
        self.change, self.left = 0.0, 0

    def step(self, u, uniform, normal, wander):
        self.move_load(uniform[6:], wander)
        self.v = min(max(self.v + u[0], 0), 100)
        self.g = min(max(self.g + u[1], 0), 100)
        self.h = min(max(self.h + u[2], 0), 100)
        self.tire(uniform, normal[0])
        self.costs = [*self.costs[1:], math.exp((2 * self.p + 4 * self.v + 2.5 * self.g) / 100)]
        weights = [0.11111, 0.22222, 0.33333, 0.22222, 0.11111]
        late = sum(w * c for w, c in zip(weights, self.costs[:5], strict=True))
        shift = min(max(5 * self.h / 100 - 0.02 * self.p - 1.5, -1.5), 1.5)
        self.turn(shift)
        mean = late + 25 * (self.potential(shift) + 1)
        self.consumption = mean - normal[1] * (1 + 0.005 * mean)

    def move_load(self, random, wander):
        if self.left == 0:
            self.left = 1 + int(99 * random[0])
            self.change = 0.0 if random[2] < 0.1 else 2 * random[1] - 1
        moved = self.p + wander * self.change
        if (moved > 100 or moved < 0) and random[3] > 0.5:
            self.change = -self.change
        self.p = min(max(moved, 0), 100)
        self.left -= 1

    def tire(self, uniform, normal):
        a, b = self.v - self.p + 101, self.g + self.p
        ratios = [(b + 2) / a, (self.p + 2) / (201 - self.p), (self.p + 102) / (101 - self.p)]
        self.eff_v = (ratios[0] - ratios[1]) / (ratios[2] - ratios[1])
        low, high = 1 / (101 + self.p), 1 / (1 + self.p)
        self.eff_g = (1 / (b + 1) - low) / (high - low)
        noises = []
        for eff, (one, two, three) in ((self.eff_g, uniform[:3]), (self.eff_v, uniform[3:6])):
            exponential = -0.1 * math.log(1 - one)
            noise = 2 * (1 / (1 + math.exp(-exponential)) - 0.5)
            happens = three < min(max(eff, 0.001), 0.999)
            noises.append(noise + (1 - noise) * two * happens * eff)
        self.hidden_g = self.amplify(self.hidden_g, self.eff_g, noises[0])
        self.hidden_v = self.amplify(self.hidden_v, self.eff_v, noises[1])
        spike = max(noises)
        if max(self.hidden_g, self.hidden_v) == 5.0:
            spike = 1 / (1 + math.exp(-(2.4 + 0.4 * normal)))
        self.basic = max(0, 30000 / (5 * self.v + 100) - 0.01 * self.g**2)
        self.fatigue = self.basic * (1 + 2 * spike) / 3

    @staticmethod
    def amplify(hidden, effective, noise):
        if effective <= 0.05:
            return effective
        if hidden >= 1.2:
            return min(5.0, 1.1 * hidden)
        return 0.9 * hidden + noise / 3

    def turn(self, shift):
        safe = abs(shift) <= math.sin(math.pi / 12) / 2
        if not safe:
            side = 1 if shift > 0 else -1
            if side != self.domain:
                self.response = 1
            self.domain = side
            if self.angle != -6 * self.domain:
                self.angle += self.response * side
        elif self.angle:
            self.angle -= 1 if self.angle > 0 else -1
        if abs(self.angle) >= 6:
            self.response = -1
            if abs(self.angle) > 6:
                self.angle = (12 - abs(self.angle)) * (1 if self.angle > 0 else -1)
        if self.angle == 0 and safe:
            self.domain = self.response = 1

    def potential(self, shift):
        def lowest(sine):
            q = math.sqrt(2 / 27) * abs(sine)
            if q >= math.sqrt(1 / 27):
                root = np.cbrt(q + math.sqrt(q * q - 1 / 27))
                return root + 1 / (3 * root)
            return math.sqrt(4 / 3) * math.cos(math.acos(q * math.sqrt(27)) / 3)

        sine = math.sin(self.angle * math.pi / 12)
        best, low = max(abs(sine), math.sin(math.pi / 12)), lowest(sine)
        r = abs(shift)
        if r <= best:
            r = r * low / best
        else:
            power = (2 - best) / (2 - low)
            r = low + (2 - low) / (2 - best) ** power * (r - best) ** power
        r = math.copysign(r, shift)
        deep, tilt = lowest(1.0), 8 * math.sqrt(2 / 27)
        scale = 2 * deep**2 - deep**4 + tilt * deep
        return (-2 * r**2 + r**4 - tilt * sine * r) / scale


@pytest.fixture(scope="module")
def given_draws(compiled_once):
    """given_draws(loads, actions, luck, **options): the states after each step, (steps, n)."""
    plant = ib.IndustrialBenchmark()

    @jax.jit
    def play(loads, actions, random, params):
        def run(load, actions, random):
            first = plant.start(jax.random.key(0), params.replace(
                physics=params.physics.replace(load=load, wander=0.0),
                disturbance=jnp.float32(0.0),
            ))  # fmt: skip
            first = first.replace(load_steps=jnp.int32(0))

            def one(x, given):
                x = plant.transition(x, given[0], jnp.int32(0), given[1], params)
                return x, x

            return jax.lax.scan(one, first, (actions, random))[1]

        return jax.vmap(run, (0, 1, 1), 1)(loads, actions, random)

    def run(loads, actions, random, **options):
        params = ib.make(**options).default_params()
        given = (jnp.asarray(x, jnp.float32) for x in (loads, actions))
        return play(*given, random, params)

    return run


def calm(steps, num):
    return ib.Draws(jnp.zeros((steps, num, 10)), jnp.zeros((steps, num, 2)))


def test_the_hidden_angle_and_all_costs_are_those_of_the_published_run(given_draws):
    knobs = np.concatenate([[[50.0] * 3], PUBLISHED[:, :3]])
    x = given_draws([88.0], np.diff(knobs, axis=0)[:, None], calm(len(PUBLISHED), 1))
    x = jax.tree.map(lambda leaf: leaf[:, 0], x)
    np.testing.assert_array_equal(x.angle, PUBLISHED[:, 3].astype(int))
    gain, velocity = (np.asarray(v) for v in (x.gain, x.velocity))
    np.testing.assert_allclose(ib.effective_gain(gain, 88.0), PUBLISHED[:, 4], atol=1e-5)
    seen = ib.effective_velocity(velocity, gain, 88.0)
    np.testing.assert_allclose(seen, PUBLISHED[:, 5], atol=1e-5)
    wrong = ib.miscalibration(x.angle, ib.effective_shift(x.shift, 88.0))
    np.testing.assert_allclose(-np.asarray(wrong), PUBLISHED[:, 6], atol=1e-5)
    np.testing.assert_allclose(ib.basic_fatigue(velocity, gain), PUBLISHED[:, 7], atol=1e-3)
    np.testing.assert_allclose((x.costs * ib.DELAYED).sum(1), PUBLISHED[:, 8], atol=1e-3)


@pytest.mark.parametrize("wander", [0.0, 1.0])
def test_with_the_same_luck_it_is_the_plain_machine(given_draws, wander):
    random = np.random.default_rng(1)
    loads = np.linspace(5.0, 95.0, NUM)
    # Each machine is pushed its own way, so that some run away and some are pulled back.
    bias = random.uniform(-0.6, 0.6, (NUM, 3))
    actions = np.clip(random.uniform(-1, 1, (STEPS, NUM, 3)) + bias, -1, 1)
    actions[150:] = np.clip(actions[150:] - 1.5 * bias, -1, 1)
    actions = (actions * [1.0, 10.0, ib.SHIFT_STEP]).astype(np.float32)
    uniform = random.random((STEPS, NUM, 10), np.float32)
    normal = random.standard_normal((STEPS, NUM, 2), np.float32)
    random = ib.Draws(jnp.asarray(uniform), jnp.asarray(normal))
    x = jax.tree.map(np.asarray, given_draws(loads, actions, random, wander=wander))
    worst = 0.0
    for i in range(NUM):
        plain = Plain(loads[i])
        plain.turn(min(max(2.5 - 0.02 * loads[i] - 1.5, -1.5), 1.5))  # the idle step
        plain.tire(np.zeros(6), 0.0)
        for t in range(STEPS):
            plain.step(actions[t, i].astype(float), uniform[t, i], normal[t, i], wander)
            seen = [getattr(x, ours)[t, i] for ours in NAMES]
            want = [getattr(plain, theirs) for theirs in NAMES.values()]
            np.testing.assert_allclose(seen, want, rtol=2e-4, atol=2e-3, err_msg=f"{i}, {t}")
            worst = max(worst, plain.hidden_v, plain.hidden_g)
    assert worst == 5.0  # one of them did run away
    assert len(np.unique(x.angle)) == 13


@pytest.fixture(scope="module")
def machines(compiled_once):
    """Compiled reset and step of 32 machines."""
    env = batch(ib.make(), 32)
    return jax.jit(env.reset), jax.jit(env.step)


def test_the_seen_reward_is_three_times_fatigue_and_consumption(machines):
    reset, step = machines
    params = ib.make().default_params()
    state, first = reset(jax.random.key(0), params)
    np.testing.assert_array_equal(first.obs[:, :4], np.tile([70.0, 50.0, 50.0, 50.0], (32, 1)))
    _, out = step(jax.random.key(1), state, jnp.zeros((32, 3)), params)
    np.testing.assert_allclose(out.reward, -(3.0 * out.obs[:, 4] + out.obs[:, 5]), rtol=1e-6)
    assert len(np.unique(out.obs[:, 4])) == 32
    assert len(np.unique(out.obs[:, 5])) == 32


def test_without_disturbance_fatigue_is_at_its_floor_and_the_model_knows_it(machines):
    reset, step = machines
    env = ib.make(disturbance=0.0)
    params, model = env.default_params(), jax.jit(jax.vmap(env.base.model()))
    state, out = reset(jax.random.key(0), params)
    for t in range(5):
        action = jnp.tile(jnp.asarray([0.5, -0.5, 0.3]) * (-1) ** t, (32, 1))
        told = model(out.obs, action)
        state, out = step(jax.random.key(t), state, action, params)
        np.testing.assert_allclose(told[:, :5], out.obs[:, :5], rtol=1e-5)
        floor = 30000.0 / (5.0 * out.obs[:, 1] + 100.0) - 0.01 * out.obs[:, 2] ** 2
        np.testing.assert_allclose(out.obs[:, 4], floor / 3.0, rtol=1e-5)


def test_ageing_adds_fatigue(machines):
    reset, step = machines
    params = ib.make(drift=1.0).default_params()
    state, _ = reset(jax.random.key(0), params)
    aged = state.replace(step=jnp.full(32, 1000, jnp.int32))
    new, old = (
        step(jax.random.key(1), at, jnp.zeros((32, 3)), params)[1].obs[:, 4] for at in (state, aged)
    )
    np.testing.assert_allclose(old, 1.3 * new, rtol=1e-5)
