"""Trains one weight with MultiWorkerMirroredStrategy, in every task of the Slurm step."""

import os

import tensorflow as tf

from aioresolve.tensorflow import SlurmClusterResolver

resolver = SlurmClusterResolver(port_base=int(os.environ.get("PORT_BASE", "8888")))
task = resolver.this_task()
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
print("worker", task.rank, "of", task.num_tasks, "at", task.address, "improved", losses[-1] < losses[0])
