"""Which row is which: the identities of rows, the sets of them that are written, and the inputs they came through."""
