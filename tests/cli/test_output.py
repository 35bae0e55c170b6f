"""Output formats: tables, documents, TF_CONFIG, errors and exit codes."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aioresolve import ClusterSpec, ClusterState, Endpoint, errors
from aioresolve.cli.application import application
from aioresolve.cli.output.error_messages import (
    OPTIONS,
    error_report,
    exit_code,
    option_spelling,
    redacted_traceback,
)
from aioresolve.cli.output.formats import (
    IncrementalTable,
    Table,
    TaskName,
    address_lines,
    aligned,
    as_json,
    as_yaml,
    cluster_document,
    printable,
    spec_table,
    state_table,
    tf_config,
)
from aioresolve.cli.terminal.drawing import render_table

if TYPE_CHECKING:
    from collections.abc import Iterator

SPEC = ClusterSpec({"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": {3: "10.0.0.3:8470"}})
STATE = ClusterState.of(
    {
        "worker": [
            Endpoint(
                "10.0.0.1:8470",
                name="train-0",
                namespace="ml",
                uid="u-1",
                node="node-a",
                ready=True,
                status="Running",
                index=0,
                accelerators={"google.com/tpu": 4, "nvidia.com/gpu": 1},
            ),
            Endpoint(
                "[fd00::7]:8470",
                name="train-1",
                namespace="ml",
                uid="u-2",
                ready=False,
                status="Evicted: no disk",
            ),
        ],
        "ps": {3: Endpoint("1:20")},
        "chief": [],
    },
    version="41",
    observed_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
)
DOCUMENT = {
    "jobs": {
        "worker": [
            {
                "task": 0,
                "address": "10.0.0.1:8470",
                "name": "train-0",
                "namespace": "ml",
                "uid": "u-1",
                "node": "node-a",
                "ready": True,
                "status": "Running",
                "index": 0,
                "accelerators": {"google.com/tpu": 4, "nvidia.com/gpu": 1},
            },
            {
                "task": 1,
                "address": "[fd00::7]:8470",
                "name": "train-1",
                "namespace": "ml",
                "uid": "u-2",
                "node": None,
                "ready": False,
                "status": "Evicted: no disk",
                "index": None,
                "accelerators": None,
            },
        ],
        "ps": [
            {"task": 3, "address": "1:20"}
            | dict.fromkeys(("name", "namespace", "uid", "node", "ready", "status", "index", "accelerators"))
        ],
        "chief": [],
    },
    "version": "41",
    "observed_at": "2026-01-02T03:04:05Z",
}
CELLS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_a_table_of_addresses_has_one_row_per_task() -> None:
    assert aligned(spec_table(SPEC)) == (
        "JOB      TASK   ADDRESS\n"
        "worker   0      10.0.0.1:8470\n"
        "worker   1      [fd00::7]:8470\n"
        "ps       3      10.0.0.3:8470\n"
    )


def test_the_wide_table_shows_identities_and_unknown_values() -> None:
    lines = aligned(state_table(STATE)).splitlines()
    assert [line.split() for line in lines] == [
        ["JOB", "TASK", "ADDRESS", "NAME", "NAMESPACE", "NODE", "READY", "UID", "ACCELERATORS", "STATUS"],
        [
            "worker",
            "0",
            "10.0.0.1:8470",
            "train-0",
            "ml",
            "node-a",
            "true",
            "u-1",
            "google.com/tpu=4,nvidia.com/gpu=1",
            "Running",
        ],
        [
            "worker",
            "1",
            "[fd00::7]:8470",
            "train-1",
            "ml",
            "<none>",
            "false",
            "u-2",
            "<none>",
            "Evicted:",
            "no",
            "disk",
        ],
        ["ps", "3", "1:20", *["<none>"] * 7],
    ]


def test_columns_are_aligned_if_characters_are_wide_or_combined() -> None:
    table = Table(("NAME", "TASKS"), [("東京", "1"), ("e\u0301toile", "2"), ("ｘ", "3")])
    expected = "NAME     TASKS\n東京     1\ne\u0301toile   2\nｘ       3\n"
    assert aligned(table) == expected
    assert ESCAPES.sub("", render_table(table)) == expected
    rows = IncrementalTable(table.columns, [6])
    assert rows.rows(table.rows) == expected


@given(st.lists(st.tuples(CELLS, CELLS, CELLS), min_size=1))
def test_columns_are_aligned_without_trailing_spaces(rows: list[tuple[str, ...]]) -> None:
    header, *lines = aligned(Table(("A", "B", "C"), rows)).splitlines()
    places = [header.index(name) for name in "ABC"]
    for line, row in zip(lines, rows, strict=True):
        assert line.split() == list(row)
        assert [line.startswith(cell, place) for cell, place in zip(row, places, strict=True)] == [True] * 3
        assert line == line.rstrip()


def test_a_table_without_rows_is_empty_as_with_kubectl() -> None:
    assert aligned(Table(("A", "B"), [])) == render_table(Table(("A", "B"), [])) == ""


def test_a_colored_table_has_the_text_of_the_plain_one() -> None:
    plain, drawn = aligned(state_table(STATE)), render_table(state_table(STATE))
    assert "\x1b[" in drawn
    assert [line.split() for line in ESCAPES.sub("", drawn).splitlines()] == [
        line.split() for line in plain.splitlines()
    ]


def test_a_colored_table_does_not_truncate_or_interpret_addresses() -> None:
    long = f"[{'fd00:' * 7}1]:8470"
    assert long in ESCAPES.sub("", render_table(Table(("ADDRESS", "NAME"), [(long, "x" * 300)])))


def test_addresses_are_printed_one_per_line() -> None:
    assert address_lines(SPEC) == "10.0.0.1:8470\n[fd00::7]:8470\n10.0.0.3:8470\n"


def test_json_has_the_documented_shape() -> None:
    assert json.loads(as_json(cluster_document(STATE))) == DOCUMENT


def test_json_is_indented_by_two_spaces() -> None:
    assert as_json({"jobs": {"worker": []}}) == '{\n  "jobs": {\n    "worker": []\n  }\n}\n'


def test_yaml_has_the_same_values_and_types() -> None:
    assert yaml.safe_load(as_yaml(cluster_document(STATE))) == DOCUMENT


def test_yaml_keeps_the_order_of_keys_and_readable_text() -> None:
    assert as_yaml({"name": "zürich-0", "address": "10.0.0.1:8470"}) == (
        "name: zürich-0\naddress: 10.0.0.1:8470\n"
    )


@pytest.mark.parametrize("observed", [None, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)])
def test_observed_at_is_rfc_3339_or_null(observed: datetime | None) -> None:
    state = ClusterState.from_spec(SPEC, observed_at=observed)
    assert json.loads(as_json(cluster_document(state)))["observed_at"] == (
        observed and "2026-01-02T03:04:05.678901Z"
    )


def test_tf_config_is_one_line_with_the_cluster() -> None:
    text = tf_config(SPEC)
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "cluster": {"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": {"3": "10.0.0.3:8470"}}
    }


def test_tf_config_has_the_task_that_reads_it() -> None:
    assert json.loads(tf_config(SPEC, TaskName("worker", 1)))["task"] == {"type": "worker", "index": 1}


def test_an_evaluator_is_a_task_without_being_in_the_cluster() -> None:
    assert json.loads(tf_config(SPEC, TaskName("evaluator", 0)))["task"] == {"type": "evaluator", "index": 0}


@pytest.mark.parametrize("task", [TaskName("worker", 2), TaskName("ps", 0), TaskName("chief", 0)])
def test_tf_config_of_a_missing_task_is_an_error(task: TaskName) -> None:
    with pytest.raises(errors.UnknownTaskError):
        tf_config(SPEC, task)


@given(st.text())
def test_control_characters_are_never_printed(text: str) -> None:
    assert printable(text).isprintable()
    assert printable(text) == text or not text.isprintable()


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


@pytest.mark.parametrize("name", sorted(set(errors.__all__) - {"Hint"}))
def test_each_error_has_its_exit_code(name: str) -> None:
    error: type[errors.ResolveError] = getattr(errors, name)
    assert exit_code(error("what")) == CODES.get(error, 1)


def test_an_error_is_one_line_without_control_characters() -> None:
    error = errors.PodNotRunningError("1 pod is not running: it says\n \x1b[2Jboo")
    assert error_report(error) == "error: 1 pod is not running: it says \\x1b[2Jboo\n"


def test_each_problem_of_a_file_is_one_line() -> None:
    error = errors.ConfigurationError("fleet.yaml:1: has no `targets`\nfleet.yaml:2: x:  unknown field")
    assert error_report(error) == (
        "error: fleet.yaml:1: has no `targets`\nerror: fleet.yaml:2: x: unknown field\n"
    )


def test_a_forbidden_error_is_yaml_that_kubectl_can_apply() -> None:
    manifest = "kind: Role\n---\nkind: RoleBinding\n"
    error = errors.ForbiddenError(
        "user 'alice' may not list pods",
        hint=errors.Hint("Apply this manifest:\n{manifest}", values={"manifest": manifest}),
        manifest=manifest,
    )
    text = error_report(error)
    assert text.startswith("# error: user 'alice' may not list pods. Apply this manifest:\n")
    assert list(yaml.safe_load_all(text)) == [{"kind": "Role"}, {"kind": "RoleBinding"}]


def test_a_forbidden_error_without_a_manifest_is_one_line() -> None:
    assert error_report(errors.ForbiddenError("not allowed")) == "error: not allowed\n"


def test_hints_name_options() -> None:
    hint = "Pass {namespace} or {not_running=skip}, or raise {timeout}."
    error = errors.ResolveError("no pods", hint=hint)
    assert error_report(error) == ("error: no pods. Pass -n or --not-running skip, or raise --timeout.\n")


def test_an_invalid_argument_is_named_as_an_option() -> None:
    error = errors.ConfigurationError("'ML_' is not a valid namespace name", argument="namespace")
    assert error_report(error) == "error: -n: 'ML_' is not a valid namespace name\n"


def test_arguments_without_an_option_are_written_as_in_python() -> None:
    error = errors.ResolveError("no", hint="Pass {discovery_url} or {environment=colab}.")
    assert error_report(error) == "error: no. Pass `discovery_url=` or `environment='colab'`.\n"


@pytest.mark.parametrize("argument", OPTIONS)
def test_each_option_named_in_hints_exists(argument: str) -> None:
    options = re.findall(r"-[a-z-]+|\bNAME\b", option_spelling(argument, None).partition(" (")[0])
    if argument != "task_type":  # "JOB", always followed by "INDEX of --task JOB:INDEX"
        assert set(options[:1]) & {name for command in commands(application) for name in names(command)}


def commands(group: click.Group) -> Iterator[click.Command]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command)
        yield command


def names(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        yield from parameter.opts
        if isinstance(parameter, click.Argument):
            yield parameter.make_metavar(click.Context(command)).strip("[].")


@pytest.mark.parametrize(
    "message",
    [
        "407 from http://user:hunter2@proxy:3128",
        "sent Authorization: Bearer hunter2",
        "sent Authorization: Basic hunter2",
    ],
)
def test_a_traceback_does_not_contain_credentials(message: str) -> None:
    def fail() -> Any:
        try:
            raise OSError(message)
        except OSError as cause:
            raise errors.ConnectionFailedError("not reached") from cause

    with pytest.raises(errors.ConnectionFailedError) as raised:
        fail()
    text = redacted_traceback(raised.value)
    assert "hunter2" not in text
    assert "(secret)" in text
    assert "not reached" in text
