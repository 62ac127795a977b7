"""Compares credit rules on tiny worlds."""
