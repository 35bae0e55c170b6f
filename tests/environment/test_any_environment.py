"""Any environment gives a cluster or one typed error, and in bounded time and memory."""

import asyncio
import json
import os
from contextlib import suppress
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import aioresolve
from aioresolve import (
    ClusterResolver,
    ClusterState,
    EnvironmentVariableError,
    SageMakerClusterResolver,
    SlurmClusterResolver,
    Task,
    TaskIdentityError,
    TFConfigClusterResolver,
    UnknownTaskError,
)
from aioresolve.errors import ResolveError

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)
BYTES = st.binary(max_size=60).map(lambda value: value.replace(b"\0", b"x"))
PLAUSIBLE = st.sampled_from(
    [
        *("n[1-2]", "n1", "n1,n1", "2(x2)", "1(x2)", "1", "block", "cyclic", "plane", "arbitrary", "0,1"),
        *('{"cluster": {"worker": ["a:1"]}}', "{}", "[]", '["a", "b"]', "local", "localhost", "/dev/null"),
        *("grpc://10.0.0.1,10.0.0.2", "my-tpu", "n[1-99999999]", "a:2"),
    ]
)
VALUES = PLAUSIBLE | st.integers(-1, 5).map(str) | st.text(alphabet="n0129[],-(x)", max_size=14) | TEXT
SLURM = [
    *("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"),
    *("SLURM_LOCALID", "SLURMD_NODENAME", "SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_JOB_NODELIST"),
    *("SLURM_TASKS_PER_NODE", "SLURM_HET_SIZE", "SLURM_JOB_NODELIST_HET_GROUP_0"),
    *("SLURM_TASKS_PER_NODE_HET_GROUP_0", "SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
    *("SLURM_GPUS_PER_TASK", "SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"),
]
OTHERS = [
    *("TF_CONFIG", "SM_HOSTS", "SM_CURRENT_HOST", "TPU_NAME", "TPU_CONFIG", "TPU_WORKER_HOSTNAMES"),
    *("TPU_WORKER_ID", "TPU_PROCESS_ADDRESSES", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_TOPOLOGY"),
    *("MEGASCALE_NUM_SLICES", "MEGASCALE_SLICE_ID", "KUBERNETES_SERVICE_HOST", "AIORESOLVE_SELECTOR"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "cluster": JSON | st.dictionaries(TEXT, st.lists(TEXT | JSON, max_size=3), max_size=3),
        "task": JSON | st.fixed_dictionaries({}, optional={"type": JSON, "index": JSON}),
        "rpc_layer": JSON,
        "session_master": JSON,
    },
)


def resolve(resolver: ClusterResolver, environ: dict[str, bytes]) -> ClusterState | None:
    """Call every method of the resolver in that environment; return the cluster, or None after an error."""

    async def call() -> ClusterState | None:
        try:
            state = await resolver.cluster_state()
        except EnvironmentVariableError:
            with pytest.raises(EnvironmentVariableError) as raised:
                await resolver.cluster_spec()
            assert len(str(raised.value)) < 2_000
            return None
        assert await resolver.cluster_spec() == state.spec
        with suppress(TaskIdentityError, UnknownTaskError):
            assert isinstance(await resolver.this_task(), Task)
        with suppress(UnknownTaskError):
            assert isinstance(await resolver.master(), str)
        return state

    with mock.patch.dict(os.environb, {name.encode(): value for name, value in environ.items()}):
        return asyncio.run(call())


@given(st.dictionaries(st.sampled_from(SLURM), VALUES))
@example({"SLURM_STEP_NODELIST": "n[1-2]", "SLURM_JOB_NODELIST": "-1", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"})
@example({"SLURM_STEP_NODELIST": "n[1-65536]", "SLURM_STEP_TASKS_PER_NODE": "999999(x65536)"})
def test_slurm(environ: dict[str, str]) -> None:
    state = resolve(SlurmClusterResolver(), {name: value.encode() for name, value in environ.items()})
    assert state is None or len(state.members) <= 262_144


@given(BYTES | (CONFIGS | JSON).map(lambda value: json.dumps(value).encode()), BYTES)
@example(b'{"cluster": {"worker": ["\xff:1"]}}', b"")
@example(b'["\xff"]', b"")
def test_json(value: bytes, current: bytes) -> None:
    resolve(TFConfigClusterResolver(), {"TF_CONFIG": value})
    resolve(SageMakerClusterResolver(), {"SM_HOSTS": value, "SM_CURRENT_HOST": current})


@given(st.dictionaries(st.sampled_from(SLURM + OTHERS), VALUES, max_size=6))
def test_detection(environ: dict[str, str]) -> None:
    with mock.patch.dict(os.environ, environ | {"NO_GCE_CHECK": "true"}), suppress(ResolveError):
        detected = asyncio.run(aioresolve.detect(timeout=60))
        assert any(each.found for each in detected.evidence)
