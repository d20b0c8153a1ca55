//! A budget that several pools share: the most bytes that they may take from their devices
//! together, under a further one if need be.
//!
//! # Invariants
//!
//! 1. `taken` of a budget is the sum of what the pools under it have and were promised; it never
//!    passes the limit that held when the promise was made.
//! 2. What a pool takes is taken of its budget and of all budgets above it, or of none.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use crate::sync::{AtomicU64, Mutex};

/// The most bytes that several pools may take together; clones are the same budget.
///
/// Pools get it when they are built ([`PoolBuilder::budget`]), and keep their own limits under it.
/// A budget may stand under another one: a tenant's models under the tenant, tenants under what is
/// left for them on the machine. When a pool asks for more than is left, others under the same
/// budget give back what they have and do not use.
///
/// [`PoolBuilder::budget`]: crate::pool::PoolBuilder::budget
#[derive(Clone, Debug)]
pub struct Budget {
    node: Arc<Node>,
}

/// What the pools under a budget have: all values in bytes. `reserved_current` is exact; what is
/// used is asked of one pool after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BudgetUsage {
    /// The most that they may have together.
    pub limit: u64,
    /// What they have of their devices.
    pub reserved_current: u64,
    /// The most they had together since the budget was made, or the mark was reset.
    pub reserved_high: u64,
    /// What is in their live blocks, as it was asked for.
    pub used_current: u64,
    /// Pools under the budget, and under those below it.
    pub pools: u64,
}

/// What a budget needs of a pool.
pub(crate) trait Member: Send + Sync {
    /// Gives back idle memory of about so many bytes. Gives the bytes.
    fn relieve(&self, bytes: u64) -> u64;
    /// Bytes in live blocks.
    fn used(&self) -> u64;
}

struct Node {
    parent: Option<Budget>,
    limit: AtomicU64,
    /// With what is promised.
    taken: AtomicU64,
    existing: AtomicU64,
    high: AtomicU64,
    members: Mutex<Vec<Weak<dyn Member>>>,
    children: Mutex<Vec<Weak<Node>>>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("limit", &self.limit.load(Ordering::Relaxed))
            .field("existing", &self.existing.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Node {
    fn left(&self) -> u64 {
        let limit = self.limit.load(Ordering::Relaxed);
        limit.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// The pools under it, and under those below it.
    fn all_members(&self, into: &mut Vec<Arc<dyn Member>>) {
        {
            let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
            members.retain(|member| member.strong_count() > 0);
            into.extend(members.iter().filter_map(Weak::upgrade));
        }
        let children: Vec<Arc<Node>> = {
            let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            children.retain(|child| child.strong_count() > 0);
            children.iter().filter_map(Weak::upgrade).collect()
        };
        for child in children {
            child.all_members(into);
        }
    }
}

impl Budget {
    /// A budget of so many bytes.
    pub fn new(limit: u64) -> Budget {
        Budget::made(None, limit)
    }

    /// A budget of so many bytes within this one: what its pools take counts in both.
    #[must_use]
    pub fn within(&self, limit: u64) -> Budget {
        let budget = Budget::made(Some(self.clone()), limit);
        let mut children = self.node.children.lock();
        let children = children
            .as_mut()
            .unwrap_or_else(|poisoned| poisoned.get_mut());
        children.push(Arc::downgrade(&budget.node));
        budget
    }

    fn made(parent: Option<Budget>, limit: u64) -> Budget {
        let node = Arc::new(Node {
            parent,
            limit: AtomicU64::new(limit),
            taken: AtomicU64::new(0),
            existing: AtomicU64::new(0),
            high: AtomicU64::new(0),
            members: Mutex::new(Vec::new()),
            children: Mutex::new(Vec::new()),
        });
        Budget { node }
    }

    /// The most that the pools under it may have together.
    pub fn limit(&self) -> u64 {
        self.node.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. What the pools have beyond it stays until it is freed and trimmed; until
    /// then none of them grows.
    pub fn set_limit(&self, bytes: u64) {
        self.node.limit.store(bytes, Ordering::Relaxed);
    }

    /// What the pools under it have.
    pub fn usage(&self) -> BudgetUsage {
        let mut members = Vec::new();
        self.node.all_members(&mut members);
        let reserved_current = self.node.existing.load(Ordering::Relaxed);
        BudgetUsage {
            limit: self.limit(),
            reserved_current,
            reserved_high: self.node.high.load(Ordering::Relaxed).max(reserved_current),
            used_current: members.iter().map(|member| member.used()).sum(),
            pools: members.len() as u64,
        }
    }

    /// Begins the high watermark again at the current value.
    pub fn reset_high(&self) {
        let existing = self.node.existing.load(Ordering::Relaxed);
        self.node.high.store(existing, Ordering::Relaxed);
    }

    /// The budget and all above it, the lowest first.
    fn levels(&self) -> impl Iterator<Item = &Budget> {
        std::iter::successors(Some(self), |budget| budget.node.parent.as_ref())
    }

    pub(crate) fn join(&self, member: Weak<dyn Member>) {
        let mut members = self.node.members.lock();
        let members = members
            .as_mut()
            .unwrap_or_else(|poisoned| poisoned.get_mut());
        members.push(member);
    }

    /// The most that one pool could ever have.
    pub(crate) fn most(&self) -> u64 {
        let limits = self.levels().map(Budget::limit);
        limits.min().unwrap_or(u64::MAX)
    }

    /// What is left on all levels.
    pub(crate) fn left(&self) -> u64 {
        let left = self.levels().map(|level| level.node.left());
        left.min().unwrap_or(u64::MAX)
    }

    /// Takes bytes on all levels, or on none.
    pub(super) fn take(&self, bytes: u64) -> bool {
        for (level, budget) in self.levels().enumerate() {
            let node = &budget.node;
            let limit = budget.limit();
            let more = |taken: u64| taken.checked_add(bytes).filter(|&sum| sum <= limit);
            let order = Ordering::Relaxed;
            if node.taken.fetch_update(order, order, more).is_err() {
                for below in self.levels().take(level) {
                    below.node.taken.fetch_sub(bytes, Ordering::Relaxed);
                }
                return false;
            }
        }
        true
    }

    /// What was taken and does not exist is left for others.
    pub(super) fn give(&self, bytes: u64) {
        for budget in self.levels() {
            budget.node.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// What was taken exists.
    pub(super) fn created(&self, bytes: u64) {
        for budget in self.levels() {
            let before = budget.node.existing.fetch_add(bytes, Ordering::Relaxed);
            let high = &budget.node.high;
            high.fetch_max(before + bytes, Ordering::Relaxed);
        }
    }

    /// What existed was given back to the device.
    pub(super) fn returned(&self, bytes: u64) {
        for budget in self.levels() {
            budget.node.existing.fetch_sub(bytes, Ordering::Relaxed);
        }
        self.give(bytes);
    }

    /// Lets other pools give back what they do not use, on every level where less than `bytes` are
    /// left. Whether any did. Calls devices: to be called without a lock.
    pub(crate) fn relieve(&self, bytes: u64, asker: &dyn Member) -> bool {
        let mut relieved = false;
        for budget in self.levels() {
            let mut members = Vec::new();
            if budget.node.left() < bytes {
                budget.node.all_members(&mut members);
            }
            for member in members {
                let missing = bytes.saturating_sub(budget.node.left());
                if missing == 0 {
                    break;
                }
                if !std::ptr::addr_eq(Arc::as_ptr(&member), asker) {
                    relieved |= member.relieve(missing) > 0;
                }
            }
        }
        relieved
    }
}
