"""An environment without any trace of Google Cloud."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PREFIXES = ("GOOGLE_", "GCE_", "GCLOUD_", "CLOUDSDK_", "NO_GCE_CHECK", "AWS_")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this machine's credentials, proxies and gcloud files."""
    for name in os.environ:
        if name.startswith(PREFIXES) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    # The search for a metadata server ends at once.
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", "metadata.invalid")
