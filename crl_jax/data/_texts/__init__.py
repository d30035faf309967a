"""Labelled texts and pairs of sentences, and how texts are cut into tokens."""
