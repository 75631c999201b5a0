"""Causal language models of transformers, decoded by the engine with a cache of keys
and values.
"""
