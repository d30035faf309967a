"""Labelled images."""
