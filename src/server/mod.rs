//! The server: one model behind an HTTP interface in the manner of OpenAI's.
//!
//! ```text
//! request --routes--> Job --Queue--> Scheduler (a thread) --events--> answer
//! ```
//!
//! [`scheduler`] knows nothing of HTTP, and nothing outside of it touches the model.

pub mod grammar;
pub mod job;
pub mod metrics;
pub mod queue;
pub mod scheduler;
