"""The control plane: fleet, reconciler, links, publisher, admin API."""
