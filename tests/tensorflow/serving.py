"""One task of a TensorFlow cluster, in a process of its own.

`python -m tests.tensorflow.serving '{"worker": ["host:port", ...]}' INDEX CPUS` writes a line on stdout when
it serves, and ends when its stdin does.
"""

from __future__ import annotations

import json
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf


def main(cluster: str, index: str, cpus: str) -> None:
    """Serve one task of the job `worker` with so many virtual CPUs."""
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
