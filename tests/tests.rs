//! All integration tests, in one program: linking is the slow part.

mod bad_input;
mod cli;
mod cross_backend;
mod golden;
mod loading;
mod program;
mod quality;
mod session;
