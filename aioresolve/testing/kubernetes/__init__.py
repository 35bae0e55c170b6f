"""A Kubernetes API server on a loopback port, for tests: see `KubernetesServer`."""
