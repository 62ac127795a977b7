"""Measures what capture layers train of the same conversations: ours and those of other projects."""
