//! to come
use super::Case;
/// The cases.
pub fn all() -> &'static [Case] {
    &[]
}
