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
    aligned,
    as_json,
    as_yaml,
    cluster_document,
    printable,
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
UNKNOWN = dict.fromkeys(("name", "namespace", "uid", "node", "ready", "status", "index", "accelerators"))
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
                **UNKNOWN,
                "name": "train-1",
                "namespace": "ml",
                "uid": "u-2",
                "ready": False,
                "status": "Evicted: no disk",
            },
        ],
        "ps": [{"task": 3, "address": "1:20", **UNKNOWN}],
        "chief": [],
    },
    "version": "41",
    "observed_at": "2026-01-02T03:04:05Z",
}
CELLS = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def test_the_wide_table_shows_identities_and_unknown_values() -> None:
    table = aligned(state_table(STATE))
    assert [re.split(r"\s{2,}", line) for line in table.splitlines()] == [
        ["JOB", "TASK", "ADDRESS", "NAME", "NAMESPACE", "NODE", "READY", "UID", "ACCELERATORS", "STATUS"],
        [
            *("worker", "0", "10.0.0.1:8470", "train-0", "ml", "node-a", "true", "u-1"),
            *("google.com/tpu=4,nvidia.com/gpu=1", "Running"),
        ],
        [
            *("worker", "1", "[fd00::7]:8470", "train-1", "ml", "<none>", "false", "u-2", "<none>"),
            "Evicted: no disk",
        ],
        ["ps", "3", "1:20", *["<none>"] * 7],
    ]
    colored = render_table(state_table(STATE))
    assert ESCAPES.sub("", colored) == table != colored


def test_a_table_without_rows_is_empty_as_with_kubectl() -> None:
    assert aligned(Table(("A", "B"), [])) == render_table(Table(("A", "B"), [])) == ""


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


def test_a_colored_table_does_not_truncate_or_interpret_addresses() -> None:
    long = f"[{'fd00:' * 7}1]:8470"
    assert long in ESCAPES.sub("", render_table(Table(("ADDRESS", "NAME"), [(long, "x" * 300)])))


def test_json_and_yaml_have_the_documented_shape() -> None:
    assert json.loads(as_json(cluster_document(STATE))) == DOCUMENT
    assert yaml.safe_load(as_yaml(cluster_document(STATE))) == DOCUMENT
    unknown = cluster_document(ClusterState.from_spec(SPEC))
    assert (unknown["version"], unknown["observed_at"]) == (None, None)


def test_yaml_keeps_the_order_of_keys_and_readable_text() -> None:
    assert as_yaml({"name": "zürich-0", "address": "10.0.0.1:8470"}) == (
        "name: zürich-0\naddress: 10.0.0.1:8470\n"
    )


def test_tf_config_is_one_line_with_the_cluster_and_the_task_that_reads_it() -> None:
    text = tf_config(SPEC, TaskName("worker", 1))
    assert text.count("\n") == 1
    assert json.loads(text) == {
        "cluster": {"worker": ["10.0.0.1:8470", "[fd00::7]:8470"], "ps": {"3": "10.0.0.3:8470"}},
        "task": {"type": "worker", "index": 1},
    }
    # An evaluator is a task without being in the cluster.
    assert json.loads(tf_config(SPEC, TaskName("evaluator", 0)))["task"]["type"] == "evaluator"


@pytest.mark.parametrize("task", [TaskName("worker", 2), TaskName("chief", 0)])
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


def test_each_error_has_its_exit_code() -> None:
    kinds = [getattr(errors, name) for name in errors.__all__ if name != "Hint"]
    assert {kind: exit_code(kind("what")) for kind in kinds} == {kind: CODES.get(kind, 1) for kind in kinds}


def test_an_error_is_one_line_for_each_problem_without_control_characters() -> None:
    error = errors.PodNotRunningError("1 pod is not running: it says\n \x1b[2Jboo")
    assert error_report(error) == "error: 1 pod is not running: it says \\x1b[2Jboo\n"
    problems = errors.ConfigurationError("fleet.yaml:1: no `targets`\nfleet.yaml:2: x:  unknown field")
    assert error_report(problems) == (
        "error: fleet.yaml:1: no `targets`\nerror: fleet.yaml:2: x: unknown field\n"
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


def test_arguments_are_named_as_options_if_there_is_one() -> None:
    hint = "Pass {namespace} or {not_running=skip}, or {discovery_url} or {environment=colab}."
    error = errors.ConfigurationError("'ML_' is not valid", argument="namespace", hint=hint)
    assert error_report(error) == (
        "error: -n: 'ML_' is not valid. Pass -n or --not-running skip, or `discovery_url=` or"
        " `environment='colab'`.\n"
    )


def test_each_option_named_in_hints_exists() -> None:
    existing = {name for command in commands(application) for name in names(command)}
    for argument in OPTIONS.keys() - {"task_type"}:  # "JOB", always followed by "INDEX of --task JOB:INDEX"
        options = re.findall(r"-[a-z-]+|\bNAME\b", option_spelling(argument, None).partition(" (")[0])
        assert set(options[:1]) & existing, argument


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
