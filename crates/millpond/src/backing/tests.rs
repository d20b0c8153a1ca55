//! The room by cases that somebody thought of, and at random against a plain model.

mod cases;
mod model;
mod random;
mod world;
