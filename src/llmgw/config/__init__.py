"""Settings: one small frozen class per app, and the loader that reads them."""
