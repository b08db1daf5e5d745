"""Predict how long an epoch takes: costs of every cut, and queueing at the server."""
