"""The command in a process of its own, as a shell would start it, and a cluster for it to ask."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioresolve.testing import KubernetesServer, pod

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from aioresolve.testing import ThreadedKubernetesServer

TOKEN = "t0ken-nobody-may-see"
COMMAND = (sys.executable, "-m", "aioresolve")
PATIENCE = 30
"""Seconds after which a process that should have ended is taken for hung."""


def cluster() -> ThreadedKubernetesServer:
    """Return a cluster that speaks TLS and knows one token: three trainers and a parameter server in `ml`."""
    pods = [
        pod(
            f"train-{number}",
            "ml",
            labels={"app": "train"},
            index=number,
            ip=f"10.0.0.{number}",
            node="node-a",
        )
        for number in (10, 2, 1)
    ]
    pods += [
        pod("ps-0", "ml", labels={"app": "ps"}, ip="fd00::7", ready=False),
        pod("other-0", "default", labels={"app": "train"}, ip="10.0.9.9"),
        pod("stuck-0", "ml", labels={"app": "stuck"}, ip="10.0.8.1"),
        pod("stuck-1", "ml", labels={"app": "stuck"}, phase="Pending", node=None),
    ]
    return KubernetesServer(pods, tls=True, tokens={TOKEN: "alice"}).in_thread()


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and what it wrote."""

    code: int
    stdout: str
    stderr: str


def environment(kubeconfig: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a person with this kubeconfig, and no more of the machine's than needed."""
    kept = ("PATH", "LANG", "LD_LIBRARY_PATH", "SYSTEMROOT", "COVERAGE_PROCESS_START")
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "HOME": str(kubeconfig.parent),
        "KUBECONFIG": str(kubeconfig),
        "TERM": "xterm-256color",
        **variables,
    }


def run(arguments: tuple[str, ...], env: Mapping[str, str]) -> Ended:
    """Return how `aioresolve ARGUMENTS` ended, its streams being pipes."""
    done = subprocess.run(
        [*COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return Ended(done.returncode, done.stdout, done.stderr)
