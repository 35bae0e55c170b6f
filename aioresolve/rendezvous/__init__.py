"""A rendezvous on the API server: the nodes of an elastic job agree on rounds and ranks."""
