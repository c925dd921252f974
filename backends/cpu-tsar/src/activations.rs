//! Activations.

/// Working memory.
#[derive(Debug, Default)]
pub(crate) struct Scratch {}
