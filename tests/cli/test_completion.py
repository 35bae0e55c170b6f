"""Completion in a shell: what is offered, and the scripts that offer it."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete

from aioresolve.cli import main
from aioresolve.cli.application import application
from aioresolve.cli.options import ADDRESSES
from aioresolve.cli.output.cluster_text import OUTPUTS, WATCHED
from aioresolve.testing import KubernetesServer

from .process import COMMAND, environment

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config"
    KubernetesServer().write_kubeconfig(path, context="west")
    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path / 'missing'}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return path


def offered(*words: str, incomplete: str = "", command: tuple[str, ...] = ("kubernetes",)) -> list[str]:
    complete = ShellComplete(application, {}, "aioresolve", "_AIORESOLVE_COMPLETE")
    return [item.value for item in complete.get_completions([*command, *words], incomplete)]


def test_contexts_are_those_of_the_kubeconfig(kubeconfig: Path) -> None:
    assert offered("--context") == ["west"]
    assert offered("--context", incomplete="w") == ["west"]
    assert offered("--context", incomplete="e") == []


def test_contexts_are_those_of_the_kubeconfigs_already_typed(kubeconfig: Path, tmp_path: Path) -> None:
    KubernetesServer().write_kubeconfig(tmp_path / "other", context="east")
    assert offered("--kubeconfig", str(tmp_path / "other"), "--context") == ["east"]
    assert offered(
        *("--kubeconfig", str(tmp_path / "other"), "--kubeconfig", str(kubeconfig), "--context")
    ) == ["east", "west"]


def test_contexts_are_found_at_home(
    kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG")
    (tmp_path / ".kube").mkdir()
    kubeconfig.rename(tmp_path / ".kube" / "config")
    assert offered("--context") == ["west"]


@pytest.mark.parametrize("content", [b"", b"\xff", b"contexts: 7", b"}{", b"kind: Pod"])
def test_a_kubeconfig_that_cannot_be_read_offers_nothing(kubeconfig: Path, content: bytes) -> None:
    kubeconfig.write_bytes(content)
    assert offered("--context") == []


def test_fixed_choices_are_offered(kubeconfig: Path) -> None:
    assert offered("-o") == list(OUTPUTS)
    assert offered("--address") == list(ADDRESSES)
    assert offered("--order-by", incomplete="i") == ["index"]
    assert "--not-running" in offered(incomplete="--not")


@pytest.mark.parametrize(
    ("command", "outputs"),
    [
        (("watch", "kubernetes"), WATCHED),
        (("watch", "tpu"), WATCHED),
        (("wait", "kubernetes"), OUTPUTS),
        (("wait", "tpu"), OUTPUTS),
        (("poll",), ("table", "json")),
    ],
)
def test_each_command_offers_its_own_choices(
    kubeconfig: Path, command: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    assert offered("-o", command=command) == list(outputs)


@pytest.mark.parametrize("command", ["watch", "wait"])
def test_a_context_is_offered_to_whoever_follows_a_cluster(kubeconfig: Path, command: str) -> None:
    assert offered("--context", command=(command, "kubernetes")) == offered("--context") != []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    written = capsys.readouterr()
    assert f"_AIORESOLVE_COMPLETE={shell}_complete" in written.out
    assert written.err == ""


def test_a_shell_without_a_script_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "csh"]) == 2
    assert "csh" in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_with_the_script(kubeconfig: Path, tmp_path: Path) -> None:
    shim = tmp_path / "aioresolve"
    shim.write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    shim.chmod(0o755)
    script = (
        'source <("$1" completion bash)\n'
        "COMP_WORDS=(aioresolve kubernetes --context w) COMP_CWORD=3\n"
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
    assert (done.stdout, done.stderr) == ("west\n", "")
