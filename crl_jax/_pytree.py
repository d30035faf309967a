"""Dataclasses as pytrees."""

STATIC = {"static": True}
"""Marks a field that programs depend on and not only arrays: another value compiles anew."""
