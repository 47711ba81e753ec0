import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import ode

from worldloom.core.transforms import batch
from worldloom.suites.plant import patients, simglucose
from worldloom.suites.plant.types import EnvironmentState

NAMES = patients.NAMES["train"] + patients.NAMES["test"]
HOURS = 10
STEPS = HOURS * 20


def rates(x, p, insulin, food, meal):
    """The published equations once more, for states (13, n); insulin in U/min, food in g/min."""
    d = np.zeros_like(x)
    stomach = x[0] + x[1]
    with np.errstate(divide="ignore", invalid="ignore"):
        alpha, beta = 5 / (2 * meal * (1 - p.b)), 5 / (2 * meal * p.d)
        tanhs = np.tanh(alpha * (stomach - p.b * meal)) - np.tanh(beta * (stomach - p.d * meal))
    kempt = np.where(meal > 0, p.kmin + (p.kmax - p.kmin) / 2 * (tanhs + 2), p.kmax)
    d[0] = -p.kmax * x[0] + 1000 * food
    d[1] = p.kmax * x[0] - kempt * x[1]
    d[2] = kempt * x[1] - p.kabs * x[2]
    ra = p.f * p.kabs * x[2] / p.BW
    egp = np.maximum(p.kp1 - p.kp2 * x[3] - p.kp3 * x[8], 0)
    e = np.where(x[3] > p.ke2, p.ke1 * (x[3] - p.ke2), 0)
    uid = (p.Vm0 + p.Vmx * x[6]) * x[4] / (p.Km0 + x[4])
    d[3] = egp + ra - p.Fsnc - e - p.k1 * x[3] + p.k2 * x[4]
    d[4] = -uid + p.k1 * x[3] - p.k2 * x[4]
    d[5] = -(p.m2 + p.m4) * x[5] + p.m1 * x[9] + p.ka1 * x[10] + p.ka2 * x[11]
    d[6] = -p.p2u * x[6] + p.p2u * (x[5] / p.Vi - p.Ib)
    d[7] = -p.ki * (x[7] - x[5] / p.Vi)
    d[8] = -p.ki * (x[8] - x[7])
    d[9] = -(p.m1 + p.m30) * x[9] + p.m2 * x[5]
    d[10] = insulin * 6000 / p.BW - (p.kd + p.ka1) * x[10]
    d[11] = p.kd * x[10] - p.ka2 * x[11]
    d[12] = p.ksc * (x[3] - x[12])
    for i in (3, 4, 5, 9, 10, 11, 12):
        d[i] *= x[i] >= 0
    return d


def accurate(p, insulin, start_minute):
    """Glucose (minutes + 1, n) in mg/dL at full minutes, for insulin (steps, n) in U/min."""
    n = len(p.BW)
    zero = np.zeros(n)
    x = np.stack([zero, zero, zero, p.Gpb, p.Gtb, p.Ipb, zero, p.Ib, p.Ib, p.Ilb,
                  p.isc1ss, p.isc2ss, p.Gpb])  # fmt: skip
    meals = {420: 45, 570: 10, 720: 70, 900: 10, 1080: 80, 1290: 10}
    glucose, left, last, before, eaten = [x[12] / p.Vg], 0.0, 0.0, zero, 0.0
    for t in range(3 * len(insulin)):
        left += meals.get((start_minute + t) % 1440, 0)
        food = min(5.0, left)
        left -= food
        if food > 0 and last == 0:
            before, eaten = x[0] + x[1], 0.0
        eaten, last = eaten + food, food

        def change(_, y, food=food, u=insulin[t // 3], meal=before + 1000 * eaten):
            return rates(y.reshape(13, n), p, u, food, meal).ravel()

        solver = ode(change).set_integrator("dopri5", rtol=1e-8, atol=1e-6)
        x = solver.set_initial_value(x.ravel(), 0.0).integrate(1.0).reshape(13, n)
        assert solver.successful()
        glucose.append(x[12] / p.Vg)
    return np.asarray(glucose)


@pytest.fixture(scope="module")
def run(compiled_once):
    """run(patients, hours, insulin): what thirty people do from full hours on."""
    plant = simglucose.Simglucose(NAMES)
    env = simglucose.make()
    numbers = plant.physics()

    @jax.jit
    def play(patient, hour, insulin, params):
        def day(patient, hour, insulin):
            x = plant.begin(patient, hour, params)
            state = EnvironmentState(x, jnp.int32(0), jnp.zeros(1, jnp.float32))

            def one(state, dose):
                action = env.base.action(dose[None])
                state, out = env.step(jax.random.key(0), state, action, params)
                return state, (state.x, out)

            return jax.lax.scan(one, state, insulin)[1]

        return jax.vmap(day)(patient, hour, insulin.T)

    def run(insulin, hour=6, **options):
        params = simglucose.make(**options).default_params()
        params = params.replace(physics=params.physics.replace(patients=numbers.patients))
        who = jnp.arange(len(NAMES))
        return play(who, jnp.full(len(NAMES), hour), jnp.asarray(insulin, jnp.float32), params)

    return run


@pytest.fixture(scope="module")
def people():
    return patients.Patient(*patients.figures(NAMES).T)


@pytest.fixture(scope="module")
def basal(people):
    return people.u2ss * people.BW / 6000.0


def test_all_thirty_follow_an_accurate_solver_through_a_morning_of_meals(run, people, basal):
    luck = np.random.default_rng(0).uniform(0.5, 2.0, (STEPS, len(NAMES)))
    insulin = (basal * luck).astype(np.float32)
    # Doses as the pump gives them: the rounding is not the integrator's error.
    given = np.round(insulin.astype(np.float64) * 6000 / 0.05) * 0.05 / 6000
    wanted = accurate(people, given, 6 * 60)
    x, out = run(insulin)
    sensed = np.clip(wanted, 10.0, 600.0)
    np.testing.assert_allclose(np.asarray(x.sensor).T, sensed[3::3], atol=0.05)
    held = (2.0 * sensed[:-1:3] + sensed[3::3]) / 3.0
    np.testing.assert_allclose(np.asarray(out.obs)[:, :, 0].T, held, atol=0.05)
    means = wanted[1:].reshape(STEPS, 3, -1).mean(1)
    np.testing.assert_allclose(np.asarray(x.mean).T, means, atol=0.05)
    assert wanted.max() - wanted.min() > 100.0  # it was not a quiet morning


def test_who_fasts_on_basal_insulin_stays_at_basal_glucose(run, people, basal):
    x, _ = run(np.tile(basal, (STEPS, 1)), disturbance=0.0)
    np.testing.assert_allclose(x.sensor[:, -1], people.Gpb / people.Vg, atol=1.0)


def test_meals_are_eaten_at_their_hours_five_grams_a_minute(run, basal):
    x, _ = run(np.tile(basal, (STEPS, 1)), hour=11)
    eaten = np.asarray(x.eaten[0])  # of the last meal, after every third minute
    bites = np.asarray(x.bite[0])
    lunch = 60 // 3
    np.testing.assert_array_equal(eaten[lunch - 1 : lunch + 6], [0, 15, 30, 45, 60, 70, 70])
    assert bites[lunch - 1] == 0.0
    assert bites[lunch] == 5.0
    assert eaten[(15 - 11) * 20 + 2] == 10.0
    assert eaten[(18 - 11) * 20 + 8] == 80.0
    np.testing.assert_array_equal(x.minute[:, -1], (11 * 60 + 600) % 1440)


def test_more_insulin_means_less_glucose_and_in_the_end_the_end(run, basal):
    less, _ = run(np.tile(basal, (STEPS, 1)))
    more, out = run(np.tile(20.0 * basal, (STEPS, 1)))
    assert (np.asarray(more.sensor[:, -1]) < np.asarray(less.sensor[:, -1])).all()
    low = np.asarray(more.mean) < 40.0
    assert low.any()
    np.testing.assert_array_equal(np.asarray(out.terminated), low)
    assert (np.asarray(out.reward)[np.asarray(more.reading) <= 40.0] == -15.0).all()


def test_resistance_that_grows_leaves_glucose_higher(run, basal):
    calm, _ = run(np.tile(2.0 * basal, (STEPS, 1)))
    worn, _ = run(np.tile(2.0 * basal, (STEPS, 1)), drift=1.0)
    assert (np.asarray(worn.sensor[:, -1]) > np.asarray(calm.sensor[:, -1])).all()


def test_the_model_is_right_about_somebody_at_rest(run, people, basal):
    _, out = run(np.tile(basal, (STEPS, 1)), disturbance=0.0)
    env = simglucose.make()
    action = env.base.action(jnp.asarray(basal, jnp.float32)[:, None])
    told = jax.jit(jax.vmap(env.base.model()))(out.obs[:15, -2], action[:15])
    np.testing.assert_allclose(told, out.obs[:15, -1], atol=0.3)


def test_the_model_with_its_state_knows_how_far_a_dose_takes_somebody_down(run, basal):
    """Hours ahead, from the first sensor reading alone: insulin under way is followed."""
    doses = np.concatenate([np.tile(8.0 * basal, (10, 1)), np.tile(0.0 * basal, (STEPS - 10, 1))])
    _, out = run(doses, disturbance=0.0)
    env, obs = simglucose.make(), np.asarray(out.obs[:15])
    model, hidden = env.base.model(), env.base.hidden()
    actions = env.base.action(jnp.asarray(doses[:, :15], jnp.float32)[..., None])

    def follow(first, actions):
        start = jnp.concatenate([first, hidden(first)])
        return jax.lax.scan(lambda x, u: (model(x, u),) * 2, start, actions)[1][:, 0]

    expected = jax.jit(jax.vmap(follow, (0, 1)))(obs[:, 0], actions[1:])
    glucose = obs[:, 1:, 0]
    assert (glucose.min(axis=1) < obs[:, 0, 0] - 20.0).all()
    np.testing.assert_allclose(np.asarray(expected).min(1), glucose.min(1), atol=8.0)


def test_patients_and_hours_are_drawn_evenly_from_the_mode(compiled_once):
    env = batch(simglucose.make(), 3000)
    state, out = jax.jit(env.reset)(jax.random.key(5), env.default_params())
    assert out.obs.shape == (3000, 31)
    counts = np.bincount(np.asarray(state.x.patient), minlength=15)
    assert counts.min() > 140
    assert counts.max() < 260
    hours = np.bincount(np.asarray(state.x.minute) // 60, minlength=24)
    assert (np.asarray(state.x.minute) % 60 == 0).all()
    assert hours.min() > 80
    weights = {mode: patients.figures(patients.NAMES[mode])[:, 0] for mode in ("train", "test")}
    assert not set(weights["train"]) & set(weights["test"])
    other = simglucose.make(mode="test").default_params().physics.patients
    np.testing.assert_allclose(other[:, 0], weights["test"], rtol=1e-6)


def test_the_reward_fines_what_is_dangerous():
    reward = simglucose.reward
    assert float(reward(jnp.float32(112.5), jnp.float32(112.5))) == pytest.approx(1.0)
    assert float(reward(jnp.float32(100.0), jnp.float32(40.0))) == -15.0
    assert float(reward(jnp.float32(590.0), jnp.float32(600.0))) == 0.0
    assert float(reward(jnp.float32(180.0), jnp.float32(170.0))) > 1.0


def test_all_figures_lie_in_their_signals_ranges():
    table = patients.figures(NAMES)
    assert table.shape == (30, len(patients.Patient._fields))
    assert patients.Patient._fields[:30] == tuple(name for name, *_ in patients.SHOWN)
    for column, signal in zip(table.T, patients.SIGNALS, strict=False):
        assert signal.low < column.min(), signal.name
        assert column.max() < signal.high, signal.name


def test_the_basal_state_follows_from_the_figures(people):
    """A typing error in one of the figures would break one of these equations of the model."""
    p = people
    np.testing.assert_allclose(p.Ipb, p.Ib * p.Vi, rtol=1e-6)
    np.testing.assert_allclose(p.Ilb * (p.m1 + p.m30), p.m2 * p.Ipb, rtol=1e-4)
    np.testing.assert_allclose(p.m30, 1.5 * p.m1, rtol=1e-6)  # the liver keeps 0.6 of what comes
    np.testing.assert_allclose(p.m4, 0.4 * p.m2, rtol=1e-6)
    production = p.kp1 - p.kp2 * p.Gpb - p.kp3 * p.Ib
    np.testing.assert_allclose(production - p.Fsnc, p.k1 * p.Gpb - p.k2 * p.Gtb, rtol=1e-4)
    use = p.Vm0 * p.Gtb / (p.Km0 + p.Gtb)
    np.testing.assert_allclose(use, p.k1 * p.Gpb - p.k2 * p.Gtb, rtol=1e-4)
    np.testing.assert_allclose(p.u2ss, (p.ka1 + p.kd) * p.isc1ss, rtol=1e-4)
    np.testing.assert_allclose(p.kd * p.isc1ss, p.ka2 * p.isc2ss, rtol=1e-4)


@pytest.mark.parametrize("bad", ["adult#011", "child"])
def test_a_patient_who_is_not_there_is_named(bad):
    with pytest.raises(ValueError, match=f"no patient '{bad}'"):
        patients.figures([bad])


def test_a_mode_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="mode='all'; use 'train'"):
        simglucose.make(mode="all")  # pyright: ignore[reportArgumentType]
