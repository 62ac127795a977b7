"""Holds what the methods share, and the libraries around it. README.md has a line for each package.

The name of a tensor ends in its axes, one capital letter each: `logits_NV` has the shape [N, V]. A 1 is an axis that
broadcasts. These letters are used in `core.engine`, `core.train` and `core.algorithms`:

    T  tokens of a packed batch: the sequences lie one after the other, without padding
    R  the trained tokens among them; in a forward, the positions whose logits predict those tokens
    N  sequences of a batch: requests in the engine, segments (roots or branches) in a pack
    L  tokens of the longest of these sequences, where they are padded to one length
    S  positions of keys and values that a query may attend to, also padded
    H  query heads
    K  key/value heads; H / K query heads share one
    D  width of a head
    C  width of the hidden states
    V  vocabulary
"""
