"""A machine outside Google Cloud, and a VM in a loopback Google Cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aioresolve.testing import GoogleServer, tpu_node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from aioresolve.testing import ThreadedGoogleServer

VARIABLES = [
    "CLOUD_TPU_TASK_ID",
    "CLOUDSDK_API_ENDPOINT_OVERRIDES_TPU",
    "GCE_METADATA_HOST",
    "GCE_METADATA_IP",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS",
    "MEGASCALE_COORDINATOR_ADDRESS",
    "MEGASCALE_NUM_SLICES",
    "MEGASCALE_SLICE_ID",
    "NO_GCE_CHECK",
    "TPU_ACCELERATOR_TYPE",
    "TPU_API_DISCOVERY_URL",
    "TPU_CHIPS_PER_HOST_BOUNDS",
    "TPU_CONFIG",
    "TPU_HOST_BOUNDS",
    "TPU_NAME",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_ADDRESSES_PATH",
    "TPU_PROCESS_BOUNDS",
    "TPU_RUNTIME_METRICS_PORTS",
    "TPU_TOPOLOGY",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
]


@pytest.fixture(autouse=True)
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("aioresolve.gcp.metadata_server.DEFAULT_HOST", "metadata.invalid")


@pytest.fixture
async def google(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GoogleServer]:
    """Google Cloud as a VM of `demo-project` in `us-central2-b` reaches it."""
    async with GoogleServer() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def google_in_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadedGoogleServer]:
    """The same for blocking code, with the TPU `my-tpu` at 10.0.0.1."""
    with GoogleServer([tpu_node("my-tpu", ips=["10.0.0.1"])]).in_thread() as server:
        for name, value in server.environ().items():
            monkeypatch.setenv(name, value)
        yield server
