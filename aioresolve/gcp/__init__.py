"""Google's HTTP APIs: authorized requests, the metadata server, Cloud TPU."""
