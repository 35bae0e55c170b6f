"""One task of a TensorFlow cluster, in a separate process.

`python -m tests.tensorflow.serving '{"worker": ["host:port", ...]}' INDEX CPUS` prints a line when it
serves, and ends when its stdin is closed.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf


def main(cluster: str, index: str, cpus: str) -> None:
    """Serve one task of the job `worker` with `cpus` virtual CPUs."""
    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name="worker",
        task_index=int(index),
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(device_count={"CPU": int(cpus)}),
    )
    print(server.target, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
