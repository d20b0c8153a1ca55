//! Devices, as people name them.

use std::fmt;
use std::str::FromStr;

/// A device that a person named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceName {
    /// This machine's memory.
    Host,
    /// No bytes, virtual time.
    Sim,
    /// The GPU with this ordinal.
    Cuda(u32),
}

/// A text that names no device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a device; write host, sim, cuda (the first GPU) or cuda:N, such as cuda:0")]
pub(crate) struct DeviceNameError;

impl FromStr for DeviceName {
    type Err = DeviceNameError;

    fn from_str(text: &str) -> Result<DeviceName, DeviceNameError> {
        match text {
            "host" => Ok(DeviceName::Host),
            "sim" => Ok(DeviceName::Sim),
            "cuda" => Ok(DeviceName::Cuda(0)),
            _ => {
                let ordinal = text.strip_prefix("cuda:").ok_or(DeviceNameError)?;
                // `parse` takes a sign, too.
                if !ordinal.bytes().all(|byte| byte.is_ascii_digit()) {
                    return Err(DeviceNameError);
                }
                let ordinal = ordinal.parse().map_err(|_| DeviceNameError)?;
                Ok(DeviceName::Cuda(ordinal))
            }
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Host => f.write_str("host"),
            DeviceName::Sim => f.write_str("sim"),
            DeviceName::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_reads_as_it_is_written() {
        for text in ["host", "sim", "cuda:0", "cuda:12"] {
            assert_eq!(text.parse::<DeviceName>().unwrap().to_string(), text);
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
    }

    #[test]
    fn what_names_no_device_is_refused() {
        for text in [
            "",
            "tpu",
            "cuda:",
            "cuda:+1",
            "cuda:-1",
            "cuda:x",
            "cuda0",
            "Cuda",
            "host:0",
            "cuda:4294967296",
        ] {
            assert_eq!(text.parse::<DeviceName>(), Err(DeviceNameError), "{text:?}");
        }
    }
}
