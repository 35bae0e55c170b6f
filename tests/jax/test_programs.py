"""JAX programs of two processes, which `jax.distributed.initialize()` connects without an argument."""

import importlib.util
from pathlib import Path

import pytest

from aioresolve.testing import KubernetesServer, pod
from tests.programs import free_port, last_lines, start

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed"),
]

PROGRAM = Path(__file__).parent / "programs" / "psum.py"
LINES = ["process 0 of 2 sum 11.0", "process 1 of 2 sum 11.0"]


def test_processes_in_the_pods_of_a_job_are_connected(tmp_path: Path) -> None:
    labels = {"batch.kubernetes.io/job-name": "train"}
    # In index order, not in the order of their names.
    pods = [
        pod("train-1-abc", "ml", labels=labels, index=1, ip="127.0.0.2"),
        pod("train-0-xyz", "ml", labels=labels, index=0, ip="127.0.0.1"),
        pod("other-0", "ml", labels={"batch.kubernetes.io/job-name": "other"}, index=0),
    ]
    with KubernetesServer(pods, tls=True, tokens={"a-token": "trainer"}).in_thread() as server:
        account = tmp_path / "serviceaccount"
        variables = server.in_cluster(account, namespace="ml")
        port = str(free_port())
        processes = [
            start(
                PROGRAM,
                service_account=account,
                environment={
                    **variables,
                    "AIORESOLVE_COUNT": "2",
                    "JAX_COORDINATOR_PORT": port,
                    "JOB_COMPLETION_INDEX": str(index),
                    "POD_NAME": name,
                    "POD_UID": server.pod(name, "ml")["metadata"]["uid"],
                },
            )
            for index, name in enumerate(("train-0-xyz", "train-1-abc"))
        ]
        assert last_lines(processes) == LINES
