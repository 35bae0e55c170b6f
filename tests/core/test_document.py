"""Documents: scalars, merge keys, several documents, and encodings, for both kinds of builders."""

from __future__ import annotations

import math
from typing import Any

import pytest

from aioresolve._core import document
from aioresolve._core.document import (
    DocumentError,
    NodeBuilder,
    parse_first_json,
    parse_yaml,
    python_value,
)


class ReplacingBuilder(NodeBuilder):
    merges_replace = True


def value_of(text: str, builder: NodeBuilder | None = None) -> Any:
    node = parse_yaml(text, "file", builder)
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
    ("text", "standard", "replacing"),
    [
        ("a: 1\n<<: {a: 2}", 1, 2),
        ("<<: {a: 2}\na: 1", 1, 1),
        ("<<: {a: 1}\n<<: {a: 2}", 2, 2),
        ("a: 1\n<<: [{a: 2}, {a: 3}]", 1, 2),
    ],
)
def test_builder_decides_whether_a_merge_key_replaces_fields(
    text: str, standard: int, replacing: int
) -> None:
    assert value_of(text) == {"a": standard}
    assert value_of(text, ReplacingBuilder()) == {"a": replacing}


@pytest.mark.parametrize(("text", "value"), [('{"a": 1} rest', {"a": 1}), ("\n[1]", [1]), ("{a: 1}", None)])
def test_first_json_value_is_read(text: str, value: Any) -> None:
    assert parse_first_json(text) == value


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("[a, b, c]", 4),
        ("{a: 1, b: 2, c: 3}", 4),
        ("[{a: 1, b: 2}, [c]]", 6),
        ("{a: &a {b: 1, c: 2}, d: *a, e: [*a]}", 11),
    ],
)
def test_document_may_have_as_many_values_as_the_limit(
    text: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "MAX_VALUES", size)
    assert value_of(text)
    monkeypatch.setattr(document, "MAX_VALUES", size - 1)
    with pytest.raises(DocumentError, match=f"has more than {size - 1} values"):
        value_of(text)
