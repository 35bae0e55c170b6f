"""What a shell completes."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from aioresolve.cli import completion, main
from aioresolve.testing import Answer, Hang, KubernetesServer, pod

from .process import COMMAND, environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aioresolve.testing import RequestRecord, ThreadedKubernetesServer

    from .conftest import Candidates


LABELS = {
    ("a", "ml"): {"app": "trainer", "tier": "gpu"},
    ("b", "ml"): {"app": "server"},
    ("c", "default"): {"app": "proxy"},
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    KubernetesServer().write_kubeconfig(path, context="west")
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'missing'}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


@pytest.fixture
def server(kubeconfig: Path) -> Iterator[ThreadedKubernetesServer]:
    """The server of the kubeconfig; it has pods, and lists the namespaces `ml` and `default`."""
    pods = [pod(name, namespace, labels=each) for (name, namespace), each in LABELS.items()]
    with KubernetesServer(pods, tls=True, tokens={"a-token": "alice"}).in_thread() as server:
        server.write_kubeconfig(kubeconfig, context="west")
        names = [{"metadata": {"name": name}} for name in ("ml", "default")]
        server.inject(Answer(200, json.dumps({"items": names}).encode()), match=is_namespaces, times=None)
        yield server


def is_namespaces(request: RequestRecord) -> bool:
    return request.path == "/api/v1/namespaces"


@pytest.mark.usefixtures("kubeconfig")
def test_contexts_are_completed_from_the_kubeconfig(candidates: Candidates, tmp_path: Path) -> None:
    assert candidates("kubernetes", "--context", "w") == ["west"]
    assert candidates("kubernetes", "--context", "e") == []
    KubernetesServer().write_kubeconfig(tmp_path / "other", context="east")
    files = ("--kubeconfig", str(tmp_path / "other"), "--kubeconfig", str(tmp_path / "config"))
    assert candidates("wait", "kubernetes", *files, "--context", "") == ["east", "west"]


@pytest.mark.parametrize("content", [b"\xff", b"contexts: 7", b"}{"])
def test_an_unreadable_kubeconfig_completes_nothing(
    candidates: Candidates, kubeconfig: Path, content: bytes
) -> None:
    kubeconfig.write_bytes(content)
    assert candidates("kubernetes", "--context", "") == []


@pytest.mark.usefixtures("server")
def test_namespaces_are_completed_from_the_cluster(candidates: Candidates) -> None:
    assert candidates("kubernetes", "-n", "") == ["default", "ml"]
    assert candidates("kubernetes", "--context", "west", "--namespace", "m") == ["ml"]
    assert candidates("kubernetes", "--context", "nowhere", "-n", "") == []


@pytest.mark.parametrize("fault", [Answer(403), Answer(200, b"[]"), Hang()], ids=repr)
def test_a_cluster_that_does_not_list_its_namespaces_soon_completes_nothing(
    candidates: Candidates, server: ThreadedKubernetesServer, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    monkeypatch.setattr(completion, "TIMEOUT", 0.3 if isinstance(fault, Hang) else 30)
    server.clear_faults()
    server.inject(fault, match=is_namespaces, times=None)
    assert candidates("kubernetes", "-n", "") == []


def test_the_cluster_is_that_of_the_options(
    candidates: Candidates, server: ThreadedKubernetesServer, kubeconfig: Path, tmp_path: Path
) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace(server.url, "https://127.0.0.1:1"))
    (tmp_path / "token").write_text("a-token")
    options = ("--server", server.url, "--token-file", str(tmp_path / "token"), "--as", "ada")
    server.forget_requests()
    assert candidates("kubernetes", *options, "--as-group", "math", "-n", "") == ["default", "ml"]
    [request] = server.requests
    assert (request.user, request.impersonated_user) == ("alice", "ada")
    assert request.impersonated_groups == ("math",)


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize(
    ("namespaces", "incomplete", "expected"),
    [
        (["-n", "ml"], "", ["app=server", "app=trainer", "tier=gpu"]),
        (["-n", "ml"], "worker=app=trainer,ti", ["worker=app=trainer,tier=gpu"]),
        (["-n", "ml"], "worker=t", ["worker=tier=gpu"]),
        ([], "app=", ["app=proxy"]),
        (["-A"], "app=", ["app=proxy", "app=server", "app=trainer"]),
    ],
)
def test_selectors_are_completed_from_the_labels_of_pods(
    candidates: Candidates, namespaces: list[str], incomplete: str, expected: list[str]
) -> None:
    assert candidates("kubernetes", *namespaces, "-l", incomplete) == expected


def test_choices_and_commands_are_completed(candidates: Candidates) -> None:
    assert candidates("kubernetes", "--address", "h") == ["host_ip", "hostname"]
    assert candidates("kubernetes", "--order-by", "i") == ["index"]
    assert "--not-running" in candidates("kubernetes", "--not")
    assert candidates("watch", "kubernetes", "-o", "t") == ["table", "tf-config"]
    assert candidates("exec", "kubernetes", "--for", "mp") == ["mpi", "mpich"]
    # After -- is a command, for which the shell completes files.
    assert candidates("exec", "kubernetes", "-l", "a=b", "--", "tra") == ["tra"]


def test_each_shell_has_a_script(capsys: pytest.CaptureFixture[str]) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert main(["completion", shell]) == 0
        script = capsys.readouterr().out
        assert f"_AIORESOLVE_COMPLETE={shell}_complete" in script
    # A candidate is TYPE,VALUE and a description, which may contain commas.
    assert 'string split --max 1 "," $completion' in script


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.usefixtures("server")
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
