"""Processes and their machine. Imports only `errors` and `io` of the package."""
