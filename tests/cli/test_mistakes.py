"""Mistakes of a first hour: each ends with a message that names what exists, or what to do."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aioresolve import __version__
from aioresolve.testing import GoogleServer, ThreadedKubernetesServer, tpu_node
from tests.kubernetes.loopback import disable_retries

from .process import Result, Run, environment

FILES = {
    "field.yaml": "targets: {east: {kubernetes: {jobs: {worker: app=train}, contxt: east}}}",
    "empty.yaml": "targets: {}",
    "token": "expired",
}
TRAIN = ("kubernetes", "-l", "app=train")
TPU = ("tpu", "my-tpu", "--project", "demo-project")


@pytest.fixture
def env(
    server: ThreadedKubernetesServer, kubeconfig: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """The environment of a user with a cluster, a TPU, and the files above in the current folder."""
    monkeypatch.chdir(kubeconfig.parent)
    for name, content in FILES.items():
        kubeconfig.with_name(name).write_text(content)
    server.allow = {"alice": None, "eve": ["ml"]}
    with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])]).in_thread() as google:
        yield environment(kubeconfig, **google.environ())


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param(
            ("kubernetes", "-l", "aap=train"),
            1,
            "; labels there: app, batch.kubernetes.io/job-completion-index (",
            id="selector",
        ),
        pytest.param(
            ("kubernetes", "-l", "app=trian"), 1, "; values of app there: ps, stuck, train (", id="value"
        ),
        pytest.param(
            ("wait", "kubernetes", "-l", "app=trian", "--timeout", "2s"),
            3,
            "app=trian   no pod matches app=trian in namespace 'ml'; values of app there: ps, stuck, train (",
            id="value-in-wait",
        ),
        pytest.param(
            ("k8s", "app=train"), 2, "pass a selector with -l, such as -l app=train", id="no-option"
        ),
        pytest.param(("k8s", "train"), 2, "pass a selector with -l, such as -l app=trainer", id="no-equals"),
        pytest.param(("poll", "a.yaml", "b.yaml"), 2, "unexpected extra argument (b.yaml)", id="two-files"),
        pytest.param(
            ("wait", "app=train"),
            2,
            "pass a selector with -l after the command, such as kubernetes -l app=train",
            id="no-source",
        ),
        pytest.param(
            ("kubernetes", "-l", "app=train", "-n", "mll"),
            1,
            "in namespace 'mll'; it matches pods in namespaces default, ml (",
            id="namespace",
        ),
        pytest.param(
            (*TRAIN, "--context", "her"), 2, "there is no context 'her'; there are: 'here'", id="context"
        ),
        pytest.param(
            (*TRAIN, "--kubeconfig", "confg"), 2, "confg cannot be read: No such file", id="kubeconfig"
        ),
        pytest.param(
            (*TRAIN, "--server", "https://127.0.0.1:1"),
            1,
            "Check that the address is correct, that the server runs,",
            id="server",
        ),
        pytest.param(
            (*TRAIN, "--server", "https://api.invalid"),
            1,
            "Correct the server in the kubeconfig, or check the DNS.",
            id="no-network",
        ),
        pytest.param(
            (*TRAIN, "--token-file", "token"), 1, "Log in again, or renew the token there.", id="token"
        ),
        pytest.param(
            ("tpu", "my-tpx", *TPU[2:], "--zone", "us-central2-b"),
            1,
            "; TPUs in us-central2-b: my-tpu. ",
            id="tpu",
        ),
        pytest.param(
            (*TPU, "--zone", "us-central2-c"),
            1,
            "; TPUs in us-central2-c: none; in other zones: my-tpu (us-central2-b). ",
            id="zone",
        ),
        pytest.param(
            ("kubernets",),
            2,
            "'kubernets' is not a command of `aioresolve`; did you mean 'kubernetes'?\nTry 'aioresolve --",
            id="command",
        ),
        pytest.param((*TRAIN, "--namespce", "ml"), 2, "--namespace", id="option"),
        pytest.param(
            ("-l", "app=train"),
            2,
            "Options come after the command, such as aioresolve kubernetes -l",
            id="early-option",
        ),
        pytest.param(("poll", "field.yaml", "--check"), 2, "did you mean 'context'?", id="field"),
        pytest.param(
            ("poll", "empty.yaml"), 2, "add at least one target, such as {us-east:", id="empty-fleet"
        ),
        pytest.param(("wait", *TRAIN, "--count", "four"), 2, "write N, such as 16, or a range", id="number"),
        pytest.param((*TRAIN, "--port", "99999"), 2, "99999 is not in the range 1<=x<=65535", id="port"),
        pytest.param(
            (*TRAIN, "-A", "-o", "name", "--as", "eve"), 1, "\nkind: ClusterRole\n", id="permission"
        ),
        pytest.param(("probe", "127.0.0.1:1"), 1, "1 of 1 workers failed the probe", id="dead-worker"),
    ],
)
def test_message_names_what_exists_or_what_to_do(
    run: Run,
    env: dict[str, str],
    arguments: tuple[str, ...],
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disable_retries(monkeypatch)
    result = run(arguments, env)
    assert (result.code, text in result.stderr) == (code, True), result.stderr


def test_old_python_is_refused(run: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "hexversion", 0x030A00F0)
    result = run(("--version",), env)
    assert result.code == 2
    assert result.stderr.startswith("error: aioresolve requires Python 3.11 or later; this is Python 3.")


def test_missing_extra_is_named(run: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aioresolve.cli.find_spec", lambda name: None if name == "rich" else name)
    result = run(TRAIN, env)
    assert result.stderr == "error: the command line requires rich: pip install 'aioresolve[cli]'\n"


def test_help_and_version_are_commands(run: Run, env: dict[str, str]) -> None:
    assert run(("help", "wait", "k8s"), env) == run(("wait", "k8s", "--help"), env)
    assert run(("version",), env) == run(("--version",), env) == Result(0, f"aioresolve {__version__}\n", "")
    assert "did you mean 'kubernetes'" in run(("help", "kubernets"), env).stderr


def test_new_fleet_file_has_the_contexts_and_is_valid(
    run: Run, env: dict[str, str], kubeconfig: Path
) -> None:
    written = run(("poll", "fleet.yaml", "--init"), env)
    assert written == Result(0, "", "wrote fleet.yaml with 1 target; correct the selector in it\n")
    assert run(("poll", "fleet.yaml", "--check"), env).stdout == "fleet.yaml: valid, 1 target\n"
    assert "  here:\n    kubernetes:\n      context: here\n" in kubeconfig.with_name("fleet.yaml").read_text()
    again = run(("poll", "fleet.yaml", "--init"), env)
    assert (again.code, "cannot write fleet.yaml: File exists" in again.stderr) == (2, True)
    without = run(("poll", "other.yaml", "--init"), env | {"KUBECONFIG": "/nowhere"})
    assert "the kubeconfig has no contexts; set $KUBECONFIG" in without.stderr


@pytest.mark.parametrize(
    ("shell", "path"),
    [
        ("bash", ".local/share/bash-completion/completions/aioresolve"),
        ("zsh", ".zfunc/_aioresolve"),
        ("fish", ".config/fish/completions/aioresolve.fish"),
    ],
)
def test_completion_is_installed_where_the_shell_finds_it(
    run: Run, env: dict[str, str], kubeconfig: Path, shell: str, path: str
) -> None:
    installed = run(("completion", "install"), env | {"SHELL": f"/bin/{shell}"})
    assert installed.stderr.startswith(f"installed {kubeconfig.parent / path}; start a new {shell}")
    assert (installed.code, "add to ~/.zshrc: " in installed.stderr) == (0, shell == "zsh")
    assert (kubeconfig.parent / path).read_text() == run(("completion", shell), env).stdout
    assert run(("completion", "install", shell), env) == installed
    failed = run(("completion", "install", shell), env | {"HOME": "/dev/null"})
    assert failed == Result(1, "", f"error: cannot write /dev/null/{path}: Not a directory\n")
    unknown = run(("completion", "install"), env | {"SHELL": "/bin/tcsh"})
    assert "pass one: aioresolve completion install bash" in unknown.stderr
