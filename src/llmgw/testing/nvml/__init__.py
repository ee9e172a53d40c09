"""A scripted stand-in for NVIDIA's driver library: the real pynvml sees what a test wants."""
