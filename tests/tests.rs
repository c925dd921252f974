//! All integration tests, in one program: linking is the slow part.

mod bad_input;
mod cli;
mod golden;
mod quality;
mod session;
