"""`aioresolve watch`: prints each change once, tolerates slow readers, and cleans up when it exits."""

import json
import re
import signal
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from rich.console import Console

from aioresolve import ClusterState, DoneTask, Endpoint
from aioresolve.cli.commands.watch import WatchView
from aioresolve.errors import ConnectionFailedError
from aioresolve.spec import Missing, Observation
from aioresolve.testing import Answer, GoogleServer, ThreadedKubernetesServer, pod, tpu_node

from .process import HIDE_CURSOR, SHOW_CURSOR, TIMEOUT, Run, Running, Terminal, environment, trainer

pytest.importorskip("pty", reason="this system has no pseudo-terminals")

TRAIN = ("watch", "kubernetes", "-l", "worker=app=train")


# Rows


def test_the_members_are_printed_first_and_then_each_change(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running(TRAIN, env) as watch:
        assert [line.split() for line in watch.lines(4)] == [
            ["EVENT", "JOB", "TASK", "ADDRESS", "WAS"],
            ["JOINED", "worker", "0", "10.0.0.1:8470", "<none>"],
            ["JOINED", "worker", "1", "10.0.0.2:8470", "<none>"],
            ["JOINED", "worker", "2", "10.0.0.10:8470", "<none>"],
        ]
        server.add(trainer(11))
        assert watch.line().split() == ["JOINED", "worker", "3", "10.0.0.11:8470", "<none>"]
        server.delete("train-2", "ml")
        assert [line.split() for line in watch.lines(3)] == [
            ["LEFT", "worker", "1", "10.0.0.2:8470", "<none>"],
            ["MOVED", "worker", "1", "10.0.0.10:8470", "2@10.0.0.10:8470"],
            ["MOVED", "worker", "2", "10.0.0.11:8470", "3@10.0.0.11:8470"],
        ]


def test_each_restart_in_place_has_its_rows(env: dict[str, str], server: ThreadedKubernetesServer) -> None:
    with Running((*TRAIN, "-o", "wide"), env) as watch:
        assert [line.split()[5] for line in watch.lines(4)] == ["NAME", "train-1", "train-2", "train-10"]
        for restarts in (1, 2):
            server.patch("train-1", "ml", patch=trainer(1, restarts=restarts))
            assert [line.split()[:3] for line in watch.lines(2)] == [
                ["LEFT", "worker", "0"],
                ["JOINED", "worker", "0"],
            ]


# Tasks that have ended with success


def job_pod(index: int) -> dict[str, Any]:
    """Return a pod of an Indexed Job, which is running."""
    built = pod(f"step-{index}", "ml", labels={"app": "step"}, index=index, ip=f"10.0.1.{index}")
    built["metadata"]["ownerReferences"] = [
        {"apiVersion": "batch/v1", "kind": "Job", "name": "step", "uid": "j", "controller": True}
    ]
    return built


def test_task_that_ends_with_success_is_shown_as_done(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    server.add(job_pod(0), job_pod(1))
    followed = ("watch", "kubernetes", "-l", "app=step")
    with Running(followed, env) as rows, Running((*followed, "-o", "json"), env) as documents:
        rows.lines(3)
        first = json.loads(documents.line())
        assert (first["done"], first["ended"]) == ([], [])
        server.patch("step-0", "ml", patch={"status": {"phase": "Succeeded"}})
        assert rows.line().split() == ["DONE", "worker", "0", "10.0.1.0:8470", "<none>"]
        second = json.loads(documents.line())
    uid = server.pod("step-0", "ml")["metadata"]["uid"]
    assert second["done"] == [{"job": "worker", "task": 0, "name": "ml/step-0", "uid": uid}]
    assert (second["ended"], second["left"]) == (first["joined"][:1], [])
    assert second["jobs"]["worker"] == first["jobs"]["worker"][1:]


def drawn(view: WatchView, lines: int) -> list[str]:
    """Return what a terminal of 80 columns and so many lines shows."""
    shown = Console(width=80).render_lines(view.render(80, lines), pad=False)
    return ["".join(part.text for part in line) for line in shown]


def test_terminal_shows_a_task_that_ends_with_success_as_done() -> None:
    step = Endpoint("10.0.1.0:8470", name="step-0", namespace="ml", uid="u0")
    last = Endpoint("10.0.1.1:8470", name="step-1", namespace="ml", uid="u1", status="Running")
    both = ClusterState.of({"worker": [step, last]})
    one = ClusterState.of({"worker": {1: last}})
    view = WatchView("-l app=step", Observation(both), is_wide=False)
    changed = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    with mock.patch("aioresolve.cli.commands.watch.datetime") as clock:
        clock.now.return_value = changed
        view.update(Observation(replace(one, done=(DoneTask("worker", 0, "ml/step-0", "u0"),))))
    shown = [line.split() for line in drawn(view, 20)]
    assert shown[1:3] == [
        ["worker", "1", "step-1", "10.0.1.1:8470", "Running"],
        ["worker", "0", "step-0", "<none>", "done"],
    ]
    time = f"{changed.astimezone():%H:%M:%S}"
    assert shown[4] == [time, "DONE", "/job:worker/task:0", "at", "10.0.1.0:8470", "(ml/step-0)"]
    assert " ".join(shown[-1]) == f"1 task, last changed at {time}: -l app=step"


def test_terminal_shows_the_age_of_a_stale_state_and_the_first_eight_reasons() -> None:
    state = ClusterState.of({"worker": [Endpoint("10.0.0.1:1"), Endpoint("10.0.0.2:1")]})
    missing = tuple(Missing("worker", f"ml/pod-{number}", f"exit code {number}") for number in range(9))
    view = WatchView("-l app=step", Observation(state), is_wide=False)
    error = ConnectionFailedError("nothing listens")
    for number in (8, 9):
        stale = Observation(state, missing[:number]).stale(error, datetime.now(UTC) - timedelta(seconds=312))
        view.update(stale)
        *_, last, empty, status = drawn(view, 40)
        assert (last, empty) == ("ml/pod-7: exit code 7" if number == 8 else "and 1 more", "")
        assert re.fullmatch("2 tasks as of [0-9:]{8}, 5m1.s ago; no newer state: nothing listens", status)


# Documents


def test_documents_have_the_cluster_and_the_change(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Running((*TRAIN, "-o", "json"), env) as watch:
        first = json.loads(watch.line())
        assert [task["name"] for task in first["jobs"]["worker"]] == ["train-1", "train-2", "train-10"]
        assert first["joined"] == [{"job": "worker", **task} for task in first["jobs"]["worker"]]
        assert first["left"] == []
        server.delete("train-10", "ml")
        second = json.loads(watch.line())
        assert second["left"] == first["joined"][2:]
        assert second["jobs"]["worker"] == first["jobs"]["worker"][:2]


@pytest.mark.slow
def test_a_reader_that_does_not_read_gets_the_latest_state_and_does_not_delay_the_exit(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    # So many pods that one state does not fit into a pipe.
    server.add(*(trainer(1000 + number, ip=f"10.1.{number // 250}.{number % 250}") for number in range(800)))
    with Running((*TRAIN, "-o", "json"), env) as watch:
        server.until(lambda: server.watches == 1, TIMEOUT)
        for number in range(60):
            server.delete(f"train-{1000 + number}", "ml")
        read = 1
        while len(json.loads(watch.line())["jobs"]["worker"]) != 743:
            read += 1
        assert read < 60
    with Running((*TRAIN, "-o", "json"), env) as watch:
        assert watch.stdout.read(1) == "{"
        server.until(lambda: server.watches == 1, TIMEOUT)
        watch.process.send_signal(signal.SIGTERM)
        assert watch.process.wait(TIMEOUT) == 143
        server.until(lambda: server.connections == 0)


# Errors of the source


def test_an_outage_is_reported_and_no_change_is_lost(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with server.down(), Running(TRAIN, env) as refused:
        assert refused.stderr_line().startswith("retrying: ")
    with Running((*TRAIN, "-o", "json"), env) as watch:
        watch.line()
        server.until(lambda: server.watches == 1, TIMEOUT)
        with server.down():
            message = watch.stderr_line()
            assert message.startswith("not up to date since 20")
            assert server.url in message
            server.delete("train-10", "ml")
        assert [task["name"] for task in json.loads(watch.line())["left"]] == ["train-10"]
        message = watch.stderr_line()
        while message != "up to date again":
            assert message.startswith("not up to date")
            message = watch.stderr_line()


@pytest.mark.slow
def test_a_manifest_follows_the_error_if_the_user_may_list_but_not_watch(
    run: Run, env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    message = (
        'pods is forbidden: User "alice" cannot watch resource "pods" in API group "" in the namespace "ml"'
    )
    body = json.dumps({"kind": "Status", "code": 403, "message": message}).encode()
    server.inject(Answer(403, body), match=lambda request: "watch" in request.query, times=None)
    refused = run(TRAIN, env)
    assert refused.code == 1
    assert refused.stderr.startswith("not up to date since ")
    documents = list(yaml.safe_load_all(refused.stderr.partition(":\n\n")[2]))
    assert [document["kind"] for document in documents] == ["Role", "RoleBinding"]
    assert documents[0]["rules"][0]["verbs"] == ["list", "watch"]


# On a terminal


@pytest.mark.slow
def test_a_terminal_shows_the_cluster_in_place_and_a_signal_keeps_the_last_table(
    env: dict[str, str], server: ThreadedKubernetesServer
) -> None:
    with Terminal(TRAIN, env) as terminal:
        shown = terminal.wait_for_text("3 tasks")
        assert shown[0].split() == ["JOB", "TASK", "NAME", "ADDRESS", "NODE", "STATUS"]
        assert [line.split()[:3] for line in shown[1:4]] == [
            ["worker", "0", "train-1"],
            ["worker", "1", "train-2"],
            ["worker", "2", "train-10"],
        ]
        server.add(trainer(3, phase="Pending", node=None, ip=None))
        terminal.wait_for_text("ml/train-3: Pending (Unschedulable")
        server.add(trainer(3))
        shown = terminal.wait_for_text("4 tasks")
        assert [line.split()[2] for line in shown[1:5]] == ["train-1", "train-2", "train-3", "train-10"]
        assert any("JOINED  /job:worker/task:2 at 10.0.0.3:8470 (ml/train-3)" in line for line in shown)
        assert not any("Pending" in line for line in shown)
        assert terminal.wait_for_exit(signal.SIGINT) == 130
        sent, shown = terminal.sent, terminal.shown
    # A server that responds slowly is waited for in a view of its own, before that of the table.
    assert sent.count(HIDE_CURSOR) == sent.count(SHOW_CURSOR) <= 2
    assert sent.endswith(f"\r\n{SHOW_CURSOR}")
    assert shown[1].split()[:3] == ["worker", "0", "train-1"]
    assert "Traceback" not in sent
    server.until(lambda: server.connections == 0)


# TPUs


@pytest.mark.slow
def test_tpus_are_polled(tmp_path: Path) -> None:
    nodes = [tpu_node(f"slice-{n}", ips=[f"10.130.{n}.2", f"10.130.{n}.3"]) for n in range(2)]
    watched = ("watch", "tpu", "slice-0", "slice-1", "--interval", "50ms")
    with (
        GoogleServer(nodes).in_thread() as google,
        Running(watched, environment(tmp_path / "none", **google.environ())) as watch,
    ):
        assert [line.split()[:4] for line in watch.lines(5)][1:] == [
            ["JOINED", "worker", str(task), f"10.130.{task // 2}.{2 + task % 2}:8470"] for task in range(4)
        ]
        google.script("slice-0", "PREEMPTED")
        assert [line.split()[:3] for line in watch.lines(4)] == [
            ["LEFT", "worker", "0"],
            ["LEFT", "worker", "1"],
            ["MOVED", "worker", "0"],
            ["MOVED", "worker", "1"],
        ]
        assert watch.wait_for_exit(signal.SIGINT).code == 130


# Formats


def test_the_view_fits_the_terminal() -> None:
    endpoints = [Endpoint(f"{number}:1", name=f"pod-{number}") for number in range(100)]
    few, many = ClusterState.of({"worker": endpoints[:3]}), ClusterState.of({"worker": endpoints})
    missing = tuple(Missing("worker", f"ml/pod-{number}", f"Pending {number} " * 9) for number in range(30))
    error = ConnectionFailedError("no response " * 40)
    view = WatchView("-l worker=app=train", Observation(few), is_wide=True)
    for shown in (
        Observation(few),
        Observation(many, missing),
        Observation(few, missing).stale(error, datetime.now(UTC)),
        Observation(many, unready=missing),
    ):
        view.update(shown)
        whole = len(getattr(view.render(80, 1000), "renderables", []))
        for lines in (24, 25, 40, 80, 110, 160):
            assert len(drawn(view, lines)) == min(lines, whole)
