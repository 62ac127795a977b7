"""Holds what the methods share: policies, rollouts, algorithms, engines, reports. README.md draws the imports."""
