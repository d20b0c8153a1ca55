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

/// The block that a wrong word came from, among `blocks`; `None` if it is nobody's, or cannot be
/// told.
///
/// A word can be another block's in its low bytes alone: where that block's last word was cut,
/// the bytes above are as `expected`; where the range's own was cut, they are zero. The low bytes
/// then tell, unless several blocks have the same.
pub(super) fn block_of(word: u64, expected: Pattern, blocks: u32) -> Option<u32> {
    let blocks = u64::from(blocks);
    let named = |number: u64| {
        let known = (1..=blocks).contains(&number);
        known.then(|| u32::try_from(number - 1).ok()).flatten()
    };
    if let Some(block) = named(word.wrapping_mul(INVERSE)) {
        return Some(block);
    }
    (1..8)
        .rev()
        .map(|bytes| 1_u64 << (8 * bytes))
        .find_map(|end| {
            let above = word / end;
            let cut = above == 0 || above == expected.0 / end;
            let unique = blocks < end;
            let number = (word % end).wrapping_mul(INVERSE) % end;
            (cut && unique).then(|| named(number)).flatten()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_its_block() {
        let expected = pattern_of(3);
        for block in [0, 1, 7, 617_804, u32::MAX - 1] {
            let Pattern(word) = pattern_of(block);
            assert_eq!(block_of(word, expected, u32::MAX), Some(block));
            assert_eq!(block_of(word ^ (1 << 63), expected, 1_000_000), None);
        }
        let Pattern(word) = pattern_of(100);
        assert_eq!(block_of(word, expected, 100), None);
        assert_eq!(block_of(0, expected, u32::MAX), None);
    }

    #[test]
    fn a_cut_word_names_its_block_while_it_is_the_only_one() {
        let (Pattern(word), expected) = (pattern_of(99_999), pattern_of(3));
        for above in [0, expected.0] {
            let low_bytes = |count: u32| {
                let mask = (1 << (8 * count)) - 1;
                word & mask | above & !mask
            };
            assert_eq!(block_of(low_bytes(7), expected, 617_805), Some(99_999));
            assert_eq!(block_of(low_bytes(4), expected, 617_805), Some(99_999));
            assert_eq!(block_of(low_bytes(3), expected, 617_805), Some(99_999));
            assert_eq!(block_of(low_bytes(2), expected, 617_805), None);
        }
        assert_eq!(
            block_of(word & 0xffff_ffff | 1 << 40, expected, 617_805),
            None
        );
    }
}
