"""The process around the core: clock, tasks, signals, files, logs."""
