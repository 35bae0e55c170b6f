"""`aioresolve wait`: exits when the cluster is complete, and reports missing tasks until then."""

import re
import signal
import socket
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from aioresolve.kubernetes import KubernetesClusterResolver
from aioresolve.spec import Task
from aioresolve.testing import GoogleServer, ThreadedKubernetesServer, pod, tpu_node

from .process import HIDE_CURSOR, SHOW_CURSOR, Run, Running, Terminal, environment, trainer

pytest.importorskip("pty", reason="this system has no pseudo-terminals")

SELECTORS = ("-l", "worker=app=train")
TRAIN = ("wait", "kubernetes", *SELECTORS)


PENDING: dict[str, Any] = {"phase": "Pending", "node": None, "ip": None}


# Complete


@pytest.mark.parametrize(
    ("output", "size"), [("custom-columns=N:uid", "3"), ("wide", "3:3"), ("tf-config", "2:")]
)
def test_a_complete_cluster_is_printed_as_by_kubernetes(
    run: Run, env: dict[str, str], output: str, size: str
) -> None:
    complete = run((*TRAIN, "-o", output, "--count", size, "--stable-for", "50ms"), env)
    assert complete == run(("kubernetes", *SELECTORS, "-o", output), env)
    assert (complete.code, complete.stderr) == (0, "")


def test_it_exits_when_the_last_pod_is_ready(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    server.add(trainer(3, **PENDING))
    with Running((*TRAIN, "-o", "name"), env) as wait:
        assert wait.stderr_line("train-3") == (
            "waiting: job 'worker': 3 tasks; ml/train-3: Pending (Unschedulable: 0/1 nodes are available)"
        )
        server.add(trainer(3, ready=False))
        assert (
            wait.stderr_line() == "waiting: job 'worker': 3 tasks; ml/train-3: its Ready condition is False"
        )
        server.add(trainer(3))
        ended = wait.wait_for_exit()
    assert (ended.code, ended.stderr) == (0, "")
    assert ended.stdout.split() == [f"10.0.0.{number}:8470" for number in (1, 2, 3, 10)]
    server.until(lambda: server.connections == 0)


def test_task_of_the_process_is_looked_up_in_the_time_that_is_left(
    run: Run, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = AsyncMock(return_value=Task("worker", 1, "10.0.0.2:8470", 1, 3))
    monkeypatch.setattr(KubernetesClusterResolver, "this_task", find)
    assert run((*TRAIN, "--timeout", "2h", "-o", "env", "--this-task"), env).code == 0
    assert 3600 < find.await_args_list[0].kwargs["timeout"] < 7200


@pytest.mark.slow
def test_tasks_can_be_required_to_accept_connections(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        server.add(pod("here-0", "ml", labels={"app": "here"}, ip="127.0.0.1"))
        here = ("wait", "kubernetes", "-l", "worker=app=here", "--port", str(port), "--reachable", "tcp")
        with Running(here, env) as wait:
            message = wait.stderr_line()
            while "not known to be reachable" in message:
                message = wait.stderr_line()
            assert f"ml/here-0: no TCP connection to 127.0.0.1:{port}" in message
            listener.listen()
            assert wait.wait_for_exit().code == 0


# Incomplete


@pytest.mark.slow
def test_the_deadline_reports_missing_tasks_and_reasons(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.add(trainer(3, **PENDING), trainer(4, waiting="CrashLoopBackOff", restarts=7, ready=False))
    late = run((*TRAIN, "--count", "16", "--timeout", "4s", "-q"), env)
    assert (late.code, late.stdout) == (3, "")
    first, *tables = late.stderr.splitlines()
    assert first.startswith("error: the cluster was not complete within 4s. Check the missing tasks, ")
    assert first.endswith("raise --timeout, or wait for fewer tasks.")
    assert [line.split() for line in tables[-2:]] == [["JOB", "FOUND", "WANTED"], ["worker", "3", "16"]]
    assert tables[0].split() == ["MISSING", "REASON"]
    reasons = {line.split()[0]: line for line in tables[1:-3]}
    assert "Unschedulable" in reasons["ml/train-3"]
    assert "CrashLoopBackOff" in reasons["ml/train-4"]
    assert "7 restarts" in reasons["ml/train-4"]


@pytest.mark.slow
def test_without_a_number_all_pods_of_the_controller_are_waited_for(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    metadata = {"name": "train", "namespace": "ml"}
    controller = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata}
    server.add_controllers({**controller, "spec": {"replicas": 4}})
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "1", "controller": True}
    for number in (1, 2, 10):
        server.patch(f"train-{number}", "ml", patch={"metadata": {"ownerReferences": [owner]}})
    with Running((*TRAIN, "--timeout", "4s"), env) as wait:
        wait.stderr_line("waiting: job 'worker': 3 of 4 tasks (spec.replicas of StatefulSet ml/train)")
        late = wait.wait_for_exit()
    assert late.code == 3
    assert late.stderr.endswith("worker   3       4        spec.replicas of StatefulSet ml/train\n")


def test_a_cluster_that_cannot_become_complete_ends_it_at_once(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.add(trainer(3, phase="Failed"))
    failed = run((*TRAIN, "--count", "4", "-q"), env)
    assert (failed.code, failed.stdout) == (1, "")
    assert failed.stderr.startswith("error: the cluster cannot become complete. ")
    assert "ml/train-3   Failed" in failed.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--count", "3", "--jobs", "worker=3"), "exclude each other"),
        (("--jobs", "worker=3", "--jobs", "worker=4"), "--jobs names a job twice"),
        (("--jobs", "ps=3"), "--jobs: no job 'ps' is requested; add -l ps=SELECTOR"),
        (
            ("--jobs", "worker=0"),
            "'worker=0' is not a number of tasks of a job; write JOB=N, such as worker=16, or a range",
        ),
        (("--count", "0"), "'0' is not a number of tasks; write N, such as 16, or a range"),
        (("--count", "4:3"), "'4:3' is not a number of tasks"),
        (("--task", "worker:0"), "--task requires -o tf-config"),
    ],
)
def test_invalid_conditions_are_invalid_usage(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer, options: tuple[str, ...], message: str
) -> None:
    refused = run((*TRAIN, *options), env)
    assert (refused.code, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert server.requests == ()


# On a terminal


@pytest.mark.slow
def test_a_terminal_shows_missing_tasks_and_at_the_end_only_the_cluster(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.add(trainer(3, **PENDING))
    with Terminal((*TRAIN, "--count", "4", "--timeout", "5m"), env) as terminal:
        shown = terminal.wait_for_text("ml/train-3   Pending (Unschedulable: 0/1 nodes are available)")
        assert re.fullmatch("waiting for -l worker=app=train: [1-9][0-9ms]* of 5m", shown[0])
        assert ["worker", "3", "4"] in [line.split() for line in shown]
        server.add(trainer(3, ready=False))
        terminal.wait_for_text("ml/train-3   its Ready condition is False")
        server.add(trainer(3))
        assert terminal.wait_for_exit() == 0
        sent, shown = terminal.sent, terminal.shown
    assert sent.count(HIDE_CURSOR) == sent.count(SHOW_CURSOR) == 1
    assert [line.split()[0] for line in shown if line] == ["JOB", *["worker"] * 4]


@pytest.mark.slow
def test_ctrl_c_leaves_the_list_of_missing_tasks_on_the_terminal(env: dict[str, str]) -> None:
    with Terminal(("wait", "kubernetes", "-l", "app=trian"), env) as terminal:
        terminal.wait_for_text("values of app there: ps, stuck, train")
        assert terminal.wait_for_exit(signal.SIGINT) == 130
        shown = " ".join(line.strip() for line in terminal.shown)
    assert "waiting for -l app=trian: " in shown
    assert (
        "app=trian   no pod matches app=trian in namespace 'ml'; values of app there: ps, stuck, train"
        in shown
    )


# TPUs


@pytest.mark.slow
def test_a_tpu_is_printed_once_it_is_ready_and_a_preempted_one_ends_the_wait(
    run: Run, tmp_path: Path
) -> None:
    with GoogleServer([tpu_node("my-tpu", ips=["10.130.0.2", "10.130.0.3"])]).in_thread() as google:
        env = environment(tmp_path / "none", **google.environ())
        wait = ("wait", "tpu", "my-tpu", "--interval", "30ms", "-q")
        expected = run(("tpu", "my-tpu", "-o", "wide"), env)
        google.script("my-tpu", "CREATING", "STARTING", "READY")
        assert run((*wait, "-o", "wide"), env) == expected
        google.script("my-tpu", "CREATING")
        late = run((*wait, "--timeout", "3s"), env)
        google.script("my-tpu", "PREEMPTED")
        failed = run(wait, env)
    assert expected.code == 0
    assert (late.code, "CREATING" in late.stderr) == (3, True)
    assert (failed.code, "PREEMPTED" in failed.stderr) == (1, True)
