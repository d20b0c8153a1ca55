//! Random calls of the room, many under way at a time, against the [`model`](super::model).

use proptest::prelude::*;

use super::world::{STREAMS, World};
use crate::order::Reasons;
use crate::order::clockwork::REASONS;

#[derive(Clone, Debug)]
pub(super) enum Step {
    Occupy(Wish),
    OccupyOldest(Wish),
    Release(usize, usize),
    Begin(Wish, u64, bool),
    BeginAndUndo(Wish, u64),
    Settle(usize, bool),
    Undo(usize),
    TakeOut(usize),
    Leave(usize, usize),
    Vacated(usize, bool),
    Alias(usize),
    Plain(u64),
    TakeOutPlain,
    Mark(usize),
    See(usize),
    Learn(usize, usize),
    Synchronize(usize),
    Gather(usize),
}

#[derive(Clone, Debug)]
pub(super) struct Wish {
    pub(super) cells: u64,
    pub(super) alignment: u64,
    pub(super) stream: usize,
    pub(super) reasons: Reasons,
    pub(super) own_first: bool,
}

fn wish() -> impl Strategy<Value = Wish> {
    let cells = prop_oneof![1..5_u64, 4..28_u64, Just(8), Just(16)];
    let reasons = prop_oneof![
        3 => Just(REASONS),
        1 => Just(Reasons { ordered: true, completed: false }),
    ];
    (
        cells,
        prop_oneof![4 => Just(0), 2 => 0..5_u32],
        0..STREAMS,
        reasons,
        any::<bool>(),
    )
        .prop_map(|(cells, alignment, stream, reasons, own_first)| Wish {
            cells,
            alignment: 1 << alignment,
            stream,
            reasons,
            own_first,
        })
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..64_usize;
    let stream = 0..STREAMS;
    prop_oneof![
        6 => wish().prop_map(Step::Occupy),
        1 => wish().prop_map(Step::OccupyOldest),
        9 => (which.clone(), 0..2 * STREAMS).prop_map(|(w, s)| Step::Release(w, s)),
        8 => (wish(), 0..40_u64, any::<bool>()).prop_map(|(w, b, wait)| Step::Begin(w, b, wait)),
        2 => (wish(), 0..40_u64).prop_map(|(w, b)| Step::BeginAndUndo(w, b)),
        8 => (which.clone(), any::<bool>()).prop_map(|(w, s)| Step::Settle(w, s)),
        2 => which.clone().prop_map(Step::Undo),
        1 => which.clone().prop_map(Step::TakeOut),
        3 => which.clone().prop_map(Step::Alias),
        1 => (which.clone(), 0..4_usize).prop_map(|(w, n)| Step::Leave(w, n)),
        2 => (which, any::<bool>()).prop_map(|(w, ok)| Step::Vacated(w, ok)),
        1 => (1..4_u64).prop_map(Step::Plain),
        1 => Just(Step::TakeOutPlain),
        2 => stream.clone().prop_map(Step::Mark),
        2 => stream.clone().prop_map(Step::See),
        2 => (stream.clone(), stream.clone()).prop_map(|(a, b)| Step::Learn(a, b)),
        1 => stream.clone().prop_map(Step::Synchronize),
        1 => stream.prop_map(Step::Gather),
    ]
}

fn run(cell: u64, steps: &[Step]) {
    let mut world = World::new(cell);
    for step in steps {
        world.apply(step);
        world.model.check(&world.backing, &world.clockwork.order);
    }
    // All comes back.
    while !world.model.builds.is_empty() {
        world.apply(&Step::Undo(0));
    }
    while !world.model.blocks.is_empty() {
        world.apply(&Step::Release(0, STREAMS));
    }
    while !world.vacated.is_empty() {
        world.apply(&Step::Vacated(0, true));
    }
    while !world.leaving.is_empty() {
        world.apply(&Step::Leave(0, usize::MAX));
    }
    let everything = world.clockwork.order.everything();
    world.clockwork.order.synchronized_knowledge(&everything);
    world.apply(&Step::TakeOutPlain);
    while !world.model.handles.is_empty() {
        world.apply(&Step::TakeOut(0));
        assert!(!world.leaving.is_empty(), "not all handles are idle");
        world.apply(&Step::Leave(0, usize::MAX));
    }
    world.model.check(&world.backing, &world.clockwork.order);
    assert_eq!(world.backing.reservations.claimed_bytes(), 0);
}

fn config() -> ProptestConfig {
    ProptestConfig {
        max_shrink_iters: 2_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn small_handles_are_those_of_the_model(
        steps in proptest::collection::vec(step(), 1..160),
    ) {
        run(64 << 10, &steps);
    }

    /// Most blocks are placed as large ones are.
    #[test]
    fn large_handles_are_those_of_the_model(
        steps in proptest::collection::vec(step(), 1..160),
    ) {
        run(16 << 20, &steps);
    }
}
