//! What the environment and the caller say about the pools behind PyTorch's pair.

use crate::choice::Choice;
use crate::status::Failure;

/// `cuda`, or `host:BYTES`.
const DEVICE: &str = "MILLPOND_DEVICE";
/// Bytes, with an optional unit.
const LIMIT: &str = "MILLPOND_LIMIT";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Devices {
    /// The CUDA devices, by ordinal.
    Cuda,
    /// Every ordinal is a host device with so many bytes.
    Host(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Settings {
    pub(super) devices: Devices,
    /// Bytes that each device's pools may take; `None`: all that the device has.
    pub(super) limit: Option<u64>,
}

impl Settings {
    pub(super) fn from_environment() -> Result<Settings, Failure> {
        let set = |name| std::env::var(name).ok().filter(|text| !text.is_empty());
        let mut settings = Settings {
            devices: Devices::Cuda,
            limit: None,
        };
        if let Some(text) = set(DEVICE) {
            settings.set_device(DEVICE, &text)?;
        }
        if let Some(text) = set(LIMIT) {
            settings.limit = Some(parse_bytes(LIMIT, &text)?);
        }
        Ok(settings)
    }

    pub(super) fn set_device(&mut self, name: &str, text: &str) -> Result<(), Failure> {
        self.devices = match text.split_once(':') {
            None if text == "cuda" => Devices::Cuda,
            Some(("host", bytes)) => Devices::Host(parse_bytes(name, bytes)?),
            _ => {
                return Err(Failure::invalid(format!(
                    "{name} is {text:?}; set it to \"cuda\" or \"host:BYTES\", as host:1GiB"
                )));
            }
        };
        Ok(())
    }

    pub(super) fn choice(&self, ordinal: u32) -> Choice {
        match self.devices {
            Devices::Cuda => Choice::Cuda(ordinal),
            Devices::Host(bytes) => Choice::Host(bytes),
        }
    }
}

/// A number of bytes, with an optional unit: KiB, MiB, GiB, TiB (or K, M, G, T, which mean the
/// same).
fn parse_bytes(name: &str, text: &str) -> Result<u64, Failure> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => Some(0),
        "K" | "KiB" => Some(10),
        "M" | "MiB" => Some(20),
        "G" | "GiB" => Some(30),
        "T" | "TiB" => Some(40),
        _ => None,
    };
    let number = digits.trim_end().parse::<u64>().ok();
    let bytes = number.zip(shift).and_then(|(n, s)| n.checked_mul(1 << s));
    bytes.filter(|&bytes| bytes > 0).ok_or_else(|| {
        Failure::invalid(format!(
            "{name} is {text:?}; give whole bytes, as 8589934592 or 8GiB"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_whole_numbers_with_a_unit() {
        assert_eq!(parse_bytes("X", "4096").unwrap(), 4096);
        assert_eq!(parse_bytes("X", "8GiB").unwrap(), 8 << 30);
        assert_eq!(parse_bytes("X", " 3 M ").unwrap(), 3 << 20);
        for bad in ["", "0", "-1", "1.5GiB", "GiB", "8GB", "99999999999T", "é"] {
            let error = parse_bytes("MILLPOND_LIMIT", bad).unwrap_err();
            assert!(error.message.contains("MILLPOND_LIMIT"), "{error:?}");
        }
    }

    #[test]
    fn a_device_is_cuda_or_host() {
        let mut settings = Settings {
            devices: Devices::Cuda,
            limit: None,
        };
        settings.set_device("device", "host:1GiB").unwrap();
        assert_eq!(settings.choice(3), Choice::Host(1 << 30));
        settings.set_device("device", "cuda").unwrap();
        assert_eq!(settings.choice(3), Choice::Cuda(3));
        for bad in ["", "cuda:1", "host", "host:", "rocm"] {
            assert!(settings.set_device("device", bad).is_err(), "{bad}");
        }
    }
}
