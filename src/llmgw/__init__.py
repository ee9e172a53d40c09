"""llmgw: one OpenAI-compatible endpoint for the models you run on your own GPU machines."""
