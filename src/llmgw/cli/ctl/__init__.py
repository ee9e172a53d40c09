"""`llmgw ctl`: the operator's commands, each a question or an edit through the admin API."""
