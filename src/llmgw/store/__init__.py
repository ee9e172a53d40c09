"""What is wanted and what was consumed, on SQLite or PostgreSQL; never what runs."""
