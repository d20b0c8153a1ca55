//! What each call costs on the sim, read from a table in a file.
//!
//! # Invariants
//!
//! - A table is complete: every name is there, none is unknown.
//! - Costs are whole nanoseconds, speeds are not zero.

use serde::Deserialize;

/// Bytes of a MiB.
const MIB: u128 = 1 << 20;

/// The longest cost that a table may name: an hour, in microseconds.
const LONGEST_US: f64 = 3.6e9;

/// The tables that come with the crate, the default first. A new one is added here, under its own
/// name.
const TABLES: [(&str, &str); 1] = [("default", include_str!("costs/default.toml"))];

/// What each call of the sim costs in host time, and how fast its work goes.
///
/// A table is text: `name = value` lines of TOML, in microseconds (and GB/s for the speeds). The
/// default comes from measurements on an H200; its file says where each number is from, and is the
/// model for others.
///
/// ```
/// use millpond::device::sim::CostTable;
///
/// assert_eq!(CostTable::named("default")?, CostTable::default());
/// assert!(CostTable::parse("create = 1.0").is_err(), "a table names every cost");
/// # Ok::<(), millpond::device::sim::CostTableError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostTable {
    pub(super) reserve: Cost,
    pub(super) free_reservation: Cost,
    pub(super) create: Cost,
    pub(super) release: Cost,
    pub(super) release_per_mib: Cost,
    pub(super) map: Cost,
    pub(super) set_access: Cost,
    pub(super) set_access_further: Cost,
    pub(super) unmap: Cost,
    pub(super) unmap_one_of_several: Cost,
    pub(super) allocate: Cost,
    pub(super) free: Cost,
    pub(super) memory_info: Cost,
    pub(super) create_stream: Cost,
    pub(super) destroy_stream: Cost,
    pub(super) stream_identity: Cost,
    pub(super) create_event: Cost,
    pub(super) destroy_event: Cost,
    pub(super) record_event: Cost,
    pub(super) query_event: Cost,
    pub(super) wait_event: Cost,
    pub(super) synchronize: Cost,
    pub(super) launch: Cost,
    pub(super) host_function: Cost,
    pub(super) fill_gb_per_s: Speed,
    pub(super) verify_gb_per_s: Speed,
    pub(super) copy_gb_per_s: Speed,
}

/// Why there is no such cost table.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CostTableError {
    /// No table of this name comes with the crate.
    #[error("there is no cost table named {name:?}; there are: {known}")]
    UnknownName {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// The text is not a cost table.
    #[error("not a cost table: {0}")]
    Malformed(String),
}

impl CostTable {
    /// A table that comes with the crate, by name.
    ///
    /// # Errors
    ///
    /// [`CostTableError::UnknownName`] says which names there are.
    pub fn named(name: &str) -> Result<CostTable, CostTableError> {
        match TABLES.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => CostTable::parse(text),
            None => Err(CostTableError::UnknownName {
                name: name.to_owned(),
                known: CostTable::names().collect::<Vec<_>>().join(", "),
            }),
        }
    }

    /// The names of the tables that come with the crate.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TABLES.iter().map(|(name, _)| *name)
    }

    /// Reads a table from the text of its file.
    ///
    /// # Errors
    ///
    /// [`CostTableError::Malformed`] where a name is missing or unknown, or a value is no cost (0
    /// to an hour) or no speed (above 0).
    pub fn parse(text: &str) -> Result<CostTable, CostTableError> {
        toml::from_str(text).map_err(|error| CostTableError::Malformed(error.to_string()))
    }

    /// What releasing a handle of this many bytes costs.
    pub(super) fn release_of(&self, size: u64) -> u64 {
        let by_size = u128::from(self.release_per_mib.0) * u128::from(size) / MIB;
        self.release.0.saturating_add(clamp(by_size))
    }
}

impl Default for CostTable {
    /// The table named `default`: an idle H200.
    fn default() -> CostTable {
        CostTable::parse(TABLES[0].1).expect("the table that comes with the crate is complete")
    }
}

/// Host time of one call, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Cost(pub(super) u64);

impl TryFrom<f64> for Cost {
    type Error = String;

    fn try_from(microseconds: f64) -> Result<Cost, String> {
        if (0.0..=LONGEST_US).contains(&microseconds) {
            return Ok(Cost((microseconds * 1000.0).round() as u64));
        }
        Err(format!(
            "{microseconds} is no cost; give microseconds, 0 to {LONGEST_US}"
        ))
    }
}

/// How many bytes of work go by in a microsecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "f64")]
pub(super) struct Speed(u64);

impl Speed {
    /// How long the device works on this many bytes, in nanoseconds, rounded up.
    pub(super) fn time_for(self, size: u64) -> u64 {
        clamp((u128::from(size) * 1000).div_ceil(u128::from(self.0)))
    }
}

impl TryFrom<f64> for Speed {
    type Error = String;

    fn try_from(gb_per_s: f64) -> Result<Speed, String> {
        let bytes_per_us = (gb_per_s * 1000.0).round();
        if (1.0..=1e15).contains(&bytes_per_us) {
            return Ok(Speed(bytes_per_us as u64));
        }
        Err(format!("{gb_per_s} is no speed; give GB/s, 0.001 to 10^12"))
    }
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_was_agreed() {
        let table = CostTable::default();
        let costs = [
            table.create,
            table.map,
            table.set_access,
            table.set_access_further,
            table.unmap,
            table.unmap_one_of_several,
            table.release,
            table.release_per_mib,
            table.record_event,
            table.query_event,
            table.wait_event,
        ];
        assert_eq!(
            costs.map(|cost| cost.0),
            [
                15_000, 1000, 47_000, 24_000, 27_000, 14_000, 14_000, 550, 540, 440, 630
            ]
        );
        assert_eq!(table.release_of(1 << 30), 14_000 + 1024 * 550);
    }

    #[test]
    fn every_named_table_can_be_read_and_the_first_is_the_default() {
        for name in CostTable::names() {
            CostTable::named(name).unwrap();
        }
        assert_eq!(CostTable::names().next(), Some("default"));
        let error = CostTable::named("abacus").unwrap_err().to_string();
        assert!(
            error.contains("abacus") && error.contains("default"),
            "{error}"
        );
    }

    #[test]
    fn a_table_names_every_cost_and_no_other() {
        let whole = TABLES[0].1;
        let cases = [
            (whole.replace("create = 15.0", ""), "create"),
            (format!("{whole}\nteleport = 1.0"), "teleport"),
            (whole.replace("map = 1.0", "map = -1.0"), "map"),
            (whole.replace("map = 1.0", "map = nan"), "map"),
            (whole.replace("map = 1.0", "map = \"cheap\""), "map"),
            (
                whole.replace("copy_gb_per_s = 2100.0", "copy_gb_per_s = 0"),
                "copy_gb_per_s",
            ),
            ("map 1".to_owned(), "map"),
        ];
        for (text, culprit) in cases {
            let error = CostTable::parse(&text).unwrap_err().to_string();
            assert!(error.contains(culprit), "{error}");
        }
    }

    #[test]
    fn work_takes_its_bytes_over_its_speed() {
        let speed = Speed::try_from(2.0).unwrap();
        assert_eq!(speed.time_for(0), 0);
        assert_eq!(speed.time_for(1), 1);
        assert_eq!(speed.time_for(4000), 2000);
        assert_eq!(CostTable::default().copy_gb_per_s.time_for(2_100_000), 1000);
    }
}
