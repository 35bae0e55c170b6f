"""Adds a number of each process over all processes of the JobSet."""

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

import aioresolve.jax  # noqa: F401 - importing it registers the cluster environment

jax.config.update("jax_cpu_collectives_implementation", "gloo")  # used on CPUs only
jax.distributed.initialize()

ids = multihost_utils.process_allgather(jnp.array([jax.process_index()]))
print("process", jax.process_index(), "of", jax.process_count(), "sum", int(ids.sum()))
jax.distributed.shutdown()
