"""YAML of any content: values with their places, or one line."""

import pytest

from worldloom.core.yaml_nodes import parse_yaml


@pytest.mark.parametrize(
    "text",
    [
        "a: !!bool x",
        "a: !!int ''",
        "a: !!timestamp x",
        "a: 2024-13-45",
        "!!map [1]",
        "a: " + "9" * 5000,
        "[" * 2000,
        "a: &a [*a]",
        "a: &a {b: *a}",
        "? [a]\n: 1",
    ],
)
def test_whatever_yaml_cannot_be_is_told_in_one_line(text):
    with pytest.raises(ValueError, match=r"^w\.yaml: not a YAML file: .") as error:
        parse_yaml(text, "w.yaml")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 300


def test_aliases_that_stand_for_more_than_memory_holds_are_refused():
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    with pytest.raises(ValueError, match="its aliases stand for more than 1,000,000 values"):
        parse_yaml("\n".join(lines), "w.yaml")
    few = parse_yaml("\n".join(lines[:2]), "w.yaml")
    assert few.value["a1"] == [["lol"] * 9] * 9


def test_complaints_quote_no_more_than_fits():
    node = parse_yaml(f"{'k' * 900}: {'v' * 3000}", "w.yaml")
    (entry,) = node.entries().values()
    assert len(str(entry.error("too long"))) <= 300
    with pytest.raises(ValueError, match="is not a finite number") as error:
        entry.number()
    assert len(str(error.value)) <= 300
