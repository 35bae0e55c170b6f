"""A task of a TensorFlow cluster in a process of its own.

`python -m tests.tensorflow.serving '{"worker": ["host:port", ...]}' JOB INDEX CPUS` prints a line when it
serves, and ends when its stdin is closed.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A TensorFlow server in a process of its own, with as many virtual CPUs as are given."""

    def __init__(self, cluster: dict[str, list[str]], job: str, index: int, cpus: int = 1) -> None:
        self.address = cluster[job][index]
        self._command = [sys.executable, "-m", "tests.tensorflow.serving", json.dumps(cluster), job]
        self._command += [str(index), str(cpus)]
        self.start()

    def start(self) -> None:
        """Start the process; TensorFlow takes seconds to import."""
        self._process = subprocess.Popen(
            self._command,
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def wait(self) -> None:
        """Wait until it serves."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"grpc://{self.address}\n"

    def kill(self) -> None:
        """Kill it, and wait until it has ended."""
        with self._process:
            self._process.kill()


def main(cluster: str, job: str, index: str, cpus: str) -> None:
    """Serve one task."""
    import tensorflow as tf

    server = tf.distribute.Server(
        tf.train.ClusterSpec(json.loads(cluster)),
        job_name=job,
        task_index=int(index),
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(device_count={"CPU": int(cpus)}),
    )
    print(server.target, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
