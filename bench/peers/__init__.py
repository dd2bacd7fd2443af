"""Longturn beside llama.cpp and vLLM: the same machine, model, bytes of cache, requests and client, in one run."""
