"""Values of options: selectors and tasks."""

from __future__ import annotations

import platform
import re
import shlex
import tomllib
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

import aioresolve
from aioresolve import __version__
from aioresolve.cli import main
from aioresolve.cli.application import application
from aioresolve.cli.formats import TaskName
from aioresolve.cli.options import JobSelector, parse_selector, parse_service, parse_task
from aioresolve.cli.sources import selector_options, selectors_by_job


@pytest.mark.parametrize("selector", ["app", "!app", "app in (a, b)", "ps=app", "app=", " app = x , !tier "])
def test_what_kubectl_accepts_is_a_selector_of_the_job_worker(selector: str) -> None:
    assert parse_selector(selector) == JobSelector("worker", selector, selector)


@pytest.mark.parametrize(
    ("job", "selector"),
    [("worker", "app!=x,tier in (a, b)"), ("worker", "!app"), ("ps-2", "a==b"), ("pärameter", "a=b")],
)
def test_otherwise_the_first_equals_sign_separates_the_job_from_the_selector(job: str, selector: str) -> None:
    text = f"{job}={selector}"
    assert parse_selector(text) == JobSelector(job, selector, text)


@pytest.mark.parametrize(
    ("text", "job", "service"),
    [
        ("trainer:grpc", "worker", "trainer:grpc"),
        ("ps=ps:2222", "ps", "ps:2222"),
    ],
)
def test_service_may_have_a_job_and_a_port(text: str, job: str, service: str) -> None:
    assert parse_service(text) == JobSelector(job, service, text, "--service")
    assert selector_options([parse_service(text)]) == f"--service {text}"


@pytest.mark.parametrize("text", ["", "=a", "a:", "Trainer", "app=x=y"])
def test_invalid_service_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Service; write NAME or NAME:PORT"):
        parse_service(text)


_NAMES = st.from_regex(r"[a-z]([a-z0-9_.-]{0,20}[a-z0-9])?", fullmatch=True)


@given(_NAMES, _NAMES, st.sampled_from(["=", "==", "!=", "<", ">"]), _NAMES)
def test_every_job_can_be_named_before_a_label_with_a_value(
    job: str, key: str, operator: str, value: str
) -> None:
    selector = f"{key}{operator}{value}"
    assert parse_selector(selector) == JobSelector("worker", selector, selector)
    text = f"{job}={selector}"
    assert parse_selector(text) == JobSelector(job, selector, text)
    assert selector_options([parse_selector(text)]) == f"-l {shlex.quote(text)}"


@pytest.mark.parametrize(
    "text",
    ["", "=app=trainer", "worker=a=b=c", "a,b=c=d", "worker!=app=x", "app in a", "app=träner", "worker=app,"],
)
def test_an_ambiguous_or_invalid_selector_is_rejected_with_both_spellings(text: str) -> None:
    with pytest.raises(ValueError, match="is not a label selector") as raised:
        parse_selector(text)
    assert str(raised.value).startswith(repr(text))
    assert "-l app=trainer" in str(raised.value)
    assert "-l worker=app=trainer" in str(raised.value)


def test_jobs_and_their_selectors_keep_their_order() -> None:
    selectors = [parse_selector(text) for text in ("ps=x=b", "x=z", "ps=x=a")]
    assert list(selectors_by_job(selectors).items()) == [("ps", ["x=b", "x=a"]), ("worker", ["x=z"])]


@given(st.text(min_size=1), st.integers(0, 999_999_999))
def test_a_task_is_a_job_and_an_index(job: str, index: int) -> None:
    assert parse_task(f"{job}:{index}") == TaskName(job, index)


@pytest.mark.parametrize("text", ["worker", ":0", "worker:-1", "worker:٣", "worker:1000000000"])
def test_invalid_tasks_are_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="such as worker:0"):
        parse_task(text)


WAIT = {"--timeout": "10m", "--allow-unready": "all must be ready"}


@pytest.mark.parametrize(
    ("command", "defaults"),
    [
        (
            "kubernetes",
            {"--port": "that of the Service, else 8470", "--address": "pod_ip", "--timeout": "30s"},
        ),
        ("wait tpu", {**WAIT, "--not-healthy": "raise", "--address": "internal_ip", "--interval": "5s"}),
        ("exec slurm", {**WAIT, "--for": "env", "--port-base": "8888", "--allow-unready": None}),
    ],
)
def test_the_help_shows_the_default_of_each_option(command: str, defaults: dict[str, str | None]) -> None:
    found: click.Command = application
    context = click.Context(application)
    for name in command.split():
        assert isinstance(found, click.Group)
        child = found.get_command(context, name)
        assert child is not None
        found, context = child, click.Context(child, parent=context, info_name=name)
    shown = {}
    for parameter in found.get_params(context):
        _, text = parameter.get_help_record(context) or ("", "")
        if default := re.search(r"\[default: ([^\];]*)", text):
            shown[max(parameter.opts, key=len)] = default[1]
    assert {name: shown.get(name) for name in defaults} == defaults


def test_version_prints_with_v_what_the_command_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aioresolve {__version__}\n"
    assert main(["--version", "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"aioresolve {__version__}"
    assert platform.python_version() in lines[1]
    assert f"aiohttp {version('aiohttp')}" in lines


def test_kubectl_finds_the_command_as_a_plugin() -> None:
    project = tomllib.loads((Path(aioresolve.__file__).parent.parent / "pyproject.toml").read_text())
    scripts = project["project"]["scripts"]
    assert scripts["kubectl-aioresolve"] == scripts["aioresolve"] == "aioresolve.cli:main"


def test_a_short_option_may_have_its_value_after_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "-n=ml", "-l=worker=app=x", "-o=frob"]) == 2
    assert "'-o' / '--output': 'frob' is not one of" in capsys.readouterr().err
