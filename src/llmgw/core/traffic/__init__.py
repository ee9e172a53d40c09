"""Requests: snapshot, streams, usage, quota, routing."""
