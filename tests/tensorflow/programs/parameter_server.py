"""A chief that trains on parameter servers and workers from the union of two resolvers.

Arguments: the addresses of the workers and the parameter servers, separated by commas, and whose union it is:
`ours` or `theirs`. Prints the value of a variable after each worker has added one to it.
"""

import sys

import tensorflow as tf

from aioresolve.tensorflow import SimpleClusterResolver, UnionResolver

workers, servers = sys.argv[1].split(","), sys.argv[2].split(",")
first = SimpleClusterResolver(tf.train.ClusterSpec({"worker": workers}), rpc_layer="grpc")
second = SimpleClusterResolver(tf.train.ClusterSpec({"ps": servers}))
union = {"ours": UnionResolver, "theirs": tf.distribute.cluster_resolver.UnionResolver}[sys.argv[3]]
resolver = union(first, second)

strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    total = tf.Variable(0.0)  # pyright: ignore[reportArgumentType]


@tf.function  # type: ignore[untyped-decorator]
def add_one() -> None:
    total.assign_add(1.0)


for _ in workers:
    coordinator.schedule(add_one)
coordinator.join()
print("device", total.device, "total", float(total.numpy()))
