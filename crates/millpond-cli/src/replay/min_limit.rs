//! How small a limit still lets a job complete.
//!
//! It is looked for by halving, as if a job that completes at one limit did so at every larger
//! one. That need not be: what a pool does at a limit decides where holes are later, and on devices
//! that keep real time no two replays are quite the same. What is found completes when it is
//! tried, and one step less does not; in between, only what was tried is known.

/// What limits are multiples of, in bytes.
pub(super) const STEP: u64 = 2 << 20;

/// The smallest limit that completes, as far as halving finds it, in bytes.
///
/// Nothing below `live` bytes can complete; at `enough` bytes it does, as a replay has shown.
pub(super) fn search<E>(
    live: u64,
    enough: u64,
    mut completes: impl FnMut(u64) -> Result<bool, E>,
) -> Result<u64, E> {
    // In steps. The lower one fails, the upper one completes.
    let (mut fails, mut does) = (live.div_ceil(STEP).max(1) - 1, enough.div_ceil(STEP).max(1));
    while does.saturating_sub(fails) > 1 {
        let middle = fails.midpoint(does);
        if completes(middle * STEP)? {
            does = middle;
        } else {
            fails = middle;
        }
    }
    Ok(does * STEP)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Searches where exactly limits from `smallest` on complete; gives what was tried.
    fn tried(live: u64, enough: u64, smallest: u64) -> (u64, Vec<u64>) {
        let mut tried = Vec::new();
        let found = search(live, enough, |limit| {
            tried.push(limit);
            Ok::<_, Infallible>(limit >= smallest)
        });
        (found.unwrap(), tried)
    }

    #[test]
    fn the_smallest_limit_is_found_wherever_it_lies() {
        for smallest in 10..=100 {
            let (found, tried) = tried(10 * STEP - 5, 100 * STEP, smallest * STEP);
            assert_eq!(found, smallest * STEP);
            assert!(tried.len() <= 7, "{tried:?}");
            assert!(tried.iter().all(|limit| limit % STEP == 0));
            assert!(
                tried
                    .iter()
                    .all(|limit| (10 * STEP..100 * STEP).contains(limit))
            );
        }
    }

    #[test]
    fn nothing_is_tried_where_there_is_nothing_between() {
        assert_eq!(tried(10 * STEP, 10 * STEP, 0), (10 * STEP, vec![]));
        assert_eq!(tried(0, 0, 0), (STEP, vec![]));
        assert_eq!(tried(1, 1, 0), (STEP, vec![]));
    }

    #[test]
    fn what_is_found_completes_even_where_larger_ones_do_not() {
        let completes =
            |limit: u64| Ok::<_, Infallible>([20, 40, 41, 64].contains(&(limit / STEP)));
        let found = search(16 * STEP, 64 * STEP, completes).unwrap();
        assert!(completes(found).unwrap());
        assert!(!completes(found - STEP).unwrap());
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(search(STEP, 9 * STEP, |_| Err("broken")), Err("broken"));
    }
}
