"""Values of options, and the root command."""

import json

import pytest

from aioresolve.cli import main
from aioresolve.testing import ThreadedKubernetesServer

from .process import Run


@pytest.mark.parametrize(
    ("value", "job", "selector"),
    [
        *(
            (one, "worker", one)
            for one in ("app", "!app", "app in (a, b)", "ps=app", "app=", " app = x , !y ")
        ),
        ("worker=app!=x,tier in (a, b)", "worker", "app!=x,tier in (a, b)"),
        ("worker=!app", "worker", "!app"),
        ("ps-2=a==b", "ps-2", "a==b"),
        ("pärameter=a=b", "pärameter", "a=b"),
    ],
)
def test_what_kubectl_accepts_is_a_selector_of_the_job_worker_and_otherwise_a_job_precedes_it(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer, value: str, job: str, selector: str
) -> None:
    result = run(("kubernetes", "-l", value, "--allow-empty", "-o", "json", "--not-running", "skip"), env)
    assert list(json.loads(result.stdout)["jobs"]) == [job]
    assert {request.query["labelSelector"] for request in server.requests} == {selector}


@pytest.mark.parametrize(
    ("option", "values", "message"),
    [
        (
            "-l",
            (
                "",
                "=app=trainer",
                "worker=a=b=c",
                "a,b=c=d",
                "worker!=app=x",
                "app in a",
                "app=träner",
                "a=b,",
            ),
            "such as -l app=trainer, or JOB=SELECTOR, such as -l worker=app=trainer",
        ),
        ("--service", ("", "=a", "a:", "Trainer", "app=x=y"), "is not a Service; write NAME or NAME:PORT"),
        ("--task", ("worker", ":0", "worker:-1", "worker:٣", "worker:1000000000"), "such as worker:0"),
    ],
)
def test_invalid_value_is_rejected_with_the_format(
    capsys: pytest.CaptureFixture[str], option: str, values: tuple[str, ...], message: str
) -> None:
    for value in values:
        assert main(["kubernetes", option, value]) == 2
        assert message in capsys.readouterr().err


def test_short_option_may_have_its_value_after_an_equals_sign(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kubernetes", "-n=ml", "-l=worker=app=x", "-o=frob"]) == 2
    assert "'-o' / '--output': 'frob' is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Commands:\n  kubernetes "),
        (["watch"], "error: Missing command.\nTry 'aioresolve watch --help'.\n"),
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
    "command", ["kubernetes", "wait tpu", "exec slurm", "watch here", "doctor k8s", "poll"]
)
def test_help_has_examples_and_the_defaults_of_options(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    assert main([*command.split(), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Examples: # " in shown
    assert "[default: " in shown
    assert ("--interval" in shown) is (command not in ("kubernetes", "exec slurm", "doctor k8s"))
