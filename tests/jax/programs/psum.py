"""One process of a JAX program: adds a number of each process over all of them."""

import jax
import jax.numpy as jnp

import aioresolve.jax  # noqa: F401 - importing it registers the cluster environment

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize()


def add(number: jax.Array) -> jax.Array:
    """Return the sum over all processes."""
    total: jax.Array = jax.lax.psum(number, "processes")
    return total


numbers = jnp.array([float(10 ** jax.process_index())])
[total] = jax.pmap(add, axis_name="processes")(numbers)
print("process", jax.process_index(), "of", jax.process_count(), "sum", float(total))
jax.distributed.shutdown()
