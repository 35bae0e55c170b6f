"""Documents: scalars, merge keys and JSON."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aioresolve._core.document import (
    parse_first_json,
    parse_yaml,
    python_value,
)


def value_of(text: str) -> Any:
    node = parse_yaml(text, "file")
    assert node is not None
    return python_value(node)


def test_plain_scalars_are_resolved_as_by_kubectl() -> None:
    for written, value in {
        "12": 12,
        "-0x1F": -31,
        "010": 8,
        "0o10": 8,
        "1_000": 1000,
        "0b11": 3,
        "08": 8.0,
        "1e3": 1000.0,
        "-.5": -0.5,
        "-.inf": -math.inf,
        "y": True,
        "Off": False,
        "n": False,
        "~": None,
        "": None,
        "NULL": None,
        "2024-01-01": "2024-01-01",
        "190:20:30": "190:20:30",
        "=": "=",
        "<<": "<<",
        "0x": "0x",
        "1.2.3": "1.2.3",
        "nULL": "nULL",
        "'12'": "12",
        "!!str y": "y",
    }.items():
        found = value_of(f"a: {written}")["a"]
        assert (written, found, type(found)) == (written, value, type(value))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 1\n<<: {a: 2}", 2),
        ("<<: {a: 2}\na: 1", 1),
        ("<<: {a: 1}\n<<: {a: 2}", 2),
        ("a: 1\n<<: [{a: 2}, {a: 3}]", 2),
    ],
)
def test_merge_key_replaces_fields_before_it_as_for_kubectl(text: str, value: int) -> None:
    assert value_of(text) == {"a": value}


@pytest.mark.parametrize(("text", "value"), [('{"a": 1} rest', {"a": 1}), ("\n[1]", [1]), ("{a: 1}", None)])
def test_first_json_value_is_read(text: str, value: Any) -> None:
    assert parse_first_json(text) == value
