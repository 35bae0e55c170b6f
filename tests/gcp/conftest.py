"""What the tests of Google's APIs share: an environment that says nothing of Google Cloud."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

SPEAKING = ("GOOGLE_", "GCE_", "GCLOUD_", "CLOUDSDK_", "NO_GCE_CHECK", "AWS_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let neither this machine's credentials nor its proxies, nor gcloud's files, be found."""
    for name in os.environ:
        if name.startswith(SPEAKING) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Nothing listens there, on loopback: what looks for a metadata server is told so at once.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:9")
