"""Labelled texts, pairs of texts, and their tokens."""
