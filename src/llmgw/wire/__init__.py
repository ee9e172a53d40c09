"""gRPC between daemons; offers both ends of each stream as typed messages."""
