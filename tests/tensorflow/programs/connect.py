"""Connects to the tasks of a cluster that aioresolve resolved, and runs an operation on each.

Argument: the addresses of the workers, separated by commas.
"""

import sys

import tensorflow as tf

from aioresolve.tensorflow import SimpleClusterResolver

addresses = sys.argv[1].split(",")
resolver = SimpleClusterResolver(
    tf.train.ClusterSpec({"worker": addresses}),
    master=addresses[0],
    task_type="worker",
    task_id=0,
    rpc_layer="grpc",
)
tf.config.experimental_connect_to_cluster(resolver)
for index in range(len(addresses)):
    with tf.device(f"/job:worker/task:{index}/device:CPU:0"):
        print("task", index, int(tf.constant(40) + 2))
