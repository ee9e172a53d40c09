"""Finds the hardware of this machine: GPUs through NVML, RDMA ports through sysfs."""
