"""Decisions without I/O: what things are, what is allowed, what should happen next."""
