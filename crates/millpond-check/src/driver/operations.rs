//! What each operation of a sequence does.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millpond::device::StreamId;

use super::blocks::Block;
use super::{Failure, Run, pattern_of, refused};
use crate::sequences::{Mistake, Operation};
use crate::streams::{Incarnation, Occupant};
use crate::tested::{Refusal, TestedPool};

/// More than any device has.
const TOO_MUCH: u64 = 1 << 60;

impl<P: TestedPool> Run<'_, P> {
    pub(super) fn operate(&self, thread: usize, operation: &Operation) -> Result<(), Failure> {
        match *operation {
            Operation::Allocate {
                size,
                alignment,
                stream,
            } => self.allocate(size, alignment, stream),
            Operation::Free { block } => match self.blocks.take(block) {
                Some(block) => self.free(block),
                None => Ok(()),
            },
            Operation::FreeWrongly { block, mistake } => {
                self.with_block(block, |block| self.free_wrongly(block, mistake))
            }
            Operation::Use {
                block,
                stream,
                told,
            } => self.with_block(block, |block| self.use_on(thread, block, stream, told)),
            Operation::Verify { block, stream } => {
                self.with_block(block, |block| self.verify_somewhere(block, stream))
            }
            Operation::Record { event, stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream));
                let event = self.streams.event(event);
                self.excuse(self.pool.record_event(*event, occupant.stream))
                    .map(drop)
            }
            Operation::Wait { event, stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream));
                let event = self.streams.event(event);
                self.excuse(self.pool.wait_event(occupant.stream, *event))
                    .map(drop)
            }
            Operation::SynchronizeStream { stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream));
                self.excuse(self.pool.synchronize_stream(occupant.stream))
                    .map(drop)
            }
            Operation::Synchronize => self.excuse(self.pool.synchronize()).map(drop),
            Operation::Trim { keep } => self.excuse(self.pool.trim(keep).map(drop)).map(drop),
            Operation::ReplaceStream { stream, declared } => self.replace_stream(stream, declared),
            Operation::Fault {
                after,
                out_of_memory,
            } => {
                self.driver.trigger.arm(after.into(), out_of_memory);
                Ok(())
            }
        }
    }

    /// Has a block in hand while something is done with it, if there is any.
    fn with_block(
        &self,
        choice: u32,
        act: impl FnOnce(&mut Block) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let Some(mut block) = self.blocks.take(choice) else {
            return Ok(());
        };
        let result = act(&mut block);
        self.blocks.put(block);
        result
    }

    fn allocate(&self, size: u64, alignment: u64, stream: u32) -> Result<(), Failure> {
        let occupant = self.streams.hold(self.streams.slot(stream));
        let possible = alignment.is_power_of_two() && size < TOO_MUCH;
        let said = self.pool.allocate(size, alignment, occupant.stream);
        let address = match said {
            Ok(address) if possible => address,
            Ok(_) => {
                let request = format!("a request of {size} bytes aligned to {alignment}");
                return Err(Failure::Accepted(request));
            }
            Err(Refusal::Memory(_)) => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            Err(Refusal::Argument(_)) if !alignment.is_power_of_two() => return Ok(()),
            Err(Refusal::Device(error)) => return self.excuse(Err(error)).map(drop),
            Err(refusal) => return Err(refused(refusal)),
        };
        let checker = &self.driver.checker;
        let broken = checker.allocated(address, size, alignment, occupant.stream);
        if !broken.is_empty() {
            return Err(Failure::Rules(broken));
        }
        let mut block = self.blocks.made(address, size, occupant.is);
        self.lock_checks()
            .push((block.number, Arc::clone(&block.findings)));
        if size > 0 {
            self.device()
                .fill(occupant.stream, address, size, pattern_of(block.number))
                .map_err(refused)?;
            block.filled = true;
        }
        self.blocks.put(block);
        Ok(())
    }

    /// Checks a block on all its streams, and frees it.
    pub(super) fn free(&self, block: Block) -> Result<(), Failure> {
        for stream in std::iter::once(&block.owner).chain(&block.users) {
            self.verify_on(&block, *stream)?;
        }
        let checker = &self.driver.checker;
        let Some(freeing) = checker.freeing(block.address) else {
            let lost = format!("the checker does not know {:#x}", block.address);
            return Err(Failure::Books(lost));
        };
        match self.pool.free(block.address) {
            Ok(()) => {
                self.blocks.ended(&block);
                Ok(())
            }
            Err(refusal) => {
                let broken = checker.free_failed(freeing);
                self.blocks.put(block);
                match refusal {
                    _ if !broken.is_empty() => Err(Failure::Rules(broken)),
                    Refusal::Device(error) => self.excuse(Err(error)).map(drop),
                    refusal => Err(refused(refusal)),
                }
            }
        }
    }

    fn free_wrongly(&self, block: &Block, mistake: Mistake) -> Result<(), Failure> {
        let address = match mistake {
            Mistake::Interior => block.address + 1,
            Mistake::Foreign => 0x10,
        };
        let occupant = self.streams.hold(0);
        let asked = [
            ("free", self.pool.free(address)),
            ("use", self.pool.use_on(address, occupant.stream)),
        ];
        for (call, said) in asked {
            match said {
                Err(Refusal::Argument(_)) => {}
                Err(Refusal::Device(error)) => self.excuse(Err(error)).map(drop)?,
                Err(refusal) => return Err(refused(refusal)),
                Ok(()) => {
                    let wrong = format!("{call} of {address:#x}, where no block begins");
                    return Err(Failure::Accepted(wrong));
                }
            }
        }
        Ok(())
    }

    fn verify_somewhere(&self, block: &Block, choice: u32) -> Result<(), Failure> {
        let index = choice as usize % (block.users.len() + 1);
        let mut streams = std::iter::once(&block.owner).chain(&block.users);
        match streams.nth(index) {
            Some(&stream) => self.verify_on(block, stream),
            None => Ok(()),
        }
    }

    /// Checks a block on one of its streams, if that still exists.
    fn verify_on(&self, block: &Block, stream: Incarnation) -> Result<(), Failure> {
        let occupant = self.streams.hold(stream.slot);
        if occupant.is != stream {
            return Ok(());
        }
        self.verify(block, occupant.stream)
    }

    /// Uses a block on a further stream, ordered after the block's content.
    fn use_on(
        &self,
        thread: usize,
        block: &mut Block,
        stream: u32,
        told: bool,
    ) -> Result<(), Failure> {
        let slot = self.streams.slot(stream);
        let (target, owner) = self.streams.hold_both(slot, block.owner.slot);
        let owner = owner.as_deref().unwrap_or(&target);
        let known = target.is == block.owner || block.users.contains(&target.is);
        if !known && !self.order_after(thread, block, owner, target.stream, told)? {
            return Ok(());
        }
        match self.pool.use_on(block.address, target.stream) {
            Ok(()) => {}
            Err(Refusal::Device(error)) => return self.excuse(Err(error)).map(drop),
            Err(refusal) => return Err(refused(refusal)),
        }
        if !self.driver.checker.used(block.address, target.stream) {
            let lost = format!("the checker does not know {:#x}", block.address);
            return Err(Failure::Books(lost));
        }
        self.used.fetch_add(1, Ordering::Relaxed);
        if !known {
            block.users.push(target.is);
        }
        self.verify(block, target.stream)
    }

    /// Makes a stream wait for a block's content. Whether it does.
    fn order_after(
        &self,
        thread: usize,
        block: &Block,
        owner: &Occupant,
        waiter: StreamId,
        told: bool,
    ) -> Result<bool, Failure> {
        let event = if owner.is == block.owner {
            let events = self.streams.thread_events(thread);
            let (event, recorded) = if told {
                let recorded = self.pool.record_event(events.told, owner.stream);
                (events.told, recorded)
            } else {
                let recorded = self.device().record_event(events.untold, owner.stream);
                (events.untold, recorded)
            };
            if !self.excuse(recorded)? {
                return Ok(false);
            }
            event
        } else {
            match self.streams.departed(block.owner) {
                Some(event) => event,
                None => return Ok(false),
            }
        };
        self.excuse(if told {
            self.pool.wait_event(waiter, event)
        } else {
            self.device().wait_event(waiter, event)
        })
    }

    fn replace_stream(&self, stream: u32, declared: bool) -> Result<(), Failure> {
        let slot = self.streams.slot(stream);
        let Some(mut occupant) = self.streams.hold_to_replace(slot) else {
            return Ok(());
        };
        let event = match self.device().create_event() {
            Ok(event) => event,
            Err(error) => return self.excuse(Err(error)).map(drop),
        };
        if !self.excuse(self.pool.record_event(event, occupant.stream))? {
            self.streams.spend(event);
            return Ok(());
        }
        self.driver.checker.stream_ends(occupant.stream);
        // What failed is asked again: a stream must not go before the pool knows.
        while declared && !self.excuse(self.pool.stream_destroyed(occupant.stream))? {}
        self.device()
            .destroy_stream(occupant.stream)
            .map_err(refused)?;
        self.streams
            .replace(self.device(), &mut occupant, event)
            .map_err(refused)
    }
}
