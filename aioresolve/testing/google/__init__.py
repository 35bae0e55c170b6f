"""Google Cloud on loopback ports, for tests: see `GoogleServer`."""
