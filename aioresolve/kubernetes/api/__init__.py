"""The API server: its objects, the requests for them, and the errors that it returns."""
