"""The owner of one shard's processes: python -m llmgw.runner DIR. Standard library only."""
