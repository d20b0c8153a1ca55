//! The stream sanitizer on random programs, against order that is found in another way: by
//! searching the graph of all that was queued, step by step, with no clocks.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;

use super::*;
use crate::device::{EventId, StreamOrder};
use crate::pool::{Access, Hazard};

const STREAMS: usize = 4;
const BLOCKS: usize = 4;
const EVENTS: usize = 3;

/// A step of a program. Steps that make no sense where they stand are left out.
#[derive(Clone, Copy, Debug)]
enum Step {
    Allocate(usize, usize),
    Access(usize, usize, Access),
    UseOn(usize, usize),
    UseEnds(usize, usize, Option<usize>),
    HandOver(usize, usize),
    Free(usize),
    Record(usize, usize),
    Wait(usize, usize),
    SynchronizeStream(usize),
    Synchronize,
    Replace(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (s, b, e) = (0..STREAMS, 0..BLOCKS, 0..EVENTS);
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    prop_oneof![
        4 => (b.clone(), s.clone()).prop_map(|(b, s)| Step::Allocate(b, s)),
        6 => (b.clone(), s.clone(), access).prop_map(|(b, s, a)| Step::Access(b, s, a)),
        2 => (b.clone(), s.clone()).prop_map(|(b, s)| Step::UseOn(b, s)),
        2 => (b.clone(), s.clone(), proptest::option::of(e.clone()))
            .prop_map(|(b, s, e)| Step::UseEnds(b, s, e)),
        1 => (b.clone(), s.clone()).prop_map(|(b, s)| Step::HandOver(b, s)),
        3 => b.prop_map(Step::Free),
        5 => (e.clone(), s.clone()).prop_map(|(e, s)| Step::Record(e, s)),
        6 => (s.clone(), e).prop_map(|(s, e)| Step::Wait(s, e)),
        1 => s.clone().prop_map(Step::SynchronizeStream),
        1 => Just(Step::Synchronize),
        1 => s.prop_map(Step::Replace),
    ]
}

/// Something that a stream, or the host, was given: what it comes after directly.
type Node = usize;

#[derive(Default)]
struct Graph {
    after: Vec<Vec<Node>>,
    /// The last of each stream.
    last: BTreeMap<usize, Node>,
    /// Waits on the host: all that is queued later comes after them.
    host: Vec<Node>,
}

impl Graph {
    fn add(&mut self, after: Vec<Node>) -> Node {
        self.after.push(after);
        self.after.len() - 1
    }

    fn queue(&mut self, stream: usize, further: Option<Node>) -> Node {
        let mut after = self.host.clone();
        after.extend(self.last.get(&stream));
        after.extend(further);
        let node = self.add(after);
        self.last.insert(stream, node);
        node
    }

    fn wait_on_host(&mut self, after: Vec<Node>) {
        let node = self.add(after);
        self.host.push(node);
    }

    fn is_before(&self, one: Node, other: Node) -> bool {
        let mut seen = BTreeSet::new();
        let mut next = vec![other];
        while let Some(node) = next.pop() {
            if node == one {
                return true;
            }
            if seen.insert(node) {
                next.extend(&self.after[node]);
            }
        }
        false
    }
}

struct Live {
    number: usize,
    block: Block,
    allocated: Node,
    owner: usize,
    users: Vec<(usize, bool)>,
    ends: Vec<Node>,
    accesses: Vec<(usize, Access, Node)>,
}

type Found = BTreeSet<(usize, &'static str)>;

/// Runs a program on a pool with a sanitizer. Gives what is wrong by the search, and what the
/// sanitizer reported.
struct Program {
    sim: Arc<SimDevice>,
    pool: Pool,
    graph: Graph,
    /// Handles of the streams, and their numbers in the graph: new ones where one is replaced.
    streams: Vec<(StreamId, usize)>,
    created: usize,
    events: Vec<EventId>,
    recorded: BTreeMap<usize, Node>,
    live: BTreeMap<usize, Live>,
    blocks: usize,
    wrong: Found,
}

fn name(hazard: Hazard) -> &'static str {
    match hazard {
        Hazard::UseNotOrderedAfterAllocation => "allocation",
        Hazard::FreeNotOrderedAfterUse => "free",
        Hazard::ConflictingAccesses => "conflict",
        _ => "other",
    }
}

impl Program {
    fn new() -> Program {
        let sim = SimDevice::builder().total_memory(64 * MIB);
        let sim = Arc::new(sim.stream_values_recur(true).build());
        let builder = Pool::builder(Arc::clone(&sim) as _).stream_sanitizer();
        let pool = builder.build().unwrap();
        let stream = || sim.create_stream(StreamOrder::Independent).unwrap();
        let streams = (0..STREAMS).map(|n| (stream(), n)).collect();
        let events = (0..EVENTS).map(|_| sim.create_event().unwrap()).collect();
        Program {
            sim,
            pool,
            graph: Graph::default(),
            streams,
            created: STREAMS,
            events,
            recorded: BTreeMap::new(),
            live: BTreeMap::new(),
            blocks: 0,
            wrong: Found::new(),
        }
    }

    fn run(steps: &[Step]) -> (Found, Found) {
        let mut program = Program::new();
        for &step in steps {
            program.step(step);
        }
        for block in 0..BLOCKS {
            program.step(Step::Free(block));
        }
        program.pool.validate().unwrap();
        let reports = program.pool.order_reports().into_iter().map(|report| {
            let block = report.block.name.as_ref().unwrap().parse().unwrap();
            (block, name(report.hazard))
        });
        (program.wrong, reports.collect())
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Allocate(place, s) => {
                if self.live.contains_key(&place) {
                    return;
                }
                let (stream, index) = self.streams[s];
                let block = self.pool.allocate(MIB, stream).unwrap();
                block.set_name(self.blocks.to_string());
                let live = Live {
                    number: self.blocks,
                    block,
                    allocated: self.graph.queue(index, None),
                    owner: index,
                    users: vec![(index, false)],
                    ends: Vec::new(),
                    accesses: Vec::new(),
                };
                self.blocks += 1;
                self.live.insert(place, live);
            }
            Step::Access(place, s, access) => self.access(place, s, access),
            Step::UseOn(place, s) => {
                let (stream, index) = self.streams[s];
                if let Some(live) = self.live.get_mut(&place) {
                    live.block.use_on(stream).unwrap();
                    live.add_user(index);
                }
            }
            Step::UseEnds(place, s, event) => {
                let (stream, index) = self.streams[s];
                let Some(live) = self.live.get_mut(&place) else {
                    return;
                };
                if !live.users.iter().any(|&(user, _)| user == index) {
                    return;
                }
                let end = match event {
                    None => {
                        live.block.use_ended(stream).unwrap();
                        self.graph.queue(index, None)
                    }
                    Some(event) => {
                        let Some(&node) = self.recorded.get(&event) else {
                            return;
                        };
                        let event = self.events[event];
                        live.block.use_ends_at(stream, event).unwrap();
                        // What the host waited for later comes before everything all the same.
                        let mut after = self.graph.host.clone();
                        after.push(node);
                        self.graph.add(after)
                    }
                };
                self.end_use(place, index, end);
            }
            Step::HandOver(place, s) => {
                let (stream, index) = self.streams[s];
                let Some(live) = self.live.get_mut(&place) else {
                    return;
                };
                let former = live.owner;
                live.block.hand_over(stream).unwrap();
                live.add_user(index);
                live.owner = index;
                if former != index {
                    let end = self.graph.queue(former, None);
                    self.end_use(place, former, end);
                }
            }
            Step::Free(place) => {
                let Some(live) = self.live.get(&place) else {
                    return;
                };
                let users: Vec<usize> = live.users.iter().map(|&(user, _)| user).collect();
                for user in users {
                    let end = self.graph.queue(user, None);
                    self.end_use(place, user, end);
                }
                let live = self.live.remove(&place).unwrap();
                let synchronized = self.graph.add(self.graph.host.clone());
                for &(_, _, node) in &live.accesses {
                    let mut ends = live.ends.iter().chain([&synchronized]);
                    if !ends.any(|&end| self.graph.is_before(node, end)) {
                        self.wrong.insert((live.number, "free"));
                    }
                }
            }
            Step::Record(event, s) => {
                let (stream, index) = self.streams[s];
                self.pool.record_event(self.events[event], stream).unwrap();
                let node = self.graph.queue(index, None);
                self.recorded.insert(event, node);
            }
            Step::Wait(s, event) => {
                let (stream, index) = self.streams[s];
                self.pool.wait_event(stream, self.events[event]).unwrap();
                let recorded = self.recorded.get(&event).copied();
                self.graph.queue(index, recorded);
            }
            Step::SynchronizeStream(s) => {
                let (stream, index) = self.streams[s];
                self.pool.synchronize_stream(stream).unwrap();
                let node = self.graph.queue(index, None);
                self.graph.wait_on_host(vec![node]);
            }
            Step::Synchronize => {
                self.pool.synchronize().unwrap();
                let all = self.graph.last.values().copied().collect();
                self.graph.wait_on_host(all);
            }
            Step::Replace(s) => {
                let stream = self.streams[s].0;
                self.pool.stream_destroyed(stream).unwrap();
                self.sim.destroy_stream(stream).unwrap();
                let new = self.sim.create_stream(StreamOrder::Independent).unwrap();
                self.streams[s] = (new, self.created);
                self.created += 1;
            }
        }
    }

    fn access(&mut self, place: usize, s: usize, access: Access) {
        let (stream, index) = self.streams[s];
        let Some(live) = self.live.get_mut(&place) else {
            return;
        };
        live.block.access(stream, access);
        let node = self.graph.queue(index, None);
        if !self.graph.is_before(live.allocated, node) {
            self.wrong.insert((live.number, "allocation"));
        } else {
            let conflicts = live.accesses.iter().any(|&(_, other, earlier)| {
                let harmless = (access, other) == (Access::Read, Access::Read);
                !harmless && !self.graph.is_before(earlier, node)
            });
            if conflicts {
                self.wrong.insert((live.number, "conflict"));
            }
        }
        live.accesses.push((index, access, node));
        for (user, judged) in &mut live.users {
            *judged &= *user != index;
        }
    }

    fn end_use(&mut self, place: usize, index: usize, end: Node) {
        let Some(live) = self.live.get_mut(&place) else {
            return;
        };
        let Some(user) = live.users.iter().position(|&(user, _)| user == index) else {
            return;
        };
        let (_, judged) = live.users.remove(user);
        if judged && !self.graph.is_before(live.allocated, end) {
            self.wrong.insert((live.number, "allocation"));
        }
        live.ends.push(end);
    }
}

impl Live {
    /// A use without an access of which anybody tells is judged when it ends.
    fn add_user(&mut self, index: usize) {
        if !self.users.iter().any(|&(user, _)| user == index) {
            let told = self.accesses.iter().any(|&(stream, ..)| stream == index);
            self.users.push((index, !told));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn reports_are_what_a_search_of_the_graph_finds(
        steps in proptest::collection::vec(step(), 1..60)
    ) {
        let (wrong, reported) = Program::run(&steps);
        prop_assert_eq!(reported, wrong);
    }
}

/// What a right program does with its blocks: which one, on which stream, how; and what it ends
/// with.
#[derive(Clone, Debug)]
struct Job {
    owner: usize,
    accesses: Vec<(usize, Access)>,
    /// Whether the free is protected by declared uses, or by waits of the owner.
    declared: bool,
}

fn job() -> impl Strategy<Value = Job> {
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let accesses = proptest::collection::vec((0..STREAMS, access), 1..6);
    (0..STREAMS, accesses, any::<bool>()).prop_map(|(owner, accesses, declared)| Job {
        owner,
        accesses,
        declared,
    })
}

/// A program in which every access waits for all accesses before it, and every free for all of
/// them or their declared uses; jobs take turns.
fn right_program(jobs: &[Job]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut event = 0;
    let order = |steps: &mut Vec<Step>, before: usize, after: usize, event: &mut usize| {
        if before != after {
            steps.extend([Step::Record(*event, before), Step::Wait(after, *event)]);
            *event = (*event + 1) % EVENTS;
        }
    };
    for (block, job) in jobs.iter().enumerate() {
        steps.push(Step::Allocate(block, job.owner));
    }
    let most = jobs.iter().map(|job| job.accesses.len()).max().unwrap_or(0);
    for turn in 0..most {
        for (block, job) in jobs.iter().enumerate() {
            let Some(&(stream, access)) = job.accesses.get(turn) else {
                continue;
            };
            let before = turn.checked_sub(1).map_or(job.owner, |t| job.accesses[t].0);
            order(&mut steps, before, stream, &mut event);
            if job.declared {
                steps.push(Step::UseOn(block, stream));
            }
            steps.push(Step::Access(block, stream, access));
            if turn + 1 == job.accesses.len() {
                if !job.declared {
                    order(&mut steps, stream, job.owner, &mut event);
                }
                steps.push(Step::Free(block));
            }
        }
    }
    steps
}

#[test]
fn right_programs_have_no_report_and_programs_without_a_needed_wait_do() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let jobs = proptest::collection::vec(job(), 1..=BLOCKS);
    let (mut needed, mut left_out) = (0, 0);
    for _ in 0..150 {
        let jobs = jobs.new_tree(&mut runner).unwrap().current();
        let steps = right_program(&jobs);
        assert_eq!(Program::run(&steps), (Found::new(), Found::new()));
        for place in 0..steps.len() {
            if !matches!(steps[place], Step::Wait(..)) {
                continue;
            }
            let mut mutated = steps.clone();
            mutated.remove(place);
            let (wrong, reported) = Program::run(&mutated);
            assert_eq!(reported, wrong, "{mutated:?}");
            left_out += 1;
            needed += usize::from(!wrong.is_empty());
        }
    }
    // Most waits of these programs are needed; the others follow from waits of other jobs.
    assert!(
        needed * 2 > left_out && needed > 500,
        "{needed} of {left_out}"
    );
}
