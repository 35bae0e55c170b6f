"""One task of a cluster with a chief, workers and parameter servers: `TASK_TYPE` is its job."""

import os

import tensorflow as tf

from aioresolve import CONTEXT_NAMESPACE
from aioresolve.tensorflow import KubernetesClusterResolver

TASKS = {job: int(number) for job, number in (each.split("=") for each in os.environ["TASKS"].split(","))}


def coordinate(resolver):
    """Add to a variable on a parameter server, in both workers."""
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    with strategy.scope():
        total = tf.Variable(0.0)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

    @tf.function
    def step():
        total.assign_add(1.0)

    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    print("total", float(total), "on", total.device)


def main():
    """Wait for all tasks, and run the one of this process."""
    resolver = KubernetesClusterResolver(
        {job: f"app=ps-example,role={job}" for job in TASKS},
        2222,
        namespace=CONTEXT_NAMESPACE,
        order_by="index",
    )
    task = resolver.this_task(resolver.wait(jobs=TASKS))
    if task.job == "chief":
        coordinate(resolver)
    else:
        server = tf.distribute.Server(
            resolver.cluster_spec(), job_name=task.job, task_index=task.index, protocol="grpc"
        )
        server.join()


if __name__ == "__main__":
    main()
