//! The planner's promises, on random problems and on small ones that every plan of is known.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millpond_plan::{
    Arena, Buffer, Gap, Options, PlanError, Problem, ProblemError, Violation, compare, plan,
    plan_with, validate,
};
use proptest::prelude::*;

/// Deterministic: a number of rounds, no clock.
fn rounds(rounds: u32) -> Options<'static> {
    Options {
        time: None,
        rounds: Some(rounds),
        threads: NonZeroUsize::new(2),
        cancel: None,
    }
}

fn placed(plan: &millpond_plan::Plan) -> Vec<(usize, u64)> {
    plan.placements
        .iter()
        .map(|p| (p.arena, p.offset))
        .collect()
}

/// The lowest peak of all plans: every order of the buffers, each at the lowest free place. One of
/// them gives the optimum, for in an optimal plan all can be pushed down, and then come in the order
/// of their offsets.
fn optimum(buffers: &[Buffer]) -> u64 {
    fn meet(a: &Buffer, b: &Buffer) -> bool {
        a.lower < b.upper && b.lower < a.upper
    }
    fn place(buffers: &[Buffer], placed: &mut Vec<(usize, u64)>, best: &mut u64) {
        let peak = placed
            .iter()
            .map(|&(i, at)| at + buffers[i].size)
            .max()
            .unwrap_or(0);
        if peak >= *best {
            return;
        }
        if placed.len() == buffers.len() {
            *best = peak;
            return;
        }
        for i in 0..buffers.len() {
            if placed.iter().any(|p| p.0 == i) {
                continue;
            }
            let mut offset = 0;
            for &(j, at) in &*placed {
                if meet(&buffers[i], &buffers[j]) {
                    offset = offset.max(at + buffers[j].size);
                }
            }
            offset = offset.next_multiple_of(buffers[i].alignment);
            placed.push((i, offset));
            place(buffers, placed, best);
            placed.pop();
        }
    }
    let mut best = u64::MAX;
    place(buffers, &mut Vec::new(), &mut best);
    best
}

fn buffer(time: i64, size: u64) -> impl Strategy<Value = Buffer> {
    let alignment = prop_oneof![4 => Just(1_u64), 1 => Just(2), 1 => Just(4), 1 => Just(3)];
    (0..time, 1..=time / 2 + 1, 1..=size, alignment).prop_map(|(lower, length, size, alignment)| {
        Buffer::new(lower, lower + length, size).aligned(alignment)
    })
}

fn with_extras() -> impl Strategy<Value = Vec<Buffer>> {
    let extra = (0..8_u8, any::<prop::sample::Index>(), 0..64_u64);
    prop::collection::vec((buffer(40, 64), extra), 1..60).prop_map(|list| {
        let mut buffers: Vec<Buffer> = Vec::new();
        for (mut buffer, (kind, index, number)) in list {
            let length = buffer.upper - buffer.lower;
            match kind {
                0 if length > 2 => buffer.gaps.push(Gap {
                    lower: buffer.lower + 1,
                    upper: buffer.upper - 1,
                    held: (number % 2 == 0 && buffer.size > 1)
                        .then_some((number % buffer.size / 2, buffer.size / 2 + 1)),
                }),
                1 if !buffers.is_empty() => {
                    let base = index.index(buffers.len());
                    let distance = number.min(buffers[base].size) / 12 * 12;
                    buffer.inside = Some((base, distance));
                }
                // Far apart, so that two of them never overlap.
                2 => buffer.offset = Some(4096 * (buffers.len() as u64 + 1) * 12),
                3 if number == 0 => buffer.size = 0,
                4 if number == 1 => buffer.upper = buffer.lower,
                _ => {}
            }
            buffers.push(buffer);
        }
        buffers
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn small_problems_are_never_above_the_optimum_when_proven_and_never_below(
        buffers in prop::collection::vec(buffer(8, 9), 1..8)
    ) {
        let best = optimum(&buffers);
        let plan = plan(&Problem::new(buffers), &rounds(12)).unwrap();
        prop_assert!(plan.peak >= best);
        prop_assert!(plan.lower_bound <= best);
        prop_assert_eq!(plan.is_optimal(), plan.peak == plan.lower_bound);
        // So few buffers are always searched to the end.
        prop_assert_eq!(plan.peak, best);
        prop_assert!(plan.is_optimal());
    }

    #[test]
    fn every_plan_of_random_problems_is_valid_and_the_same_again(buffers in with_extras()) {
        let problem = Problem::new(buffers);
        let mut last = u64::MAX;
        let mut shown = Vec::new();
        let made = plan_with(&problem, &rounds(2), &mut |better| {
            shown.push((better.peak, validate(&problem, &placed(better))));
        }).unwrap();
        for (peak, valid) in shown {
            prop_assert_eq!(valid, Ok(()));
            prop_assert!(peak < last);
            last = peak;
        }
        prop_assert_eq!(validate(&problem, &placed(&made)), Ok(()));
        prop_assert!(made.lower_bound <= made.peak);
        let one_thread = Options { threads: NonZeroUsize::new(1), ..rounds(2) };
        prop_assert_eq!(placed(&made), placed(&plan(&problem, &one_thread).unwrap()));
    }

    #[test]
    fn blocks_and_arenas_are_kept(
        buffers in prop::collection::vec(buffer(20, 16), 1..40),
        block in 48_u64..96,
        first in 48_u64..96,
    ) {
        let arenas = vec![
            Arena { capacity: Some(first), largest_block: None },
            Arena { capacity: None, largest_block: Some(block / 12 * 12) },
        ];
        let problem = Problem { buffers, arenas };
        let made = plan(&problem, &rounds(1)).unwrap();
        prop_assert_eq!(validate(&problem, &placed(&made)), Ok(()));
        prop_assert!(made.peaks[0] <= first);
        prop_assert_eq!(made.peaks.iter().sum::<u64>(), made.peak);
    }

    #[test]
    fn a_capacity_is_kept_or_said_to_be_too_small(
        buffers in prop::collection::vec(buffer(8, 9), 1..8),
        capacity in 1_u64..40,
    ) {
        let best = optimum(&buffers);
        let arenas = vec![Arena { capacity: Some(capacity), largest_block: None }];
        match plan(&Problem { buffers, arenas }, &rounds(12)) {
            Ok(plan) => prop_assert!(plan.peak <= capacity),
            Err(PlanError::Impossible { .. }) => prop_assert!(best > capacity),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }

    #[test]
    fn the_validator_sees_what_is_moved(
        buffers in prop::collection::vec(buffer(8, 9), 2..30),
        which in any::<prop::sample::Index>(),
        onto in any::<prop::sample::Index>(),
    ) {
        let problem = Problem::new(buffers);
        let made = plan(&problem, &rounds(0)).unwrap();
        let mut places = placed(&made);
        let (a, b) = (which.index(places.len()), onto.index(places.len()));
        let (x, y) = (&problem.buffers[a], &problem.buffers[b]);
        places[a].1 = places[b].1;
        let meet = a != b && x.lower < y.upper && y.lower < x.upper;
        let wrong = meet || !places[a].1.is_multiple_of(x.alignment);
        prop_assert!(!wrong || validate(&problem, &places).is_err());
    }
}

#[test]
fn a_perfect_packing_is_found_and_proven() {
    // Four columns of time cut into pieces that leave no byte free.
    let b = Buffer::new;
    let buffers = vec![
        b(0, 2, 5),
        b(2, 4, 3),
        b(0, 1, 7),
        b(1, 3, 4),
        b(3, 4, 6),
        b(2, 4, 2),
        b(1, 2, 3),
        b(2, 3, 3),
        b(3, 4, 1),
    ];
    let best = optimum(&buffers);
    let made = plan(&Problem::new(buffers), &rounds(12)).unwrap();
    assert_eq!((made.peak, made.lower_bound), (best, best));
}

#[test]
fn what_is_tied_together_moves_together_and_counts_once() {
    let mut over = Buffer::new(2, 5, 8);
    over.inside = Some((0, 0));
    let mut view = Buffer::new(1, 2, 4);
    view.inside = Some((0, 4));
    let problem = Problem::new(vec![Buffer::new(0, 3, 8), over, view, Buffer::new(0, 5, 8)]);
    let made = plan(&problem, &rounds(4)).unwrap();
    assert_eq!(made.peak, 16);
    assert!(made.is_optimal());
    assert_eq!(made.placements[1], made.placements[0]);
    assert_eq!(made.placements[2].offset, made.placements[0].offset + 4);
    assert_eq!(compare(&problem).unwrap().no_sharing, 16);
}

#[test]
fn a_gap_serves_another_buffer() {
    let mut long = Buffer::new(0, 9, 8);
    long.gaps = vec![Gap {
        lower: 2,
        upper: 7,
        held: None,
    }];
    let made = plan(
        &Problem::new(vec![long.clone(), Buffer::new(2, 7, 8)]),
        &rounds(4),
    )
    .unwrap();
    assert_eq!(made.peak, 8);
    long.gaps[0].held = Some((4, 8));
    let made = plan(&Problem::new(vec![long, Buffer::new(2, 7, 4)]), &rounds(4)).unwrap();
    assert_eq!(made.peak, 8);
}

#[test]
fn contradictions_are_named() {
    let error = |problem: Problem| plan(&problem, &rounds(1)).unwrap_err();
    let one = |buffer: Buffer| error(Problem::new(vec![buffer]));
    assert_eq!(
        one(Buffer::new(3, 2, 1)),
        PlanError::Problem(ProblemError::EndsBeforeItBegins {
            buffer: 0,
            lower: 3,
            upper: 2
        })
    );
    assert_eq!(
        one(Buffer::new(0, 1, 1).aligned(0)),
        PlanError::Problem(ProblemError::NoAlignment { buffer: 0 })
    );
    assert_eq!(
        one(Buffer::new(0, 1, u64::MAX)),
        PlanError::Problem(ProblemError::TooLarge { buffer: 0 })
    );
    let mut fixed = Buffer::new(0, 4, 8);
    fixed.offset = Some(4);
    assert_eq!(
        error(Problem::new(vec![fixed.clone(), fixed.clone()])),
        PlanError::FixedOverlap {
            first: 0,
            second: 1
        }
    );
    let mut a = Buffer::new(0, 1, 1);
    a.inside = Some((1, 0));
    let mut b = a.clone();
    b.inside = Some((0, 0));
    assert_eq!(
        error(Problem::new(vec![a, b])),
        PlanError::Problem(ProblemError::Circle { buffer: 0 })
    );
    let arenas = vec![Arena {
        capacity: Some(7),
        largest_block: None,
    }];
    assert_eq!(
        error(Problem {
            buffers: vec![Buffer::new(0, 1, 8)],
            arenas
        }),
        PlanError::Impossible {
            needed: 8,
            capacity: 7
        }
    );
}

#[test]
fn a_cancelled_search_still_has_a_plan() {
    let cancel = AtomicBool::new(true);
    let buffers =
        (0..200).map(|i| Buffer::new(i % 17, i % 17 + 1 + i % 5, 1 + (i as u64 * 7) % 13));
    let problem = Problem::new(buffers.collect());
    let options = Options {
        time: Some(Duration::from_secs(600)),
        cancel: Some(&cancel),
        ..Options::default()
    };
    let made = plan(&problem, &options).unwrap();
    assert_eq!(validate(&problem, &placed(&made)), Ok(()));
}

#[test]
fn an_empty_problem_takes_nothing() {
    let made = plan(&Problem::default(), &rounds(1)).unwrap();
    assert_eq!(
        (made.peak, made.lower_bound, made.placements.len()),
        (0, 0, 0)
    );
}

#[test]
fn the_validator_names_both_sides_of_an_overlap() {
    let problem = Problem::new(vec![Buffer::new(0, 4, 8), Buffer::new(3, 6, 8)]);
    assert_eq!(
        validate(&problem, &[(0, 0), (0, 7)]),
        Err(Violation::Overlap {
            first: 1,
            second: 0,
            time: 3
        })
    );
    assert_eq!(validate(&problem, &[(0, 0), (0, 8)]), Ok(()));
}
