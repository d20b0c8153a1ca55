//! What is written into each block: a word that tells which block it is.

use millpond::device::Pattern;

/// Odd, so that multiplying by it is a bijection of all words, and of their low bytes too.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Its inverse modulo 2^64. Each step of Newton's method doubles the bits that are right, from
/// the three that every odd number is its own inverse in.
const INVERSE: u64 = {
    let mut inverse = FACTOR;
    let mut bits = 3;
    while bits < 64 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        bits *= 2;
    }
    inverse
};

/// The pattern of a block. No block's word is zero.
pub(super) fn pattern_of(block: u32) -> Pattern {
    Pattern((u64::from(block) + 1).wrapping_mul(FACTOR))
}

/// The block whose word was found, among `blocks`; `None` if it is nobody's. `length` is that of
/// the range it was found in: its last word may be cut, and then its low bytes tell, unless
/// several blocks have the same.
pub(super) fn block_of(word: u64, length: u64, blocks: u32) -> Option<u32> {
    let number = word.wrapping_mul(INVERSE);
    if (1..=u64::from(blocks)).contains(&number) {
        return u32::try_from(number - 1).ok();
    }
    let cut = length % 8;
    if cut == 0 || word >> (8 * cut) != 0 {
        return None;
    }
    let residue = 1_u64 << (8 * cut);
    let number = number % residue;
    let unique = u64::from(blocks) < residue;
    let known = (1..=u64::from(blocks)).contains(&number);
    u32::try_from(number.checked_sub(1)?)
        .ok()
        .filter(|_| unique && known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_its_block() {
        for block in [0, 1, 7, 617_804, u32::MAX - 1] {
            let Pattern(word) = pattern_of(block);
            assert_eq!(block_of(word, 4096, u32::MAX), Some(block));
            assert_eq!(block_of(word ^ 1, 4096, 1_000_000), None);
        }
        let Pattern(word) = pattern_of(100);
        assert_eq!(block_of(word, 4096, 100), None);
        assert_eq!(block_of(0, 4096, u32::MAX), None);
    }

    #[test]
    fn a_cut_word_names_its_block_while_it_is_the_only_one() {
        let Pattern(word) = pattern_of(99_999);
        let low_bytes = |count: u32| word & ((1 << (8 * count)) - 1);
        assert_eq!(block_of(low_bytes(4), 12, 617_805), Some(99_999));
        assert_eq!(block_of(low_bytes(3), 3, 617_805), Some(99_999));
        assert_eq!(block_of(low_bytes(2), 2, 617_805), None);
        assert_eq!(block_of(low_bytes(4), 16, 617_805), None);
    }
}
