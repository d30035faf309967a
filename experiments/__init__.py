"""Experiments: the only floor of the project that parses, prints and draws."""
