"""Tools that a method calls: the protocol, the Python sandbox, the retrieval client."""
