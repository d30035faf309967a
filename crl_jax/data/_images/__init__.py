"""Labelled images: in memory, and read from what they are kept in."""
