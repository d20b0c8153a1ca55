//! A bar on a terminal, for replays that take their time.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a replay is, on standard error, if that is a terminal.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// Begins a bar.
    pub(crate) fn new(trace: &str, steps: u64) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(
            "{prefix} [{bar:30}] {human_pos}/{human_len} steps, {eta} left",
        );
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_prefix(trace.to_owned());
        Progress(bar)
    }

    /// No bar.
    pub(crate) fn hidden() -> Progress {
        Progress(ProgressBar::hidden())
    }

    /// There is more to do than was said.
    pub(super) fn expect_more(&self, steps: usize) {
        self.0.inc_length(steps as u64);
    }

    pub(super) fn advance(&self, steps: usize) {
        self.0.inc(steps as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
