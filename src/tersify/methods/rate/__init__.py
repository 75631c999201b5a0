"""Weights that pay for the bytes they take in the file."""

from tersify.methods.rate.rate import Rate

__all__ = ["Rate"]
