//! What is reported about T-SAR, to hold the model against.

use super::engine::Phase;
use super::shapes::Shapes;

/// Where a number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From the shapes and an engine's loops, with nothing to choose.
    Derived,
    /// With a coefficient chosen to meet a published figure.
    Fitted,
    /// From a published figure.
    Published,
}

impl Source {
    /// `derived`, `fitted` or `published`.
    pub fn name(self) -> &'static str {
        match self {
            Source::Derived => "derived",
            Source::Fitted => "fitted",
            Source::Published => "published",
        }
    }
}

/// Memory requests reported for BitNet-2B-4T (T-SAR, arXiv 2511.13676).
///
/// They are quoted without a fitting unit. Requests it must be: 62.6 MB for a token would be less than the 521 MB of
/// its weights. And prefill's are G: 101.59 M for 128 tokens would be less than 949.3 M for one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// TL-2's requests.
    pub tl2: f64,
    /// T-SAR's; with which dataflow and instructions is not known.
    pub tsar: f64,
    /// Percent of TL-2's requests that go to tables.
    pub table_share: Option<f64>,
}

impl Published {
    /// What is reported for this model and phase, if anything is.
    pub fn find(shapes: &Shapes, phase: Phase) -> Option<Self> {
        let measured = Shapes::built_in(Shapes::DEFAULT)?;
        if shapes.matrices() != measured.matrices() || shapes.layers() != measured.layers() {
            return None;
        }
        match (phase, phase.tokens()) {
            (Phase::Prefill(_), 128) => Some(Published { tl2: 101.59e9, tsar: 7.45e9, table_share: Some(87.6) }),
            (Phase::Decode(_), 1) => Some(Published { tl2: 949.3e6, tsar: 62.6e6, table_share: None }),
            _ => None,
        }
    }
}
