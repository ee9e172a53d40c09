"""The agent: inventory, runners, probes, and a stream to each control plane."""
