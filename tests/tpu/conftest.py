"""A VM in a loopback Google Cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import GoogleServer, tpu_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aioresolve.testing import ThreadedGoogleServer


@pytest.fixture
def google_in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """Google Cloud as a VM reaches it from blocking code, with the TPU `my-tpu` at 10.0.0.1."""
    with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])]).in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server
