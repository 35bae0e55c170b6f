"""Google Cloud: authorized HTTP requests, the metadata server and the Cloud TPU API."""
