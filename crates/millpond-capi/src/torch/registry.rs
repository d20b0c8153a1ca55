//! The pools of all devices of this process, each made when it is first asked for.

use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use super::pools::DevicePools;
use super::settings::Settings;
use super::underway::Underway;
use crate::boundary::watch_panics;
use crate::status::{Failure, millpond_status};

/// More devices than a machine has.
const MOST_DEVICES: usize = 64;

/// Lives as long as the process: at its end the driver takes the memory.
static REGISTRY: LazyLock<Registry> = LazyLock::new(Registry::default);

pub(super) struct Registry {
    devices: [OnceLock<DevicePools>; MOST_DEVICES],
    /// What was configured; held while a device's pools are made.
    settings: Mutex<Option<Settings>>,
    underway: Arc<Underway>,
}

impl Default for Registry {
    fn default() -> Registry {
        watch_panics();
        Registry {
            devices: [const { OnceLock::new() }; MOST_DEVICES],
            settings: Mutex::default(),
            underway: Arc::default(),
        }
    }
}

impl Registry {
    pub(super) fn get() -> &'static Registry {
        &REGISTRY
    }

    fn settings(&self) -> MutexGuard<'_, Option<Settings>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn configure(&self, wanted: Settings) -> Result<(), Failure> {
        let mut settings = self.settings();
        if self.all().next().is_some() {
            return Err(Failure::new(
                millpond_status::MILLPOND_TOO_LATE,
                "memory was allocated already; configure before the first allocation",
            ));
        }
        *settings = Some(wanted);
        Ok(())
    }

    /// The pools of a device, made if they are not there yet.
    pub(super) fn pools(&self, device: i32) -> Result<&DevicePools, Failure> {
        let place = self.place(device)?;
        if let Some(pools) = place.get() {
            return Ok(pools);
        }
        let mut settings = self.settings();
        if let Some(pools) = place.get() {
            return Ok(pools);
        }
        let settings = match *settings {
            Some(configured) => configured,
            None => *settings.insert(Settings::from_environment()?),
        };
        let opened = settings.choice(device.unsigned_abs()).open()?;
        let underway = Arc::clone(&self.underway);
        let pools = DevicePools::new(device, opened.device, settings.limit, underway)?;
        Ok(place.get_or_init(|| pools))
    }

    /// The pools of a device, if there are any.
    pub(super) fn existing(&self, device: i32) -> Result<Option<&DevicePools>, Failure> {
        Ok(self.place(device)?.get())
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &DevicePools> {
        self.devices.iter().filter_map(OnceLock::get)
    }

    fn place(&self, device: i32) -> Result<&OnceLock<DevicePools>, Failure> {
        let place = usize::try_from(device).ok();
        place
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or_else(|| {
                Failure::new(
                    millpond_status::MILLPOND_NO_DEVICE,
                    format!("device {device} was asked for; give one from 0 to 63"),
                )
            })
    }
}
