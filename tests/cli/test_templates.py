"""`-o jsonpath=` and `-o custom-columns=`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .process import Run

pytest.importorskip("jsonpath_ng", reason="jsonpath-ng is not installed")

PODS = ("kubernetes", "-l", "app=train", "-l", "ps=app=ps", "-o")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{$.jobs.ps[0].task} {@.jobs.ps[0].task}", "0 0"),
        ("{.jobs.worker[*].name}", "train-1 train-2 train-10"),
        ("{.jobs.worker[0]['task','name']}", "0 train-1"),
        ("{.jobs.*[?(@.ready==true)].task}", "0 1 2"),
        ("{.nothing}", ""),
        (
            r"""{range .jobs.worker[*]}{.task}{"\t"}{.name}{'\n'}{end}end""",
            "0\ttrain-1\n1\ttrain-2\n2\ttrain-10\nend",
        ),
        ("{range .jobs.*}{range [*]}{.task},{end};{end}", "0,1,2,;0,;"),
        (r"{.jobs.ps[0].accelerators.google\.com/tpu}", "4"),
        (r"{.jobs.ps[0]['accelerators']['google.com/tpu']}", "4"),
        (r"""{.jobs.worker[?(@.name=="no\.ne")].address}""", ""),
        ("{.jobs.ps[0].accelerators}", '{"google.com/tpu":4}'),
        ('{range .jobs.worker[*]}{.task}{"\\n"}{end}', "0\n1\n2"),
    ],
)
def test_jsonpath_formats_the_document_as_in_kubectl(
    run: Run, env: dict[str, str], template: str, expected: str
) -> None:
    result = run((*PODS, f"jsonpath={template}"), env)
    assert (result.code, result.stdout) == (0, f"{expected}\n" if expected else "")


def test_custom_columns_have_a_row_for_each_task(run: Run, env: dict[str, str]) -> None:
    columns = r"custom-columns=JOB:job,NAME:{.name},PORT:.port,NUMBERS:.accelerators.google\.com/tpu"
    assert [line.split() for line in run((*PODS, columns), env).stdout.splitlines()] == [
        ["JOB", "NAME", "PORT", "NUMBERS"],
        *(["worker", f"train-{number}", "<none>", "4"] for number in (1, 2, 10)),
        ["ps", "ps-0", "<none>", "4"],
    ]


@pytest.mark.parametrize(
    "output",
    [
        *("jsonpath={.a", "jsonpath=}", "jsonpath={.a[}", "jsonpath={}", "jsonpath={range .a}"),
        *("jsonpath={end}", "custom-columns=", "custom-columns=NAME", "custom-columns=:.a"),
    ],
)
def test_invalid_template_is_rejected(run: Run, env: dict[str, str], output: str) -> None:
    result = run((*PODS, output), env)
    assert result.code == 2
    assert any(text in result.stderr for text in ("is not a", "has no", "has a brace"))
