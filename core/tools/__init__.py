"""Tools that a method calls: the protocol, a Python sandbox, a retrieval service and its client."""
