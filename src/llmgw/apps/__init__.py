"""Builds each daemon from its parts."""
