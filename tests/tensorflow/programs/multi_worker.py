"""The example of TensorFlow's page on KubernetesClusterResolver with another import, and a training step.

Arguments: the task index, and the port of the workers; or 0, if each pod has a port of its own in the
annotation `port`: TensorFlow listens on all addresses of a machine, so that two servers need two ports.
Prints the loss of the step.
"""

import sys

import tensorflow as tf

from aioresolve.tensorflow import KubernetesClusterResolver

index, port = int(sys.argv[1]), int(sys.argv[2])
if port:
    cluster_resolver = KubernetesClusterResolver(
        {"worker": ["job-name=worker-cluster-a", "job-name=worker-cluster-b"]}, port
    )
else:
    cluster_resolver = KubernetesClusterResolver(
        {"worker": ["job-name=worker-cluster-a", "job-name=worker-cluster-b"]},
        address=lambda pod: ("127.0.0.1", int(pod.metadata.annotations["port"])),
    )
cluster_resolver.task_type = "worker"
cluster_resolver.task_id = index
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=cluster_resolver)

with strategy.scope():
    weight = tf.Variable(2.0)  # pyright: ignore[reportArgumentType]


@tf.function  # type: ignore[untyped-decorator]
def train_step() -> tf.Tensor:
    def step() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        # Each replica has other data; the loss is the mean over all replicas.
        target = tf.cast(context.replica_id_in_sync_group, tf.float32)
        loss = (weight - target) ** 2
        return context.all_reduce(tf.distribute.ReduceOp.MEAN, loss)

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step), axis=None)


print("replicas", strategy.num_replicas_in_sync, "loss", float(train_step()))
