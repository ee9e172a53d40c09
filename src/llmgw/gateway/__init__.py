"""The data plane: serves clients from the last snapshot and asks nobody."""
