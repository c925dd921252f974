//! What can go wrong below the graph.

/// The result of a backend call.
pub type Result<T> = std::result::Result<T, Error>;

/// A backend's error: always one line that says what is wrong and, where it is known, what would work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A matrix, vector or setting that no backend could take: a caller's or a file's mistake.
    #[error("{0}")]
    Invalid(String),
    /// A request that this device or build can't serve.
    #[error("{0}")]
    Unsupported(String),
    /// The device has too little memory.
    #[error("{0}")]
    OutOfMemory(String),
    /// The device or its driver failed.
    #[error("{0}")]
    Device(String),
}

/// Returns [`Error::Invalid`] with a formatted message unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::Error::Invalid(format!($($message)+)));
        }
    };
}
pub(crate) use ensure;
