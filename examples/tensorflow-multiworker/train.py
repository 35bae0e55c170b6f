"""Trains one weight with MultiWorkerMirroredStrategy, on every pod of the Job."""

import os

import tensorflow as tf

from aioresolve import CONTEXT_NAMESPACE
from aioresolve.tensorflow import KubernetesClusterResolver

resolver = KubernetesClusterResolver(
    {"worker": "batch.kubernetes.io/job-name=tensorflow-multiworker"},
    2222,
    namespace=CONTEXT_NAMESPACE,
    order_by="index",
)
state = resolver.wait(int(os.environ["NUM_WORKERS"]))
task = resolver.this_task(state)
resolver.task_type, resolver.task_id = task.job, task.index
strategy = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)

with strategy.scope():
    weight = tf.Variable(2.0)


@tf.function
def train_step():
    """Return the mean loss over all workers, after one step of gradient descent."""

    def step():
        with tf.GradientTape() as tape:
            loss = weight**2
        weight.assign_sub(0.1 * tape.gradient(loss, weight))
        return loss

    return strategy.reduce(tf.distribute.ReduceOp.MEAN, strategy.run(step), axis=None)


losses = [float(train_step()) for _ in range(10)]
print("worker", task.rank, "of", task.num_tasks, "improved", losses[-1] < losses[0])
