"""What is wanted and what was used, in SQLite or PostgreSQL."""
