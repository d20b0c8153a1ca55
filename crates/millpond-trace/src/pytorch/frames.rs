//! Call stacks of a snapshot.
//!
//! # Invariants
//! - Each list, frame and name is read once, however often it is shared, so that neither time nor
//!   memory grows with the number of places that share it.
//! - Names are cut at [`NAME_MAX`] bytes. What is no list of frames is no call stack, and no error.

use std::collections::HashMap;
use std::sync::Arc;

use crate::builder::Builder;
use crate::model::{Frame, Site};
use crate::pickle::{NodeId, Pickle};

/// Bytes of a file's or a function's name that are kept; C++ templates have thousands.
const NAME_MAX: usize = 512;

/// The frames that were read so far.
pub(super) struct Frames<'p> {
    pickle: &'p Pickle<'p>,
    lists: HashMap<NodeId, Option<u32>>,
    frames: HashMap<NodeId, Option<Arc<Frame>>>,
    /// Equal frames and stacks of different objects are one.
    distinct: HashMap<Arc<Frame>, Arc<Frame>>,
    sites: HashMap<Site, u32>,
}

impl<'p> Frames<'p> {
    pub(super) fn new(pickle: &'p Pickle<'p>) -> Self {
        Self {
            pickle,
            lists: HashMap::new(),
            frames: HashMap::new(),
            distinct: HashMap::new(),
            sites: HashMap::new(),
        }
    }

    /// The number of a call stack; `None` if the list is none, or empty.
    pub(super) fn site(&mut self, list: NodeId, builder: &mut Builder<'_>) -> Option<u32> {
        if let Some(&known) = self.lists.get(&list) {
            return known;
        }
        let items = self.pickle.sequence(list).unwrap_or_default();
        let frames: Vec<_> = items.iter().filter_map(|&id| self.frame(id)).collect();
        let site = (!frames.is_empty()).then(|| {
            let site = Site { frames };
            match self.sites.get(&site) {
                Some(&known) => known,
                None => {
                    let number = builder.site(site.clone());
                    self.sites.insert(site, number);
                    number
                }
            }
        });
        self.lists.insert(list, site);
        site
    }

    fn frame(&mut self, id: NodeId) -> Option<Arc<Frame>> {
        if let Some(known) = self.frames.get(&id) {
            return known.clone();
        }
        let frame = self.read(id).map(|frame| {
            let frame = Arc::new(frame);
            let distinct = self.distinct.entry(Arc::clone(&frame)).or_insert(frame);
            Arc::clone(distinct)
        });
        self.frames.insert(id, frame.clone());
        frame
    }

    fn read(&self, id: NodeId) -> Option<Frame> {
        let pairs = self.pickle.dict(id)?;
        if pairs.len() > super::KEYS_MAX {
            return None;
        }
        let mut frame = Frame {
            file: String::new(),
            line: 0,
            function: String::new(),
        };
        for (key, value) in pairs {
            match self.pickle.text(key) {
                Some(b"filename") => frame.file = self.name(value),
                Some(b"name") => frame.function = self.name(value),
                Some(b"line") => {
                    let line = self.pickle.int(value);
                    frame.line = line.and_then(|line| line.try_into().ok()).unwrap_or(0);
                }
                _ => {}
            }
        }
        Some(frame)
    }

    fn name(&self, id: NodeId) -> String {
        let text = self.pickle.text(id).unwrap_or_default();
        String::from_utf8_lossy(&text[..text.len().min(NAME_MAX)]).into_owned()
    }
}
