"""Fakes that misbehave on request, shipped for tests and manual work; production never imports it."""
