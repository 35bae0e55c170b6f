"""The parts of `TPUClusterResolver` that use TensorFlow, each in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec

import pytest

PREAMBLE = """
import asyncio, warnings
warnings.simplefilter("ignore")
import aioresolve
from aioresolve import TPUClusterResolver, errors
from aioresolve.testing import GoogleServer
"""

SECONDS = 120


@pytest.mark.skipif(find_spec("tensorflow") is None, reason="TensorFlow is not installed")
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            """
            async def main():
                async with GoogleServer() as google:
                    import os
                    os.environ.update(google.environ())
                    resolver = TPUClusterResolver("grpc://a", coordinator_name="chief", timeout=100)
                    spec = await resolver.cluster_spec()
                    host, _, port = spec.task_address("chief", 0).partition(":")
                    assert host == "10.128.0.2", spec
                    from aioresolve.probe import probe_worker
                    probe = await probe_worker(f"127.0.0.1:{port}")
                    assert probe.source == "tensorflow", probe
                    assert await resolver.cluster_spec() == spec
            """,
            id="the coordinator is started once and responds",
        ),
        pytest.param(
            """
            import tensorflow as tf
            server = tf.distribute.Server({"worker": ["127.0.0.1:0"]}, protocol="grpc", start=True)

            async def main():
                try:
                    await TPUClusterResolver.connect(server.target)
                except errors.TPUNotFoundError as error:
                    assert isinstance(error.__cause__, tf.errors.NotFoundError), error
                else:
                    raise AssertionError("a TPU was found")
            """,
            id="a worker without a TPU raises TPUNotFoundError",
        ),
        pytest.param(
            """
            async def main():
                resolver = TPUClusterResolver("local", timeout=100)
                assert await resolver.num_accelerators() == {"TPU": 0}
                metadata = await resolver.get_tpu_system_metadata()
                assert [device.type for device in metadata.devices] == ["CPU"], metadata
                assert metadata[:3] == (0, 0, 0), metadata
            """,
            id="the devices of a local TPU are those of this host",
        ),
        pytest.param(
            """
            from tensorflow.core.protobuf.tpu import topology_pb2
            from aioresolve import sync

            async def main():
                topology = topology_pb2.TopologyProto(mesh_shape=[1, 1, 1, 2], num_tasks=1)
                topology.tpu_hardware_feature.embedding_feature = 1
                for kind in (TPUClusterResolver, sync.TPUClusterResolver):
                    resolver = kind("grpc://a")
                    resolver.set_tpu_topology(topology.SerializeToString())
                    assert resolver.tpu_hardware_feature == topology.tpu_hardware_feature
                    try:
                        resolver.set_tpu_topology(b"\\xff\\xff")
                    except errors.ConfigurationError as error:
                        assert error.argument == "serialized_tpu_topology"
                    else:
                        raise AssertionError("an invalid topology was accepted")
            """,
            id="the hardware feature is that of the topology that was set",
        ),
    ],
)
def test_tensorflow_part(script: str) -> None:
    code = f"{PREAMBLE}\n{textwrap.dedent(script)}\nasyncio.run(main())\nprint('done')"
    environ = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, **environ},
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
