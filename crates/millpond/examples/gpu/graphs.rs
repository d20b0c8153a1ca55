//! CUDA graphs on the pool's memory: captured in every mode, replayed a thousand times with the
//! contents verified, several in one memory, and a hundred that leave nothing behind.
//!
//! What the graphs use is allocated while they are captured, in part freed and used again within
//! them; beside the replays the same streams allocate, use and free other memory of the pool's.

mod support;

use millpond::device::{Device, EventId, StreamId};
use millpond::{Block, GraphMemory, Pool};
use support::graph::{Graph, Mode};
use support::{Gpu, Note, Outcome, ensure};

const MIB: u64 = 1 << 20;

type Case = fn(&Gpu) -> Outcome;

fn main() -> Outcome {
    let Some(gpu) = Gpu::open(0)? else {
        return Ok(());
    };
    let cases: [(&str, Case); 4] = [
        ("a thousand replays", a_thousand_replays),
        ("captures in every mode", every_mode),
        ("graphs that share memory", sharing),
        ("a hundred captures leave nothing", a_hundred_captures),
    ];
    for (name, case) in cases {
        case(&gpu).map_err(|error| format!("{name}: {error}"))?;
        println!("{name}: nothing corrupt");
    }
    Ok(())
}

/// Two streams, and what they have in common.
struct Program<'a> {
    gpu: &'a Gpu,
    pool: Pool,
    streams: [StreamId; 2],
    event: EventId,
    note: Note,
}

impl<'a> Program<'a> {
    fn new(gpu: &'a Gpu) -> Outcome<Program<'a>> {
        Ok(Program {
            gpu,
            pool: Pool::builder(gpu.shared()).build()?,
            streams: [gpu.stream()?, gpu.stream()?],
            event: gpu.device.create_event()?,
            note: Note::new()?,
        })
    }

    fn order(&self, from: StreamId, to: StreamId) -> Outcome {
        self.pool.record_event(self.event, from)?;
        self.pool.wait_event(to, self.event)?;
        Ok(())
    }

    /// Captures a graph of two streams. Its result stays in the block that is given back.
    fn capture(&self, memory: &GraphMemory, mode: Mode, value: u32) -> Outcome<(Graph, Block)> {
        let [a, b] = self.streams;
        let capture = memory.begin_capture(a)?;
        self.gpu.begin_capture(a, mode)?;
        let result = self.queue(value);
        let graph = self.gpu.end_capture(a);
        capture.end();
        let (result, graph) = (result?, graph?);
        for stream in [a, b] {
            self.gpu.synchronize(stream)?;
        }
        Ok((graph, result))
    }

    /// What goes into the graph.
    fn queue(&self, value: u32) -> Outcome<Block> {
        let (gpu, note, [a, b]) = (self.gpu, &self.note, self.streams);
        let size = 8 * MIB;
        let first = self.pool.allocate(size, a)?;
        gpu.write(a, first.address(), size, value)?;
        // The second stream reads what the first has written.
        self.order(a, b)?;
        first.use_on(b)?;
        gpu.check(b, first.address(), size, value, note)?;
        let copy = self.pool.allocate(size, b)?;
        gpu.copy(b, copy.address(), first.address(), size)?;
        gpu.check(b, copy.address(), size, value, note)?;
        let used = first.address();
        drop(first);
        self.order(b, a)?;
        // The first stream comes after both uses: it gets the memory again.
        let again = self.pool.allocate(size, a)?;
        ensure(again.address() == used, || {
            "memory freed in the graph was not used again".into()
        })?;
        gpu.set_words(a, again.address(), size, !value)?;
        gpu.check(a, again.address(), 4, !value, note)?;
        gpu.write(a, again.address(), size, value ^ 1)?;
        gpu.check(a, again.address(), size, value ^ 1, note)?;
        let result = self.pool.allocate(2 * MIB, a)?;
        gpu.write(a, result.address(), 2 * MIB, value ^ 2)?;
        // The copy is still there; then the streams come together, as a capture must end.
        gpu.check(b, copy.address(), size, value, note)?;
        drop((copy, again));
        self.order(b, a)?;
        Ok(result)
    }

    /// Other memory of the pool's, used and freed on the streams of the graphs.
    fn work_beside(&self, round: u32) -> Outcome {
        let stream = self.streams[round as usize % 2];
        let size = u64::from(1 + round % 5) * 3 * MIB;
        let block = self.pool.allocate(size, stream)?;
        let value = round << 8;
        self.gpu.write(stream, block.address(), size, value)?;
        self.gpu
            .check(stream, block.address(), size, value, &self.note)
    }

    fn verify(&self, result: &Block, value: u32) -> Outcome {
        let stream = self.streams[0];
        let (address, size) = (result.address(), result.size());
        let note = &self.note;
        self.gpu.check(stream, address, size, value ^ 2, note)?;
        for stream in self.streams {
            self.gpu.synchronize(stream)?;
        }
        self.note.clean(value)
    }
}

fn a_thousand_replays(gpu: &Gpu) -> Outcome {
    let program = Program::new(gpu)?;
    let memory = program.pool.graph_memory();
    let value = 0x1234_0000;
    let (graph, result) = program.capture(&memory, Mode::Global, value)?;
    let reserved = memory.reserved_bytes();
    for round in 0..1000_u32 {
        gpu.launch_graph(&graph, program.streams[0])?;
        program.work_beside(round)?;
        if round % 50 == 49 {
            program.verify(&result, value)?;
            // Whatever the pool gives back or moves, the graph's memory stays.
            program.pool.synchronize()?;
            program.pool.trim(0)?;
        }
    }
    ensure(memory.reserved_bytes() == reserved, || {
        format!("{} bytes became {}", reserved, memory.reserved_bytes())
    })?;
    program.pool.validate()?;
    Ok(())
}

fn every_mode(gpu: &Gpu) -> Outcome {
    let program = Program::new(gpu)?;
    for (mode, value) in [Mode::Global, Mode::ThreadLocal, Mode::Relaxed]
        .into_iter()
        .zip(1..)
    {
        let memory = program.pool.graph_memory();
        let value = value << 20;
        // Pending memory of the captured streams, so that there is something to ask after.
        program.work_beside(value)?;
        program.work_beside(value + 1)?;
        let captured = program.capture(&memory, mode, value);
        let (graph, result) = captured.map_err(|error| format!("{mode:?}: {error}"))?;
        for _ in 0..10 {
            gpu.launch_graph(&graph, program.streams[0])?;
        }
        program.verify(&result, value)?;
    }
    Ok(())
}

fn sharing(gpu: &Gpu) -> Outcome {
    let program = Program::new(gpu)?;
    let memory = program.pool.graph_memory();
    let mut graphs = Vec::new();
    for number in 0..4_u32 {
        let value = (number + 1) << 24;
        let (graph, result) = program.capture(&memory, Mode::ThreadLocal, value)?;
        graphs.push((graph, result, value));
    }
    // Temporary memory is there once, results once for each.
    let most = 8 * 2 * MIB + 4 * 2 * MIB;
    ensure(memory.reserved_bytes() <= most, || {
        format!("{} bytes for four graphs", memory.reserved_bytes())
    })?;
    for round in 0..200_usize {
        let (graph, result, value) = &graphs[round * 7 % 4];
        gpu.launch_graph(graph, program.streams[0])?;
        program.work_beside(round as u32)?;
        if round % 10 == 9 {
            program.verify(result, *value)?;
        }
    }
    Ok(())
}

fn a_hundred_captures(gpu: &Gpu) -> Outcome {
    let program = Program::new(gpu)?;
    let round = |value: u32| -> Outcome {
        let memory = program.pool.graph_memory();
        let (graph, result) = program.capture(&memory, Mode::Global, value)?;
        gpu.launch_graph(&graph, program.streams[0])?;
        program.verify(&result, value)?;
        drop((graph, result, memory));
        Ok(())
    };
    // What the driver keeps for graphs it keeps after the first few.
    (1..6).try_for_each(round)?;
    let before = (
        program.pool.statistics().reserved_bytes,
        gpu.device.memory_info()?.free,
    );
    (6..106).try_for_each(round)?;
    let after = (
        program.pool.statistics().reserved_bytes,
        gpu.device.memory_info()?.free,
    );
    println!("reserved by the pool, free on the device: {before:?} before, {after:?} after");
    // One graph has 18 MiB: a hundred that stay would be seen.
    ensure(
        after.0 == before.0 && after.1 + 18 * MIB >= before.1,
        || format!("{before:?} became {after:?}"),
    )
}
