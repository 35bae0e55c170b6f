"""What several commands write: tables, errors and reports of missing tasks, with exit codes."""

from datetime import UTC, datetime
from typing import Any

import anyio
import pytest

from aioresolve import ClusterState, Observation, Progress, errors
from aioresolve.cli.error_messages import error_report, exit_code, field_spelling
from aioresolve.cli.formats import Table, TextTable, aligned, format_span
from aioresolve.cli.live import StatusReporter, progress_line, show_progress
from tests.virtual_time import in_virtual_time


def test_columns_are_aligned_if_characters_are_wide_or_combined() -> None:
    table = Table(("NAME", "TASKS"), [("東京", "1"), ("e\u0301toile", "2"), ("a\x1b", "")])
    expected = "NAME     TASKS\n東京     1\ne\u0301toile   2\na\\x1b    <none>\n"
    assert aligned(table) == expected
    rows = TextTable(table.columns, [6])
    assert "".join(rows.lines([row]) for row in table.rows) == expected
    assert aligned(Table(("A", "B"), [])) == ""  # as with kubectl


def test_rows_have_their_color_and_without_one_the_jobs_have_another() -> None:
    table = Table(("JOB", "ADDRESS"), [("a", "b"), ("c", "d")], ["", "red"])
    assert aligned(table, has_colors=True) == (
        "\x1b[1mJOB   ADDRESS\x1b[0m\n"
        "\x1b[36ma  \x1b[0m   \x1b[1mb\x1b[0m\n"
        "\x1b[31mc  \x1b[0m   \x1b[31m\x1b[1md\x1b[0m\n"
    )


CODES: dict[type[errors.ResolveError], int] = {
    errors.ConfigurationError: 2,
    errors.EnvironmentVariableError: 2,
    errors.LaunchError: 2,
    errors.PartialClusterError: 2,
    errors.MissingDependencyError: 2,
    errors.DeadlineExceededError: 3,
    errors.IncompleteClusterError: 3,
    errors.ProbeDeadlineError: 3,
}


def test_each_error_has_its_exit_code() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    kinds = [kind for kind in classes if issubclass(kind, errors.ResolveError)]
    assert {kind: exit_code(kind("what")) for kind in kinds} == {kind: CODES.get(kind, 1) for kind in kinds}
    assert exit_code(errors.CredentialsError("none were found", tried=["$KUBECONFIG: not set"])) == 2


def test_an_error_is_one_line_without_control_characters() -> None:
    error = errors.PodNotRunningError("1 pod is not running: it says\n \x1b[2Jboo")
    assert error_report(error) == "error: 1 pod is not running: it says \\x1b[2Jboo\n"


def test_a_narrow_table_loses_expendable_columns_and_then_shortens_its_last_column_and_its_name() -> None:
    row = ("worker", "trainer-7f9c8d6b5-x2x4z", "10.0.0.1:8470", "gke-pool-1", "CrashLoopBackOff: 7 restarts")
    table = Table(("JOB", "NAME", "ADDRESS", "NODE", "STATUS"), [row], expendable=("NODE", "ADDRESS"))

    def shown(width: int) -> list[str]:
        lines = aligned(table.fitted(width)).splitlines()
        assert max(map(len, lines)) <= width
        return lines[1].split()

    assert shown(100) == " ".join(row).split()
    assert ["gke-pool-1" in shown(width) for width in (88, 87)] == [True, False]
    assert shown(83) == " ".join((*row[:3], row[4])).split()
    assert shown(60) == [row[0], row[1], "CrashLoopBackOff:", "7", "rest…"]
    assert shown(50) == [row[0], "trainer-7f9c8…", "CrashLoopBackOff:", "7", "res…"]
    assert table.fitted(25).rows == [("worker", "trainer-7f9…", "…")]


def test_a_narrow_table_that_wraps_continues_its_last_column_on_the_next_line() -> None:
    rows = [("TLS", "ok", "one two three"), ("DNS", "ok", "yes")]
    fitted = Table(("CHECK", "RESULT", "FOUND"), rows, ["red"], wraps=True).fitted(29)
    lines = [line.rstrip() for line in aligned(fitted).splitlines()]
    assert lines == [
        "CHECK   RESULT   FOUND",
        "TLS     ok       one two",
        "                 three",
        "DNS     ok       yes",
    ]
    assert fitted.styles == ["red", "red", ""]


def test_arguments_are_named_as_options_if_there_is_one_and_in_a_fleet_file_as_fields() -> None:
    hint = "Pass {namespace} or {order_by=index}, or {tpu} or {environment=colab}, or raise {timeout}."
    error = errors.ConfigurationError("'ML_' is not valid", argument="namespace", hint=hint)
    assert error_report(error) == (
        "error: -n: 'ML_' is not valid. Pass -n or --order-by index, or NAME or `environment='colab'`, or"
        " raise --timeout.\n"
    )
    assert error.render(field_spelling) == (
        "`namespace`: 'ML_' is not valid. Pass `namespace` or `order_by: index`, or `name` or"
        " `environment: colab`, or raise --timeout."
    )


@in_virtual_time
async def test_failures_of_concurrent_requests_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    with show_progress(progress, quiet=False):
        for name in ("a", "b", "a", "b"):
            progress.failed(name, errors.ConnectionFailedError(f"{name} is down"))
            await anyio.sleep(1)
    progress.failed("c", errors.ConnectionFailedError("c is down"))
    await anyio.sleep(60)  # after the block nothing is reported
    assert capsys.readouterr().err == "retrying: a is down\nretrying: b is down\n"


def test_progress_names_the_first_part_that_is_missing_and_how_many_are_not() -> None:
    progress = Progress()
    assert progress_line(progress) == "looking for the API server and credentials"
    progress.waiting("a", "no response")
    assert progress_line(progress) == "waiting for a: no response"
    progress.waiting("b", "no response")
    assert progress_line(progress) == "waiting for a (0 of 2 received): no response"
    progress.done("a", "3 pods")
    assert progress_line(progress) == "waiting for b (1 of 2 received): no response"


def test_status_of_a_watched_source_is_reported_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    good = Observation(ClusterState.of({}))
    bad = good.stale(errors.ConnectionFailedError("a is down"), datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    loud, quiet = StatusReporter(quiet=False), StatusReporter(quiet=True)
    for each in (good, bad, bad, good, good):
        loud.report(each)
        quiet.report(each)
    assert capsys.readouterr().err == (
        "not up to date since 2026-01-02T03:04:05Z; retrying: a is down\nup to date again\n"
    )


def test_durations_have_their_two_largest_units() -> None:
    seconds = (-1, 0.35, 0.9994, 0.9995, 1.4, 312, 3600, 86460, 90061)
    expected = ("0ms", "350ms", "999ms", "1s", "1s", "5m12s", "1h", "1d", "1d1h")
    assert tuple(map(format_span, seconds)) == expected


def report(**fields: Any) -> list[str]:
    """Return the lines of the error of a wait, without the first."""
    error = errors.IncompleteClusterError("late", hint="Raise {timeout}.", timeout=600.0, **fields)
    first, *lines = error_report(error).splitlines()
    assert first == "error: the cluster was not complete within 10m. Raise --timeout."
    return lines


def test_report_groups_missing_tasks_by_reason_and_ends_with_the_numbers() -> None:
    missing = {f"ml/pod-{number}": "Pending" for number in range(4)} | {"ml/a": "gone\n \x1b[2Jfor good"}
    assert report(found={"worker": 3}, missing=missing) == [
        "MISSING                                   REASON",
        "ml/pod-0, ml/pod-1, ml/pod-2 and 1 more   Pending",
        "ml/a                                      gone \\x1b[2Jfor good",
        "",
        "JOB      FOUND",
        "worker   3",
    ]
    many = {f"ml/pod-{number}": f"exit code {number}" for number in range(70)}
    lines = report(found={"worker": 3, "ps": 1}, wanted={"": 16}, missing=many)
    assert lines[21] == "and 50 more"
    three = dict.fromkeys(("ml/pod-19", "ml/pod-20", "ml/pod-21"), "exit code 19")
    lines = report(found={"worker": 3, "ps": 1}, wanted={"": 16}, missing=dict([*many.items()][:19]) | three)
    assert lines[20:22] == ["ml/pod-19, ml/pod-20, ml/pod-21   exit code 19", ""]
    assert lines[-1].split() == ["(all)", "4", "16"]
    assert report(found={"worker": 3}, wanted={"": 4}) == ["JOB      FOUND   WANTED", "worker   3       4"]


def test_report_has_what_states_the_wanted_numbers() -> None:
    sources = {"worker": "spec.replicas of StatefulSet ml/train"}
    assert report(found={"worker": 3, "ps": 1}, wanted={"worker": 4}, sources=sources) == [
        "JOB      FOUND   WANTED   WANTED BY",
        "worker   3       4        spec.replicas of StatefulSet ml/train",
        "ps       1       <none>   <none>",
    ]
