"""Every test runs under the guards."""

pytest_plugins = ["tests.guards.plugin"]
