"""Tersify: few weights, few bits, small files, fast CPU inference."""
