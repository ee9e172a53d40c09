"""Fakes that misbehave on request, for tests and manual work; production never imports it."""
