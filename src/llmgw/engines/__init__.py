"""Engines: how vLLM, SGLang and llama.cpp are started, asked and understood. Pure."""
