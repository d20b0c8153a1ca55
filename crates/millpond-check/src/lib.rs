//! An independent judge of the pool, and the conformance suites.
