"""Shell completion: the candidates, and the scripts."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from click.shell_completion import ShellComplete

from aioresolve.cli import completion, main
from aioresolve.cli.application import application
from aioresolve.testing import Answer, Hang, KubernetesServer, pod

from .process import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import RequestRecord, ThreadedKubernetesServer


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    KubernetesServer().write_kubeconfig(path, context="west")
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'missing'}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def candidates(*words: str, incomplete: str = "", command: tuple[str, ...] = ("kubernetes",)) -> list[str]:
    complete = ShellComplete(application, {}, "aioresolve", "_AIORESOLVE_COMPLETE")
    return [item.value for item in complete.get_completions([*command, *words], incomplete)]


def test_contexts_are_completed_from_the_kubeconfig(kubeconfig: Path, tmp_path: Path) -> None:
    assert candidates("--context", incomplete="w") == ["west"]
    assert candidates("--context", incomplete="e") == []
    KubernetesServer().write_kubeconfig(tmp_path / "other", context="east")
    files = ("--kubeconfig", str(tmp_path / "other"), "--kubeconfig", str(kubeconfig))
    assert candidates(*files, "--context", command=("wait", "kubernetes")) == ["east", "west"]


@pytest.mark.parametrize("content", [b"\xff", b"contexts: 7", b"}{"])
def test_an_unreadable_kubeconfig_completes_nothing(kubeconfig: Path, content: bytes) -> None:
    kubeconfig.write_bytes(content)
    assert candidates("--context") == []


@pytest.fixture
def server(kubeconfig: Path) -> Iterator[ThreadedKubernetesServer]:
    """The server of the kubeconfig; it lists the namespaces `ml` and `default`."""
    with KubernetesServer(tls=True, tokens={"a-token": "alice"}).in_thread() as server:
        server.write_kubeconfig(kubeconfig, context="west")
        names = [{"metadata": {"name": name}} for name in ("ml", "default")]
        server.inject(Answer(200, json.dumps({"items": names}).encode()), match=is_namespaces, times=None)
        yield server


def is_namespaces(request: RequestRecord) -> bool:
    return request.path == "/api/v1/namespaces"


def test_namespaces_are_completed_from_the_cluster(server: ThreadedKubernetesServer) -> None:
    assert candidates("-n") == ["default", "ml"]
    assert candidates("--context", "west", "--namespace", incomplete="m") == ["ml"]
    assert candidates("--context", "nowhere", "-n") == []


@pytest.mark.parametrize("fault", [Answer(403), Answer(200, b"[]"), Hang()], ids=repr)
def test_a_cluster_that_does_not_list_its_namespaces_soon_completes_nothing(
    server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    monkeypatch.setattr(completion, "TIMEOUT", 0.3 if isinstance(fault, Hang) else 30)
    server.clear_faults()
    server.inject(fault, match=is_namespaces, times=None)
    assert candidates("-n") == []


def test_the_cluster_is_that_of_the_options(
    server: ThreadedKubernetesServer, kubeconfig: Path, tmp_path: Path
) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace(server.url, "https://127.0.0.1:1"))
    token = tmp_path / "token"
    token.write_text("a-token")
    options = ("--server", server.url, "--token-file", str(token), "--as", "ada", "--as-group", "math")
    server.forget_requests()
    assert candidates(*options, "-n") == ["default", "ml"]
    [request] = server.requests
    assert (request.user, request.impersonated_user, request.impersonated_groups) == (
        *("alice", "ada"),
        ("math",),
    )


@pytest.fixture
def pods(kubeconfig: Path) -> Iterator[ThreadedKubernetesServer]:
    """The server of the kubeconfig, with pods in the namespaces `default` and `ml`."""
    labels = {
        ("a", "ml"): {"app": "trainer", "tier": "gpu"},
        ("b", "ml"): {"app": "server"},
        ("c", "default"): {"app": "proxy"},
    }
    pods = [pod(name, namespace, labels=each) for (name, namespace), each in labels.items()]
    with KubernetesServer(pods, tls=True, tokens={"a-token": "alice"}).in_thread() as server:
        server.write_kubeconfig(kubeconfig, context="west")
        yield server


@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize(
    ("namespaces", "incomplete", "expected"),
    [
        (["-n", "ml"], "", ["app=server", "app=trainer", "tier=gpu"]),
        (["-n", "ml"], "worker=app=trainer,ti", ["worker=app=trainer,tier=gpu"]),
        (["-n", "ml"], "worker=t", ["worker=tier=gpu"]),
        ([], "app=", ["app=proxy"]),
        (["-n", "ml", "-n", "default"], "app=", ["app=proxy", "app=server", "app=trainer"]),
        (["-A"], "app=", ["app=proxy", "app=server", "app=trainer"]),
    ],
)
def test_selectors_are_completed_from_the_labels_of_pods(
    namespaces: list[str], incomplete: str, expected: list[str]
) -> None:
    assert candidates(*namespaces, "-l", incomplete=incomplete) == expected


def test_choices_are_completed(kubeconfig: Path) -> None:
    assert candidates("--address", incomplete="h") == ["host_ip", "hostname"]
    assert candidates("--order-by", incomplete="i") == ["index"]
    assert "--not-running" in candidates(incomplete="--not")
    assert candidates("-o", command=("poll",)) == ["table", "json"]
    assert candidates("-o", incomplete="t", command=("watch", "kubernetes")) == ["table", "tf-config"]


def test_each_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert f"_AIORESOLVE_COMPLETE={shell}_complete" in script
    # A candidate is TYPE,VALUE and a description, which may contain commas.
    assert 'string split --max 1 "," $completion' in script


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.usefixtures("pods")
@pytest.mark.parametrize(
    ("breaks", "words", "cursor", "expected"),
    [
        # bash passes app=t as three words, and replaces the last of them only.
        ("=", ["-n", "ml", "-l", "app", "=", "t"], 7, "trainer"),
        ("=", ["-n", "ml", "-l", "worker", "=", "app", "=", "t"], 9, "trainer"),
        ("=", ["--context", "=", "w"], 4, "west"),
        ("", ["-n", "ml", "-l", "app=t"], 5, "app=trainer"),
    ],
)
def test_bash_completes_with_the_script(
    kubeconfig: Path, tmp_path: Path, breaks: str, words: list[str], cursor: int, expected: str
) -> None:
    shim = tmp_path / "aioresolve"
    shim.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    shim.chmod(0o755)
    script = (
        'source <("$1" completion bash)\n'
        f"COMP_WORDBREAKS='{breaks}' COMP_CWORD={cursor}\n"
        f"COMP_WORDS=(aioresolve kubernetes {' '.join(words)})\n"
        '_aioresolve_completion "$1"\n'
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script, "bash", str(shim)],
        env=environment(kubeconfig),
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"{expected}\n", "")
