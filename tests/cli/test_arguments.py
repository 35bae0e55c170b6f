"""Values of options, and the root command."""

from __future__ import annotations

import platform
from importlib.metadata import version

import pytest

from aioresolve import __version__
from aioresolve.cli import main
from aioresolve.cli.options import JobSelector, parse_selector, parse_service, parse_task


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
    "text",
    ["", "=app=trainer", "worker=a=b=c", "a,b=c=d", "worker!=app=x", "app in a", "app=träner", "worker=app,"],
)
def test_ambiguous_or_invalid_selector_is_rejected_with_both_spellings(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as -l app=trainer, or .*, such as -l worker=app=trainer"):
        parse_selector(text)


def test_service_may_have_a_job_and_a_port() -> None:
    text = "ps=ps:2222"
    assert parse_service(text) == JobSelector("ps", "ps:2222", text, "--service")
    for text in ("", "=a", "a:", "Trainer", "app=x=y"):
        with pytest.raises(ValueError, match="is not a Service; write NAME or NAME:PORT"):
            parse_service(text)


@pytest.mark.parametrize("text", ["worker", ":0", "worker:-1", "worker:٣", "worker:1000000000"])
def test_invalid_task_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="such as worker:0"):
        parse_task(text)


def test_short_option_may_have_its_value_after_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "-n=ml", "-l=worker=app=x", "-o=frob"]) == 2
    assert "'-o' / '--output': 'frob' is not one of" in capsys.readouterr().err


def test_version_prints_with_v_what_the_command_runs_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aioresolve {__version__}\n"
    assert main(["--version", "-v"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"aioresolve {__version__}"
    assert platform.python_version() in lines[1]
    assert f"aiohttp {version('aiohttp')}" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Commands:\n  kubernetes "),
        (["watch"], "error: Missing command.\nTry 'aioresolve watch --help'.\n"),
        (["kubernets"], "error: No such command 'kubernets'"),
        (["completion", "csh"], "csh"),
    ],
)
def test_missing_or_unknown_command_is_invalid_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert message in written.err


@pytest.mark.parametrize(
    "command", ["kubernetes", "wait tpu", "exec slurm", "watch here", "doctor tpu", "poll"]
)
def test_help_has_examples_and_the_defaults_of_options(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Examples: # " in shown
    assert "[default: " in shown
    assert ("--interval" in shown) is (command not in ("kubernetes", "exec slurm", "doctor tpu"))
