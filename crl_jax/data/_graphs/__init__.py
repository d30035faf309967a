"""Labelled graphs."""
