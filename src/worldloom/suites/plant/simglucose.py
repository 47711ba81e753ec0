"""A person with type 1 diabetes and an insulin pump: glucose is to stay between 70 and 180 mg/dL.

The task Simglucose of NeoRL-2 (arXiv 2503.19267): the UVA/Padova model of thirteen states (Dalla
Man and others, 2007; its thirty patients as published with the project simglucose by J. Xie) under
an insulin pump of 0 to 5 U/min, set every three minutes for a day. Six meals of 45, 10, 70, 10, 80
and 10 g are eaten at fixed times, 5 g a minute; the episode begins at a full hour by chance, with
a patient by chance in the basal state. Seen are the sensor and thirty figures of the patient; not
seen are the hour and twelve of the states.

What the sensor says is, as there, the mean over the three minutes of a signal that is held: two
thirds of the value at the step's begin and a third of that at its end, without noise. An episode
ends where the mean glucose of a step is under 40 or over 600 mg/dL. The reward is
1 + (risk - next risk) / 100 with risk(g) = 10 (1.509 (log(g)^1.084 - 5.381))^2, but -15 where the
sensor says 40 or less and 0 where it says 600 or more.

NeoRL-2's data and published scores are of mode "train" (its environments are registered that way,
and its benchmark asks for nothing else): patients 1 to 5 of each group. Mode "test" has patients 6
to 10. The model is integrated by fourth-order Runge-Kutta steps of 20 s, the original by dopri5:
sensors differ by less than 0.05 mg/dL in ten hours for all thirty. (Steps of a minute do for the
training patients; child 7 of the others has a stomach that switches too fast for them.)
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from worldloom.core import draws
from worldloom.core.protocols import PureEnv
from worldloom.core.types import Array, Key
from worldloom.suites.plant.controllers import Tuning
from worldloom.suites.plant.patients import NAMES, SHOWN, SIGNALS, Patient, figures
from worldloom.suites.plant.plant import Plant, make_world, remaining, runge_kutta, score_between
from worldloom.suites.plant.types import Limit, Loop, PlantParams, Signal

MINUTES = 3  # of a step
SUBSTEPS = 3  # of the integration within a minute
DAY = 24 * 60
INCREMENT = 0.05  # pmol/min: the pump's doses are multiples of it
PMOL = 6000.0  # in a unit of insulin
# Of a body, in its order: what is not seen and matters when nothing is eaten.
HIDDEN = ("tissue", "insulin", "effect", "delayed", "felt", "liver", "depot", "second_depot")
normalised_score = partial(score_between, 9.75, 475.0)


class Body(struct.PyTreeNode):
    """The states of the model."""

    solid: Array  # mg, in the stomach
    liquid: Array  # mg, in the stomach
    gut: Array  # mg
    glucose: Array  # mg/kg, in plasma
    tissue: Array  # mg/kg, glucose in tissue
    insulin: Array  # pmol/kg, in plasma
    effect: Array  # pmol/L, insulin above basal, as use of glucose feels it
    delayed: Array  # pmol/L, insulin on its way to the liver's production
    felt: Array  # pmol/L, insulin as the liver's production feels it
    liver: Array  # pmol/kg, insulin in the liver
    depot: Array  # pmol/kg, insulin under the skin
    second_depot: Array  # pmol/kg, likewise
    skin: Array  # mg/kg, glucose where the sensor is


class Person(struct.PyTreeNode):
    """A body, its meals and its sensor."""

    body: Body
    patient: Array  # int32, row of the figures
    minute: Array  # int32, of the day
    planned: Array  # g, still to be eaten
    bite: Array  # g, eaten in the last minute
    before: Array  # mg in the stomach when the last meal began
    eaten: Array  # g of the last meal
    sensor: Array  # mg/dL, now
    reading: Array  # mg/dL, the step's mean of the held sensor: what is seen
    mean: Array  # mg/dL, the step's mean


class Care(struct.PyTreeNode):
    """Numbers of the task."""

    patients: Any = 0.0  # (n, 38)
    meal_minutes: Any = (7 * 60.0, 9.5 * 60.0, 12 * 60.0, 15 * 60.0, 18 * 60.0, 21.5 * 60.0)
    meal_grams: Any = (45.0, 10.0, 70.0, 10.0, 80.0, 10.0)  # times `disturbance`
    eating_rate: Any = 5.0  # g/min
    lowest: Any = 40.0  # mg/dL: beyond, the episode ends
    highest: Any = 600.0
    resistance: Any = 0.3  # of insulin's effect, lost in an episode that drifts


@dataclass(frozen=True)
class Simglucose(Plant):
    """See the module; `patients` names those that are drawn from."""

    patients: tuple[str, ...] = NAMES["train"]
    name: str = "simglucose"
    observation: tuple = (Signal("glucose", "mg/dL", 40.0, 400.0), *SIGNALS)
    action: tuple = (Signal("insulin", "U/min", 0.0, 5.0),)
    limits: tuple = (
        Limit("severe_low", "glucose", "at_least", 54.0),
        Limit("low", "glucose", "at_least", 70.0, hard=False),
        Limit("high", "glucose", "at_most", 180.0, hard=False),
    )
    loops: tuple = (Loop("insulin", "glucose", 130.0, -0.01, 0.0, -0.1, bias=-0.996),)
    # Doses that follow glucose too closely: half of the gain would lose hardly anybody.
    medium_tuning: ClassVar[Tuning] = Tuning(3.0, 0.3, False)
    horizon: int = 480
    step_seconds: float = 180.0
    response: int = 60  # three hours, in which most of a dose acts
    has_safe_state: bool = False  # without insulin nobody lives, and any dose is too much some day

    def physics(self) -> Care:
        plain = Care()
        return plain.replace(
            patients=figures(self.patients).astype(np.float32),
            meal_minutes=np.asarray(plain.meal_minutes, np.float32),
            meal_grams=np.asarray(plain.meal_grams, np.float32),
        )

    def start(self, key: Key, params: PlantParams) -> Person:
        key, other = draws.split(key)
        patient = draws.integers(key, (), len(params.physics.patients))
        return self.begin(patient, draws.integers(other, (), 24), params)

    def begin(self, patient: Array, hour: Array, params: PlantParams) -> Person:
        """A patient (row of the figures) in the basal state at a full hour of the day."""
        p = patient_in(patient, params)
        none = jnp.zeros_like(p.BW)
        glucose, insulin = (p.Gpb, p.Gtb), (p.Ipb, none, p.Ib, p.Ib, p.Ilb, p.isc1ss, p.isc2ss)
        body = Body(none, none, none, *glucose, *insulin, skin=p.Gpb)
        mean = p.Gpb / p.Vg
        meal, sensor = (none, none, none, none), (measured(mean), measured(mean), mean)
        return Person(body, jnp.int32(patient), jnp.int32(hour) * 60, *meal, *sensor)

    def advance(self, key: Key, x: Person, u: Array, step: Array, params: PlantParams) -> Person:
        care: Care = params.physics
        p = Patient(*care.patients[x.patient])
        left = remaining(care.resistance, step, params)
        p = p._replace(Vmx=p.Vmx * left, kp3=p.kp3 * left)
        dose = jnp.round(u[0] * (PMOL / INCREMENT)) * INCREMENT  # pmol/min

        def minute(x: Person, _: None) -> tuple[Person, Array]:
            served = jnp.where(care.meal_minutes == x.minute, care.meal_grams, 0.0).sum()
            planned = x.planned + params.disturbance * served
            bite = jnp.minimum(planned, care.eating_rate)
            begins = (bite > 0.0) & (x.bite <= 0.0)
            before = jnp.where(begins, x.body.solid + x.body.liquid, x.before)
            eaten = jnp.where(begins, 0.0, x.eaten) + bite
            milligrams = (1000.0 * bite, before + 1000.0 * eaten)  # of food now, of the whole meal
            body = runge_kutta(lambda b: slope(b, p, dose, *milligrams), x.body, 1.0, SUBSTEPS)
            meal = {"planned": planned - bite, "bite": bite, "before": before, "eaten": eaten}
            later = x.replace(body=body, minute=(x.minute + 1) % DAY, **meal)
            return later, body.skin / p.Vg

        later, glucose = jax.lax.scan(minute, x, None, length=MINUTES)
        sensor = measured(glucose[-1])
        return later.replace(
            sensor=sensor, reading=(2.0 * x.sensor + sensor) / 3.0, mean=glucose.mean()
        )

    def observe(self, x: Person, params: PlantParams) -> Array:
        return jnp.concatenate([x.reading[None], params.physics.patients[x.patient, : len(SHOWN)]])

    def reward(self, x: Person, u: Array, next_x: Person, params: PlantParams) -> Array:
        return reward(x.reading, next_x.reading)

    def observed_reward(self, obs: Array, u: Array, next_obs: Array, params: PlantParams) -> Array:
        return reward(obs[0], next_obs[0])

    def ended(self, x: Person, params: PlantParams) -> Array:
        return (x.mean < params.physics.lowest) | (x.mean > params.physics.highest)

    def hidden(self, obs: Array, params: PlantParams) -> Array:
        """What the model needs beside the sensor: tissue's glucose and all insulin, as if basal."""
        body = self.begin(nearest_patient(obs, params), jnp.int32(0), params).body
        return jnp.stack([getattr(body, name) for name in HIDDEN])

    def model(self, obs: Array, u: Array, params: PlantParams) -> Array:
        """An approximation: the patient is known by the weight, nothing is eaten, and the sensor
        says what is in the plasma. Insulin under way is that of `hidden` where it is not given."""
        row = nearest_patient(obs, params)
        p = patient_in(row, params)
        seen = len(self.observation)
        rest = obs[seen:] if obs.shape[-1] > seen else self.hidden(obs, params)
        none, glucose = jnp.zeros_like(p.BW), obs[0] * p.Vg
        body = Body(none, none, none, glucose, *rest, skin=glucose)
        body = runge_kutta(lambda b: slope(b, p, PMOL * u[0], none, none), body, float(MINUTES), 1)
        rest = [getattr(body, name) for name in HIDDEN] if obs.shape[-1] > seen else []
        reading = measured(body.glucose / p.Vg)
        return jnp.concatenate([reading[None], obs[1:seen], jnp.asarray(rest, obs.dtype)])


def patient_in(row: Array, params: PlantParams) -> Patient:
    """The figures of a patient."""
    # As a gather by one index, also under `vmap`, which ONNX has a name for.
    return Patient(*jnp.take(params.physics.patients, row, axis=0, mode="clip"))


def nearest_patient(obs: Array, params: PlantParams) -> Array:
    """The row of the figures, by the weight, of whom an observation shows."""
    return jnp.argmin(jnp.abs(params.physics.patients[:, 0] - obs[1]))


def measured(glucose: Array) -> Array:
    """What the sensor can say, in mg/dL."""
    return jnp.clip(glucose, 10.0, 600.0)


def risk(glucose: Array) -> Array:
    """Of a glucose in mg/dL: 0 at 112.5, more on either side."""
    return 10.0 * jnp.square(1.509 * (jnp.log(glucose) ** 1.084 - 5.381))


def reward(reading: Array, next_reading: Array) -> Array:
    """Of what the sensor said before and after a step, in mg/dL."""
    paid = 1.0 + 0.01 * (risk(reading) - risk(next_reading))
    paid = jnp.where(next_reading <= 40.0, -15.0, paid)
    return jnp.where(next_reading >= 600.0, 0.0, paid)


def slope(x: Body, p: Patient, dose: Array, food: Array, meal: Array) -> Body:
    """What changes in a minute, under insulin (pmol/min), food (mg/min) and of a meal (mg) that
    was in the stomach or eaten since it began."""
    # The stomach empties slowly between full and nearly empty.
    some = jnp.where(meal > 0.0, meal, 1.0)
    stomach = x.solid + x.liquid
    full = jnp.tanh(2.5 / (1.0 - p.b) / some * (stomach - p.b * meal))
    empty = jnp.tanh(2.5 / p.d / some * (stomach - p.d * meal))
    slowed = p.kmin + 0.5 * (p.kmax - p.kmin) * (full - empty + 2.0)
    emptying = jnp.where(meal > 0.0, slowed, p.kmax) * x.liquid
    absorbed = p.kabs * x.gut

    produced = jnp.maximum(p.kp1 - p.kp2 * x.glucose - p.kp3 * x.felt, 0.0)
    excreted = p.ke1 * jnp.maximum(x.glucose - p.ke2, 0.0)
    exchanged = p.k1 * x.glucose - p.k2 * x.tissue
    used = (p.Vm0 + p.Vmx * x.effect) * x.tissue / (p.Km0 + x.tissue)
    appearing = p.f * absorbed / p.BW
    concentration = x.insulin / p.Vi

    def held(amount: Array, change: Array) -> Array:
        """Amounts that are below nothing stay where they are."""
        return jnp.where(amount >= 0.0, change, 0.0)

    return Body(
        solid=food - p.kmax * x.solid,
        liquid=p.kmax * x.solid - emptying,
        gut=emptying - absorbed,
        glucose=held(x.glucose, produced + appearing - p.Fsnc - excreted - exchanged),
        tissue=held(x.tissue, exchanged - used),
        insulin=held(
            x.insulin,
            p.m1 * x.liver + p.ka1 * x.depot + p.ka2 * x.second_depot - (p.m2 + p.m4) * x.insulin,
        ),
        effect=p.p2u * (concentration - p.Ib - x.effect),
        delayed=p.ki * (concentration - x.delayed),
        felt=p.ki * (x.delayed - x.felt),
        liver=held(x.liver, p.m2 * x.insulin - (p.m1 + p.m30) * x.liver),
        depot=held(x.depot, dose / p.BW - (p.ka1 + p.kd) * x.depot),
        second_depot=held(x.second_depot, p.kd * x.depot - p.ka2 * x.second_depot),
        skin=held(x.skin, p.ksc * (x.glucose - x.skin)),
    )


def make(mode: Literal["train", "test"] = "train", **options: Any) -> PureEnv:
    """The environment; see the module for `mode` and `make_world` for the options."""
    if mode not in NAMES:
        raise ValueError(f"simglucose: mode={mode!r}; use 'train' (which scores are of) or 'test'")
    return make_world(Simglucose(NAMES[mode]), **options)
