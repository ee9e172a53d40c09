"""The admin API's schema and its client."""
