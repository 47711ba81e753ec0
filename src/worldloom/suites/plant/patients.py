"""The thirty virtual patients of the UVA/Padova simulator: published figures, and what they mean.

The figures lie in `assets/patients.csv`, which names their source and licence. Symbols are those of
the model's papers (Dalla Man and others, 2007, "Meal simulation model of the glucose-insulin
system" and "GIM, simulation software of meal glucose-insulin model").
"""

import csv
from collections import namedtuple
from collections.abc import Sequence
from importlib import resources

import numpy as np

from worldloom.suites.plant.types import Signal

# What NeoRL-2 shows of a patient, in its order: symbol, unit, and a range that holds all thirty.
SHOWN: tuple[tuple[str, str, float, float], ...] = (
    ("BW", "kg", 20.0, 120.0),  # body weight
    ("Fsnc", "mg/kg/min", 0.0, 2.0),  # glucose that needs no insulin to be used
    ("Ib", "pmol/L", 80.0, 140.0),  # basal insulin
    ("Km0", "mg/kg", 180.0, 280.0),  # half saturation of insulin-dependent use
    ("Vi", "L/kg", 0.03, 0.08),  # volume of insulin
    ("Vm0", "mg/kg/min", 2.0, 15.0),  # insulin-dependent use, at basal insulin
    ("Vmx", "mg/kg/min per pmol/L", 0.01, 0.16),  # and how it rises with insulin
    ("b", "1", 0.5, 1.0),  # share of a meal at which the stomach slows down
    ("d", "1", 0.05, 0.35),  # and at which it hurries again
    ("f", "1", 0.8, 1.0),  # share of a meal that is absorbed
    ("k1", "1/min", 0.03, 0.11),  # glucose, plasma to tissue
    ("k2", "1/min", 0.04, 0.3),  # and back
    ("ka1", "1/min", 0.001, 0.009),  # insulin, first depot to plasma
    ("ka2", "1/min", 0.007, 0.03),  # second depot to plasma
    ("kabs", "1/min", 0.02, 1.3),  # gut to plasma
    ("kd", "1/min", 0.012, 0.021),  # first depot to second
    ("ke1", "1/min", 0.0, 0.001),  # renal excretion
    ("ke2", "mg/kg", 300.0, 380.0),  # and where it begins
    ("ki", "1/min", 0.002, 0.05),  # delay of insulin's effect on the liver
    ("kmax", "1/min", 0.01, 0.07),  # fastest emptying of the stomach
    ("kp1", "mg/kg/min", 3.0, 12.0),  # glucose that the liver makes
    ("kp2", "1/min", 0.001, 0.025),  # less for glucose
    ("kp3", "mg/kg/min per pmol/L", 0.004, 0.03),  # less for insulin
    ("ksc", "1/min", 0.04, 0.16),  # plasma to the sensor's place
    ("m1", "1/min", 0.1, 0.45),  # insulin, liver to plasma
    ("m2", "1/min", 0.1, 0.45),  # and back
    ("m30", "1/min", 0.15, 0.7),  # broken down in the liver
    ("m4", "1/min", 0.04, 0.18),  # and elsewhere
    ("p2u", "1/min", 0.01, 0.09),  # delay of insulin's effect on use
    ("u2ss", "pmol/kg/min", 0.6, 2.7),  # insulin that keeps the basal state
)
SIGNALS = tuple(Signal(*shown) for shown in SHOWN)


HIDDEN = (
    "kmin",  # 1/min, slowest emptying of the stomach
    "Vg",  # dL/kg, volume of glucose
    "Gpb",  # mg/kg, basal glucose in plasma
    "Gtb",  # mg/kg, and in tissue
    "Ipb",  # pmol/kg, basal insulin in plasma
    "Ilb",  # pmol/kg, in the liver
    "isc1ss",  # pmol/kg, in the first depot under the skin
    "isc2ss",  # pmol/kg, in the second
)
# One patient's figures, or arrays of them.
Patient = namedtuple("Patient", [*(name for name, *_ in SHOWN), *HIDDEN])

GROUPS = ("adolescent", "adult", "child")
NAMES = {
    "train": tuple(f"{group}#{i:03}" for group in GROUPS for i in range(1, 6)),
    "test": tuple(f"{group}#{i:03}" for group in GROUPS for i in range(6, 11)),
}


def figures(names: Sequence[str]) -> np.ndarray:
    """float64 (patients, figures): rows in the order of `names`, columns in that of `Patient`."""
    text = resources.files("worldloom.suites.plant").joinpath("assets/patients.csv").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    known = {row["Name"]: row for row in csv.DictReader(lines)}
    for name in names:
        if name not in known:
            raise ValueError(f"there is no patient {name!r}; use one of {', '.join(known)}")
    return np.asarray([[float(known[name][field]) for field in Patient._fields] for name in names])
