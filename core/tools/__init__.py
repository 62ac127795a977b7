"""Holds tools that a method calls: the protocol, the registry, Python in the sandbox, search, and a text generator."""
