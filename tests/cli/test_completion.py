"""What a shell completes."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from aioresolve.cli import main
from aioresolve.testing import KubernetesServer

Candidates = Callable[..., list[str]]


@pytest.fixture
def candidates(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Candidates:
    """Return a function that returns what a shell completes for the last of the words after `aioresolve`."""

    def candidates(*words: str, **variables: str) -> list[str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("_AIORESOLVE_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", shlex.join(["aioresolve", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit):
            main([])
        return [line.partition(",")[2] for line in capsys.readouterr().out.splitlines() if line]

    return candidates


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The kubeconfig of the user, with the context `west`; a second file of `$KUBECONFIG` does not exist."""
    (path := tmp_path / ".kube" / "config").parent.mkdir()
    KubernetesServer().write_kubeconfig(path, context="west")
    monkeypatch.setenv("KUBECONFIG", f"{path}::{tmp_path / 'missing'}")
    return path


def test_contexts_are_completed_from_the_kubeconfig(candidates: Candidates, config: Path) -> None:
    assert candidates("kubernetes", "--context", "w") == ["west"]
    assert candidates("kubernetes", "--context", "e") == []
    other = config.with_name("other")
    KubernetesServer().write_kubeconfig(other, context="east")
    files = ("--kubeconfig", str(other), "--kubeconfig", str(config))
    assert candidates("wait", "kubernetes", *files, "--context", "") == ["east", "west"]
    assert candidates("kubernetes", "--context", "", KUBECONFIG="", HOME=str(config.parents[1])) == ["west"]


@pytest.mark.parametrize("content", [b"\xff", b"contexts: 7", b"}{"])
def test_an_unreadable_kubeconfig_completes_nothing(
    candidates: Candidates, config: Path, content: bytes
) -> None:
    config.write_bytes(content)
    assert candidates("kubernetes", "--context", "") == []


def test_choices_and_commands_are_completed(candidates: Candidates) -> None:
    assert candidates("kubernetes", "--address", "h") == ["host_ip", "hostname"]
    assert candidates("kubernetes", "--order-by", "n") == ["name", "node-label:"]
    assert candidates("kubernetes", "--not") == ["--not-running"]
    assert candidates("exec", "kubernetes", "--host") == ["--hostfile"]
    assert candidates("watch", "kubernetes", "-o", "t") == ["table"]
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
