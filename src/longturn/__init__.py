"""Longturn: long conversations, computed once.

A tiered prefix cache, the engine that runs over it, and one ledger of logical, cached and computed tokens.
Importing this package is cheap on purpose: nothing here pulls in torch, transformers or a web framework.
"""

__version__ = "0.1.0"
