"""`-o jsonpath=` and `-o custom-columns=`."""

from __future__ import annotations

from typing import Any

import pytest

from aioresolve.cli.formats import Table, format_document, tasks_of
from aioresolve.cli.templates import validate_template

pytest.importorskip("jsonpath_ng", reason="jsonpath-ng is not installed")

DOCUMENT: dict[str, Any] = {
    "jobs": {
        "worker": [
            {
                "task": 0,
                "address": "10.0.0.1:8470",
                "name": "train-0",
                "ready": True,
                "a.b/c": {"x.y": 4, "z": 2},
            },
            {"task": 1, "address": "10.0.0.2:8470", "name": None, "ready": False},
        ],
        "ps": [{"task": 0, "address": "10.0.0.3:8470", "name": "ps-0", "ready": True}],
    },
    "version": "41",
}


def formatted(output: str) -> str | Table:
    validate_template(output)
    return format_document(output, DOCUMENT, tasks_of(DOCUMENT))


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{$.version} {@.version}", "41 41"),
        ("{.jobs.worker[*].address}", "10.0.0.1:8470 10.0.0.2:8470"),
        ("{.jobs.worker[0]['task','name']}", "0 train-0"),
        ("{.jobs.worker[?(@.ready==true)].address}", "10.0.0.1:8470"),
        ("{.nothing}", ""),
        (
            r"""{range .jobs.worker[*]}{.task}{"\t"}{.address}{'\n'}{end}end""",
            "0\t10.0.0.1:8470\n1\t10.0.0.2:8470\nend",
        ),
        ("{range .jobs.*}{range [*]}{.task},{end};{end}", "0,1,;0,;"),
        (r"{.jobs.worker[0].a\.b/c.z}", "2"),
        (r"{.jobs.worker[0]['a\.b/c']['x.y']}", "4"),
        (r"""{.jobs.worker[?(@.name=="no\.ne")].address}""", ""),
        ("{.jobs.ps[0]}", '{"task":0,"address":"10.0.0.3:8470","name":"ps-0","ready":true}'),
    ],
)
def test_a_jsonpath_formats_the_document_as_in_kubectl(template: str, expected: str) -> None:
    assert formatted(f"jsonpath={template}") == (f"{expected}\n" if expected else "")


def test_a_jsonpath_that_ends_its_lines_has_no_empty_line_after_them() -> None:
    assert formatted('jsonpath={range .jobs.worker[*]}{.task}{"\\n"}{end}') == "0\n1\n"


def test_custom_columns_have_a_row_for_each_task() -> None:
    output = r"custom-columns=JOB:job,NAME:{.name},PORT:.port,NUMBERS:.a\.b/c.*"
    assert formatted(output) == Table(
        ["JOB", "NAME", "PORT", "NUMBERS"],
        [["worker", "train-0", "", "4,2"], ["worker", "", "", ""], ["ps", "ps-0", "", ""]],
    )


@pytest.mark.parametrize(
    "output",
    [
        *("jsonpath={.a", "jsonpath=}", "jsonpath={.a[}", "jsonpath={}", "jsonpath={range .a}"),
        *("jsonpath={end}", "custom-columns=", "custom-columns=NAME", "custom-columns=:.a"),
    ],
)
def test_an_invalid_template_is_rejected(output: str) -> None:
    with pytest.raises(ValueError, match=r"is not a|has no|has a brace"):
        validate_template(output)
