"""Units that plants need."""

import pytest

from worldloom.safety import units
from worldloom.safety.units import convert, parse_quantity, parse_unit


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (100.0, "degC", "K", 373.15),
        (300.0, "K", "degC", 26.85),
        (212.0, "degF", "degC", 100.0),
        (75.0, "%", "1", 0.75),
        (0.2, "", "%", 20.0),
        (1.5, "h", "min", 90.0),
        (60.0, "L/min", "m3/h", 3.6),
        (1.0, "L/s", "L/min", 60.0),
        (180.0, "mg/dL", "g/L", 1.8),
        (1.0, "bar", "kPa", 100.0),
        (2.0, "kWh", "MJ", 7.2),
        (180.0, "deg", "rad", 3.14159265),
        (10.0, "K/min", "degC/h", 600.0),
        (3.0, "U/h", "U/min", 0.05),
        (1.0, "m/s^2", "cm/s2", 100.0),
        (5.0, "°C", "K", 278.15),
        (50.0, "Hz", "1/s", 50.0),
        (2.0, "N*m", "J", 2.0),
    ],
)  # fmt: skip
def test_values_are_converted(value, source, target, expected):
    assert convert(value, source, target) == pytest.approx(expected, rel=1e-7)
    assert convert(expected, target, source) == pytest.approx(value, rel=1e-7)


def test_a_difference_of_temperatures_has_no_zero():
    assert convert(10.0, "degC", "K", difference=True) == 10.0
    assert convert(9.0, "degF", "K", difference=True) == pytest.approx(5.0)


def test_equal_units_keep_every_digit():
    assert convert(0.1, "mg/dL", "mg/dL") == 0.1


@pytest.mark.parametrize(
    ("source", "target"),
    [("K", "L"), ("", "K"), ("K", ""), ("U", "mL"), ("L/min", "L"), ("pu", "%"), ("Kk", "K")],
)
def test_what_measures_something_else_is_refused(source, target):
    with pytest.raises(ValueError, match=r"is no unit of|without a unit"):
        convert(1.0, source, target)


def test_a_unit_with_an_empty_place_is_refused():
    with pytest.raises(ValueError, match="empty place"):
        parse_unit("L//min")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("375 K", (375.0, "K")), ("-1.5e3 kPa", (-1500.0, "kPa")), (7, (7.0, "")),
     ("20%", (20.0, "%")), (".5 L/min", (0.5, "L/min"))],
)  # fmt: skip
def test_quantities_are_a_number_and_a_unit(text, expected):
    assert parse_quantity(text) == expected


@pytest.mark.parametrize("text", ["K 375", "", None, True, [1], "high"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="not a number with a unit"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (14.503774, "psi", "bar", 1.0),
        (1.0, "inHg", "Pa", 3386.389),
        (60.0, "gallon/min", "m3/h", 13.627),
        (1.0, "mile/h", "m/s", 0.44704),
        (2.0, "horsepower", "kW", 1.4914),
    ],
)  # fmt: skip
def test_units_of_no_table_here_are_pints(value, source, target, expected):
    pytest.importorskip("pint")
    assert convert(value, source, target) == pytest.approx(expected, rel=1e-4)


def test_without_pint_they_are_labels_that_must_match(monkeypatch):
    monkeypatch.setattr(units, "_registry", lambda: None)
    parse_unit.cache_clear()
    try:
        assert convert(3.0, "psi/min", "psi/min") == 3.0
        with pytest.raises(ValueError, match="psi is no unit of what is measured in bar"):
            convert(3.0, "psi", "bar")
    finally:
        parse_unit.cache_clear()
