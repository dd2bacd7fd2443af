"""Outbound: models of every provider behind one protocol, through the providers' own SDKs."""
