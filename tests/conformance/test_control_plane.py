"""The errors of a control plane that cannot be started."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .control_plane import ASSETS_VARIABLE, BINARIES, ControlPlane, ControlPlaneError, missing_assets

if TYPE_CHECKING:
    from pathlib import Path


def write_binary(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ASSETS_VARIABLE, raising=False)
    assert missing_assets() == "KUBEBUILDER_ASSETS is not set: it names a folder with etcd and kube-apiserver"


def test_missing_binary_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(ASSETS_VARIABLE, str(tmp_path))
    write_binary(tmp_path, "etcd", "exit 0")
    assert missing_assets() == f"KUBEBUILDER_ASSETS={tmp_path} has no executable kube-apiserver"
    write_binary(tmp_path, "kube-apiserver", "exit 0")
    assert missing_assets() == ""


def test_error_of_a_process_that_exits_early_has_its_log(tmp_path: Path) -> None:
    for name in BINARIES:
        write_binary(tmp_path, name, "echo the disk is full >&2; exit 3")
    with pytest.raises(ControlPlaneError, match=r"etcd ended with code 3:\nthe disk is full"):
        ControlPlane(tmp_path).__enter__()


def test_process_that_never_responds_times_out(tmp_path: Path) -> None:
    for name in BINARIES:
        write_binary(tmp_path, name, '[ "$1" = --help ] || { echo waiting; exec sleep 60; }')
    plane = ControlPlane(tmp_path)
    try:
        with pytest.raises(ControlPlaneError, match=r"etcd is not ready in time .*refused.*:\nwaiting"):
            plane.start(timeout=0.5)
    finally:
        plane.close()


def test_repr_contains_no_token(tmp_path: Path) -> None:
    plane = ControlPlane(tmp_path, users=("someone",))
    try:
        assert set(plane.tokens) == {"admin", "someone"}
        assert all(token not in repr(plane._accounts) for token in plane.tokens.values())
    finally:
        plane.close()
