//! Readers for allocation recordings: PyTorch snapshots, event lists, ordered lists, RMM logs.
