//! All integration tests, in one program: linking is the slow part.

mod bad_input;
mod cli;
mod gguf;
mod eval;
mod golden;
mod loading;
mod program;
mod pull;
mod quality;
mod quantize;
mod server;
mod session;
