"""What each engine's command line, environment and signs of life look like. Pure."""
