//! The kernels that fill and verify, and how a range is cut for them.
//!
//! The kernels are PTX in the source (`kernels.ptx`), compiled by the driver for the device when
//! they are first needed: no toolkit takes part.
//!
//! Invariants: every byte of a range belongs to exactly one of its three parts; [`Split`] has the
//! layout that `kernels.ptx` reads.

use std::ffi::{CStr, c_void};
use std::ptr;

use super::context::Entered;
use super::types::{CUfunction, CUmodule, CUstream};
use crate::device::{Call, DeviceError, Pattern};

/// The kernels' text, ending with a zero as `cuModuleLoadData` wants it.
const TEXT: &str = concat!(include_str!("kernels.ptx"), "\0");

const THREADS_PER_BLOCK: u32 = 256;
/// Full occupancy of a multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: u32 = 8;
/// Bytes that a thread takes at a time.
const PAIR: u64 = 16;

/// A range cut at 16-byte boundaries, and the words its parts are filled with.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Split {
    /// Where the range begins.
    start: u64,
    /// Bytes before the first 16-byte boundary: at most 15.
    head: u64,
    /// The pattern as it begins at `start`.
    pattern: u64,
    /// The first 16-byte boundary.
    body: u64,
    /// Pairs of words from there.
    pairs: u64,
    /// The pattern as it begins at `body`, and at `end`.
    word: u64,
    /// Where the pairs end.
    end: u64,
    /// Bytes from there: at most 15.
    tail: u64,
}

impl Split {
    /// Cuts a range that does not wrap round the end of the address space.
    pub(super) fn new(address: u64, size: u64, pattern: Pattern) -> Split {
        let head = (address.wrapping_neg() % PAIR).min(size);
        let pairs = (size - head) / PAIR;
        let body = address + head;
        Split {
            start: address,
            head,
            pattern: pattern.0,
            body,
            pairs,
            // Byte j of the pattern is bits 8j to 8j + 7; after `head` bytes it goes on with byte
            // `head % 8`.
            word: pattern.0.rotate_right((head % 8 * 8) as u32),
            end: body + pairs * PAIR,
            tail: (size - head) % PAIR,
        }
    }

    /// Blocks to launch: enough for every pair, but no more than the device runs at once.
    fn blocks(&self, most: u32) -> u32 {
        let wanted = self.pairs.div_ceil(u64::from(THREADS_PER_BLOCK)).max(1);
        u32::try_from(wanted).map_or(most, |wanted| wanted.min(most))
    }
}

/// The kernels, loaded into a context.
pub(super) struct Kernels {
    module: CUmodule,
    fill: CUfunction,
    verify: CUfunction,
    most_blocks: u32,
}

impl Kernels {
    /// Loads the kernels into the current context, on a device of so many multiprocessors.
    pub(super) fn load(
        entered: &Entered<'_>,
        call: Call,
        multiprocessors: u32,
    ) -> Result<Kernels, DeviceError> {
        let driver = entered.driver;
        let mut module = 0;
        // SAFETY: a context is current, the text ends with a zero, and `module` outlives the call.
        let code = unsafe {
            (driver.functions.module_load_data)(&raw mut module, TEXT.as_ptr().cast::<c_void>())
        };
        driver.check(call, code, || {
            "asked to compile the kernels that fill and verify".into()
        })?;
        let function = |name: &CStr| {
            let mut function = 0;
            // SAFETY: a context is current, the module was just loaded into it, the name ends with
            // a zero, and `function` outlives the call.
            let code = unsafe {
                (driver.functions.module_get_function)(&raw mut function, module, name.as_ptr())
            };
            driver
                .check(call, code, || format!("asked for the kernel {name:?}"))
                .map(|()| function)
        };
        let functions = function(c"millpond_fill")
            .and_then(|fill| function(c"millpond_verify").map(|verify| (fill, verify)));
        let (fill, verify) = match functions {
            Ok(functions) => functions,
            Err(error) => {
                // SAFETY: the module was just loaded, and nothing of it runs.
                unsafe { (driver.functions.module_unload)(module) };
                return Err(error);
            }
        };
        Ok(Kernels {
            module,
            fill,
            verify,
            most_blocks: multiprocessors.max(1) * BLOCKS_PER_MULTIPROCESSOR,
        })
    }

    /// Unloads the kernels from the current context. None of them may be running.
    pub(super) fn unload(&self, entered: &Entered<'_>) {
        // SAFETY: the module is loaded in the current context, and is not used after this. A
        // failure (the context is lost) leaves nothing to do.
        unsafe { (entered.driver.functions.module_unload)(self.module) };
    }

    /// Queues the filling of a range.
    pub(super) fn fill(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        mut split: Split,
    ) -> Result<(), DeviceError> {
        let mut parameters = [(&raw mut split).cast::<c_void>()];
        let blocks = split.blocks(self.most_blocks);
        let code = launch(entered, self.fill, blocks, stream, &mut parameters);
        entered
            .driver
            .check(Call::Fill, code, || asked("fill", &split, stream))
    }

    /// Queues the comparison of a range; its findings go to the slot at this device address.
    pub(super) fn verify(
        &self,
        entered: &Entered<'_>,
        stream: CUstream,
        mut split: Split,
        mut slot: u64,
    ) -> Result<(), DeviceError> {
        let mut parameters = [
            (&raw mut split).cast::<c_void>(),
            (&raw mut slot).cast::<c_void>(),
        ];
        let blocks = split.blocks(self.most_blocks);
        let code = launch(entered, self.verify, blocks, stream, &mut parameters);
        entered
            .driver
            .check(Call::Verify, code, || asked("verify", &split, stream))
    }
}

fn asked(what: &str, split: &Split, stream: CUstream) -> String {
    let size = split.end + split.tail - split.start;
    format!(
        "asked to {what} {size} bytes at {:#x} on stream {stream:#x}",
        split.start
    )
}

/// Launches a kernel with the parameters that its declaration in `kernels.ptx` names.
fn launch(
    entered: &Entered<'_>,
    function: CUfunction,
    blocks: u32,
    stream: CUstream,
    parameters: &mut [*mut c_void],
) -> u32 {
    // SAFETY: the function belongs to the current context; the parameters are as many, and of the
    // sizes, as it declares; the driver copies them before it returns. What the range may do to
    // others is for the caller of the device to answer.
    unsafe {
        (entered.driver.functions.launch_kernel)(
            function,
            blocks,
            1,
            1,
            THREADS_PER_BLOCK,
            1,
            1,
            0,
            stream,
            parameters.as_mut_ptr(),
            ptr::null_mut(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that the kernels write for a split, by the rules in `kernels.ptx`: offset, value.
    fn bytes(split: &Split) -> Vec<(u64, u8)> {
        let mut bytes = Vec::new();
        for i in 0..split.head {
            bytes.push((split.start + i, split.pattern.to_le_bytes()[i as usize % 8]));
        }
        for i in 0..split.pairs * 2 {
            for (j, byte) in split.word.to_le_bytes().into_iter().enumerate() {
                bytes.push((split.body + 8 * i + j as u64, byte));
            }
        }
        for i in 0..split.tail {
            bytes.push((split.end + i, split.word.to_le_bytes()[i as usize % 8]));
        }
        bytes
    }

    #[test]
    fn every_alignment_and_length_is_filled_as_the_contract_says() {
        let pattern = Pattern(0x8877_6655_4433_2211);
        for address in 4096..4096 + 17 {
            for size in 0..100 {
                let split = Split::new(address, size, pattern);
                assert!(split.head < 16 && split.tail < 16);
                assert!(
                    split.pairs == 0 || split.body.is_multiple_of(16),
                    "{split:?}"
                );
                let expected: Vec<(u64, u8)> = (0..size)
                    .map(|i| (address + i, pattern.0.to_le_bytes()[i as usize % 8]))
                    .collect();
                assert_eq!(bytes(&split), expected, "{split:?}");
            }
        }
    }

    #[test]
    fn a_grid_covers_the_single_bytes_and_is_bounded() {
        let blocks = |address, size| Split::new(address, size, Pattern(0)).blocks(1056);
        assert_eq!(blocks(4096, 1), 1);
        assert_eq!(blocks(4096, 4096), 1);
        assert_eq!(blocks(4096, 4096 + 16), 2);
        assert_eq!(blocks(4096, 1 << 47), 1056);
    }

    #[test]
    fn the_text_names_both_kernels_and_ends_with_one_zero() {
        assert!(CStr::from_bytes_with_nul(TEXT.as_bytes()).is_ok());
        for name in ["millpond_fill", "millpond_verify"] {
            assert!(TEXT.contains(&format!(".entry {name}(")));
        }
        assert!(TEXT.contains(&format!(".b8 split[{}]", size_of::<Split>())));
    }
}
