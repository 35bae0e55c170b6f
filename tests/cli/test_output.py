"""Output formats: tables, documents, TF_CONFIG, errors and exit codes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import yaml

from aioresolve import ClusterState, Endpoint, errors
from aioresolve.cli.application import application
from aioresolve.cli.clusters import state_table
from aioresolve.cli.error_messages import OPTIONS, SAME_NAMES, error_report, exit_code, option_spelling
from aioresolve.cli.formats import Table, TextTable, aligned

if TYPE_CHECKING:
    from collections.abc import Iterator

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


def test_a_table_without_rows_is_empty_as_with_kubectl() -> None:
    assert aligned(Table(("A", "B"), [])) == ""


def test_columns_are_aligned_if_characters_are_wide_or_combined() -> None:
    table = Table(("NAME", "TASKS"), [("東京", "1"), ("e\u0301toile", "2"), ("a\x1b", "")])
    expected = "NAME     TASKS\n東京     1\ne\u0301toile   2\na\\x1b    <none>\n"
    assert aligned(table) == expected
    rows = TextTable(table.columns, [6])
    assert "".join(rows.lines([row]) for row in table.rows) == expected


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
    for argument in {*OPTIONS, *SAME_NAMES} - {
        "task_type"
    }:  # "JOB", always followed by "INDEX of --task JOB:INDEX"
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
