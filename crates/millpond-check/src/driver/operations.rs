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
    /// Does an operation. Whether it happened: a call may have been made to fail, and memory may be
    /// short.
    pub(super) fn operate(&self, thread: usize, operation: &Operation) -> Result<bool, Failure> {
        match *operation {
            Operation::Allocate {
                size,
                alignment,
                stream,
            } => self.allocate(thread, size, alignment, stream),
            Operation::Free { block } => match self.blocks.take(block) {
                Some(taken) => self.free(thread, block, taken),
                None => Ok(true),
            },
            Operation::FreeWrongly { block, mistake } => {
                self.with_block(block, |block| self.free_wrongly(block, mistake))
            }
            Operation::Use {
                block,
                stream,
                told,
            } => self.with_block(block, |block| self.use_on(thread, block, stream, told)),
            Operation::EndUse {
                block,
                stream,
                at_event,
            } => self.with_block(block, |block| self.end_use(thread, block, stream, at_event)),
            Operation::HandOver {
                block,
                stream,
                told,
            } => self.with_block(block, |block| self.hand_over(thread, block, stream, told)),
            Operation::Verify { block, stream } => {
                self.with_block(block, |block| self.verify_somewhere(thread, block, stream))
            }
            Operation::Record { event, stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream, thread));
                let event = self.streams.event(event);
                self.excuse(self.pool.record_event(*event, occupant.stream))
            }
            Operation::Wait { event, stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream, thread));
                let event = self.streams.event(event);
                self.excuse(self.pool.wait_event(occupant.stream, *event))
            }
            Operation::SynchronizeStream { stream } => {
                let occupant = self.streams.hold(self.streams.slot(stream, thread));
                self.excuse(self.pool.synchronize_stream(occupant.stream))
            }
            Operation::Synchronize => self.excuse(self.pool.synchronize()),
            Operation::Trim { keep } => self.excuse(self.pool.trim(keep).map(drop)),
            Operation::ReplaceStream { stream, declared } => {
                self.replace_stream(thread, stream, declared)
            }
            Operation::Fault {
                after,
                out_of_memory,
            } => {
                self.driver.trigger.arm(after.into(), out_of_memory);
                Ok(true)
            }
        }
    }

    /// Has a block in hand while something is done with it, if there is any.
    fn with_block(
        &self,
        choice: u32,
        act: impl FnOnce(&mut Block) -> Result<bool, Failure>,
    ) -> Result<bool, Failure> {
        let Some(mut block) = self.blocks.take(choice) else {
            return Ok(true);
        };
        let result = act(&mut block);
        self.blocks.put_back(choice, block);
        result
    }

    fn allocate(
        &self,
        thread: usize,
        size: u64,
        alignment: u64,
        stream: u32,
    ) -> Result<bool, Failure> {
        let occupant = self.streams.hold(self.streams.slot(stream, thread));
        let possible = alignment.is_power_of_two() && size < TOO_MUCH;
        let said = self.pool.allocate(size, alignment, occupant.stream);
        let address = match said {
            Ok(address) if possible => address,
            Ok(_) => {
                let request = format!("a request of {size} bytes aligned to {alignment}");
                return Err(Failure::Accepted(request));
            }
            Err(Refusal::Memory(_)) => return Ok(false),
            Err(Refusal::Argument(_)) if !alignment.is_power_of_two() => return Ok(true),
            Err(Refusal::Device(error)) => return self.excuse(Err(error)),
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
        Ok(true)
    }

    /// Checks a block that was taken by this choice on all its streams, and frees it.
    pub(super) fn free(&self, thread: usize, choice: u32, block: Block) -> Result<bool, Failure> {
        for stream in &block.users {
            self.verify_on(thread, &block, *stream)?;
        }
        let checker = &self.driver.checker;
        let Some(freeing) = checker.freeing(block.address) else {
            let lost = format!("the checker does not know {:#x}", block.address);
            return Err(Failure::Books(lost));
        };
        match self.pool.free(block.address) {
            Ok(()) => {
                self.blocks.ended(&block);
                Ok(true)
            }
            Err(refusal) => {
                let broken = checker.free_failed(freeing);
                self.blocks.put_back(choice, block);
                match refusal {
                    _ if !broken.is_empty() => Err(Failure::Rules(broken)),
                    Refusal::Device(error) => self.excuse(Err(error)),
                    refusal => Err(refused(refusal)),
                }
            }
        }
    }

    fn free_wrongly(&self, block: &Block, mistake: Mistake) -> Result<bool, Failure> {
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
                Err(Refusal::Device(error)) => {
                    self.excuse(Err(error))?;
                }
                Err(refusal) => return Err(refused(refusal)),
                Ok(()) => {
                    let wrong = format!("{call} of {address:#x}, where no block begins");
                    return Err(Failure::Accepted(wrong));
                }
            }
        }
        Ok(true)
    }

    fn verify_somewhere(&self, thread: usize, block: &Block, choice: u32) -> Result<bool, Failure> {
        let index = (choice as usize).checked_rem(block.users.len());
        match index.map(|index| block.users[index]) {
            Some(stream) => self.verify_on(thread, block, stream).map(|()| true),
            None => Ok(true),
        }
    }

    /// Checks a block on one of its streams, if that still exists and this thread can name it.
    fn verify_on(&self, thread: usize, block: &Block, stream: Incarnation) -> Result<(), Failure> {
        if !self.streams.reaches(thread, stream.slot) {
            return Ok(());
        }
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
    ) -> Result<bool, Failure> {
        let slot = self.streams.slot(stream, thread);
        let (target, origin) = self.streams.hold_both(slot, block.origin.slot);
        let origin = origin.as_deref().unwrap_or(&target);
        let known = target.is == block.origin || block.users.contains(&target.is);
        if !known && !self.order_after(thread, block, origin, target.stream, told)? {
            return Ok(false);
        }
        match self.pool.use_on(block.address, target.stream) {
            Ok(()) => {}
            Err(Refusal::Device(error)) => return self.excuse(Err(error)),
            Err(refusal) => return Err(refused(refusal)),
        }
        if !self.driver.checker.used(block.address, target.stream) {
            let lost = format!("the checker does not know {:#x}", block.address);
            return Err(Failure::Books(lost));
        }
        self.used.fetch_add(1, Ordering::Relaxed);
        if !block.users.contains(&target.is) {
            block.users.push(target.is);
        }
        self.verify(block, target.stream).map(|()| true)
    }

    /// Ends one of a block's uses, now or at an event. What was made to fail is asked again: the
    /// checker is told first, and the use is over in any case.
    fn end_use(
        &self,
        thread: usize,
        block: &mut Block,
        choice: u32,
        at_event: bool,
    ) -> Result<bool, Failure> {
        let Some(index) = (choice as usize).checked_rem(block.users.len()) else {
            return Ok(true);
        };
        let user = block.users[index];
        if !self.streams.reaches(thread, user.slot) {
            return Ok(true);
        }
        let occupant = self.streams.hold(user.slot);
        if occupant.is != user {
            return Ok(true);
        }
        self.verify(block, occupant.stream)?;
        let (address, stream) = (block.address, occupant.stream);
        let checker = &self.driver.checker;
        let event = at_event.then(|| self.streams.thread_events(thread).told);
        if let Some(event) = event
            && !self.excuse(self.pool.record_event(event, stream))?
        {
            return Ok(false);
        }
        let known = match event {
            None => checker.use_ended(address, stream),
            Some(event) => checker.use_ends_at(address, stream, event),
        };
        if !known {
            let lost = format!("the checker does not know the use of {address:#x}");
            return Err(Failure::Books(lost));
        }
        self.until_done(|| match event {
            None => self.pool.use_ended(address, stream),
            Some(event) => self.pool.use_ends_at(address, stream, event),
        })?;
        block.users.swap_remove(index);
        Ok(true)
    }

    /// Hands a block over to a stream that comes after its content.
    fn hand_over(
        &self,
        thread: usize,
        block: &mut Block,
        stream: u32,
        told: bool,
    ) -> Result<bool, Failure> {
        let slot = self.streams.slot(stream, thread);
        let (target, origin) = self.streams.hold_both(slot, block.origin.slot);
        let origin = origin.as_deref().unwrap_or(&target);
        let known = target.is == block.origin || block.users.contains(&target.is);
        if !known && !self.order_after(thread, block, origin, target.stream, told)? {
            return Ok(false);
        }
        let (address, heir) = (block.address, target.stream);
        if !self.driver.checker.handed_over(address, heir) {
            let lost = format!("the checker does not know {address:#x}");
            return Err(Failure::Books(lost));
        }
        self.until_done(|| self.pool.hand_over(address, heir))?;
        let former = std::mem::replace(&mut block.owner, target.is);
        block.users.retain(|user| *user != former);
        if !block.users.contains(&target.is) {
            block.users.push(target.is);
        }
        self.verify(block, heir).map(|()| true)
    }

    /// Asks again for what was made to fail.
    fn until_done(&self, mut call: impl FnMut() -> Result<(), Refusal>) -> Result<(), Failure> {
        loop {
            match call() {
                Ok(()) => return Ok(()),
                Err(Refusal::Device(error)) => {
                    self.excuse(Err(error))?;
                }
                Err(refusal) => return Err(refused(refusal)),
            }
        }
    }

    /// Makes a stream wait for a block's content. Whether it does.
    fn order_after(
        &self,
        thread: usize,
        block: &Block,
        origin: &Occupant,
        waiter: StreamId,
        told: bool,
    ) -> Result<bool, Failure> {
        if !self.streams.reaches(thread, block.origin.slot) {
            return Ok(false);
        }
        let event = if origin.is == block.origin {
            let events = self.streams.thread_events(thread);
            let (event, recorded) = if told {
                let recorded = self.pool.record_event(events.told, origin.stream);
                (events.told, recorded)
            } else {
                let recorded = self.device().record_event(events.untold, origin.stream);
                (events.untold, recorded)
            };
            if !self.excuse(recorded)? {
                return Ok(false);
            }
            event
        } else {
            match self.streams.departed(block.origin) {
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

    fn replace_stream(&self, thread: usize, stream: u32, declared: bool) -> Result<bool, Failure> {
        let slot = self.streams.slot(stream, thread);
        let Some(mut occupant) = self.streams.hold_to_replace(slot) else {
            return Ok(true);
        };
        let event = match self.device().create_event() {
            Ok(event) => event,
            Err(error) => return self.excuse(Err(error)),
        };
        if !self.excuse(self.pool.record_event(event, occupant.stream))? {
            self.streams.spend(event);
            return Ok(false);
        }
        self.driver.checker.stream_ends(occupant.stream);
        // What failed is asked again: a stream must not go before the pool knows.
        while declared && !self.excuse(self.pool.stream_destroyed(occupant.stream))? {}
        self.device()
            .destroy_stream(occupant.stream)
            .map_err(refused)?;
        self.streams
            .replace(self.device(), &mut occupant, event)
            .map_err(refused)?;
        Ok(true)
    }
}
