"""Holds the methods, one folder each. Begin with rollout.py of any of them."""
